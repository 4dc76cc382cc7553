//! Waves: parts of a fleet that each fit a window with a chance that is asked for.

use drover_types::{Wave, WaveWindow};
use serde::Serialize;

use crate::fleet::{FleetVm, WarmWish};
use crate::foresee::{Question, makespans};
use crate::quantile::Spread;

/// Draws of each look at a wave: a chance of 90 % is told apart from 85 %.
const DRAWS: usize = 60;
/// Waves in all; a fleet that needs more has to be planned otherwise.
pub const WAVES_MAX: usize = 500;

/// Warm VMs are copied in the days before their wave; whole days, so that the hours of the line are what they are.
const AHEAD_MS: u64 = 60 * 86_400_000;
/// The name of the one wave that is looked at.
const WAVE: &str = "wave";

/// A part of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProposedWave {
    /// Its name.
    pub name: String,
    /// Names of its VMs.
    pub vms: Vec<String>,
    /// Where these are among the VMs of the question.
    #[serde(skip)]
    pub places: Vec<usize>,
    /// Bytes to be read.
    pub bytes: u64,
    /// How long it takes, in seconds.
    pub makespan_s: Spread,
    /// With which chance it fits the window; below what was asked for where one VM alone does not fit.
    pub chance: f64,
}

/// What each wave has to keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaveRule {
    /// Length of the window.
    pub window_s: f64,
    /// The chance that it is enough, from 0 to 1.
    pub chance: f64,
}

/// The parts of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Each for a window of its own.
    pub waves: Vec<ProposedWave>,
    /// What is left where no more waves were asked for, as the last wave; its chance is that of one more window.
    pub rest: Option<ProposedWave>,
}

/// Waves for VMs of which each belongs to a group, such as its folder: groups stay together where they fit. Within a group the
/// largest go first. A warm VM is copied before its wave, so that only its cutover is in the window. Waves and windows of the
/// question are not looked at; the first window opens when it begins. `most` waves are made, and of what is left then a last one.
pub fn propose(question: &Question, groups: &[String], rule: WaveRule, most: usize) -> Proposal {
    let mut order: Vec<usize> = (0..question.vms.len().min(groups.len())).collect();
    order.sort_by_key(|at| (&groups[*at], std::cmp::Reverse(question.vms[*at].data_bytes()), *at));
    let mut waves = Vec::new();
    let (mut left, mut guess) = (order.as_slice(), 1);
    while !left.is_empty() && waves.len() < most {
        let fits = fitting(question, left, rule, guess);
        let name = format!("wave-{}", waves.len() + 1);
        let size = at_a_border(left, groups, fits);
        let mut wave = wave_of(question, &left[..size], name.clone(), rule);
        // Fewer VMs in another order may take longer.
        if wave.chance < rule.chance && size < fits {
            wave = wave_of(question, &left[..fits], name, rule);
        }
        (left, guess) = (&left[wave.places.len()..], fits);
        waves.push(wave);
    }
    let rest = (!left.is_empty()).then(|| wave_of(question, left, REST.into(), rule));
    Proposal { waves, rest }
}

/// The name of the wave that has what is left.
const REST: &str = "rest";

/// How many of the first VMs fit together; 1 at the least. Looked for from a guess, in steps that double, and then halved in
/// between: a long fleet is not simulated as a whole for each wave.
fn fitting(question: &Question, left: &[usize], rule: WaveRule, guess: usize) -> usize {
    let fits = |size: usize| chance(&drawn(question, &left[..size]), rule.window_s) >= rule.chance;
    let guess = guess.clamp(1, left.len());
    let mut step = 1;
    let (mut low, mut high) = match fits(guess) {
        true => {
            let (mut low, mut high) = (guess, guess + step);
            while high <= left.len() && fits(high) {
                step *= 2;
                (low, high) = (high, high + step);
            }
            (low, high.min(left.len() + 1))
        }
        false => {
            let (mut low, mut high) = (guess.saturating_sub(step).max(1), guess);
            while low > 1 && !fits(low) {
                step *= 2;
                (low, high) = (low.saturating_sub(step).max(1), low);
            }
            (low, high)
        }
    };
    while high > low + 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// The greatest size up to `most` that divides no group; `most` where the first group alone is larger.
fn at_a_border(left: &[usize], groups: &[String], most: usize) -> usize {
    let is_border = |size: &usize| left.len() == *size || groups[left[*size - 1]] != groups[left[*size]];
    (1..=most).rev().find(is_border).unwrap_or(most)
}

fn drawn(question: &Question, vms: &[usize]) -> Vec<f64> {
    let wave = Some(WAVE.to_string());
    let of = |at: &usize| {
        let vm = question.vms[*at].clone();
        // The window decides when it moves over.
        let warm = vm.warm.map(|warm| WarmWish { cutover_ms: None, ..warm });
        FleetVm { windows: Vec::new(), wave: wave.clone(), plan: 0, warm, ..vm }
    };
    let from_ms = Some(question.start_ms.saturating_add(AHEAD_MS));
    let window = WaveWindow { from_ms, ..WaveWindow::default() };
    let waves = vec![Wave { name: WAVE.into(), window, ..Wave::default() }];
    let question = Question {
        vms: vms.iter().map(of).collect(),
        waves: [(0, waves)].into(),
        ..question.clone_without_vms()
    };
    makespans(&question, DRAWS).into_iter().map(|seconds| seconds - AHEAD_MS as f64 / 1000.0).collect()
}

fn chance(makespans: &[f64], window_s: f64) -> f64 {
    makespans.iter().filter(|it| **it <= window_s).count() as f64 / makespans.len().max(1) as f64
}

fn wave_of(question: &Question, vms: &[usize], name: String, rule: WaveRule) -> ProposedWave {
    let makespans = drawn(question, vms);
    ProposedWave {
        name,
        places: vms.to_vec(),
        vms: vms.iter().map(|at| question.vms[*at].name.clone()).collect(),
        bytes: vms.iter().map(|at| question.vms[*at].data_bytes()).sum(),
        chance: chance(&makespans, rule.window_s),
        makespan_s: Spread::of(makespans).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foresee::tests::question;

    fn names(number: usize, of: impl Fn(usize) -> usize) -> Vec<String> {
        (0..number).map(|at| format!("folder-{}", of(at))).collect()
    }

    #[test]
    fn each_wave_fits_the_window_and_every_vm_is_in_one() {
        let question = question(60, 2, 20);
        let rule = WaveRule { window_s: 1_200.0, chance: 0.9 };
        let waves = propose(&question, &names(60, |_| 0), rule, WAVES_MAX).waves;
        assert!(waves.len() > 1 && waves.iter().all(|it| it.chance >= 0.9), "{waves:?}");
        let mut vms: Vec<&String> = waves.iter().flat_map(|it| &it.vms).collect();
        vms.sort();
        assert_eq!(vms, question.vms.iter().map(|vm| &vm.name).collect::<Vec<_>>());
        // One more VM in the first would not have fitted.
        let mut order: Vec<usize> = (0..60).collect();
        order.truncate(waves[0].vms.len() + 1);
        assert!(chance(&drawn(&question, &order), rule.window_s) < 0.9);
    }

    #[test]
    fn groups_stay_together_where_they_fit() {
        let question = question(40, 2, 20);
        let groups = names(40, |at| at / 7);
        let waves = propose(&question, &groups, WaveRule { window_s: 1_200.0, chance: 0.9 }, WAVES_MAX).waves;
        let folder_of = |name: &String| {
            let at = question.vms.iter().position(|vm| vm.name == *name).unwrap();
            groups[at].clone()
        };
        for pair in waves.windows(2) {
            assert_ne!(folder_of(pair[0].vms.last().unwrap()), folder_of(&pair[1].vms[0]));
        }
    }

    #[test]
    fn a_warm_vm_takes_the_window_for_its_cutover_alone() {
        let mut question = question(40, 2, 100);
        let rule = WaveRule { window_s: 1_800.0, chance: 0.9 };
        let all = |question: &Question| {
            let proposal = propose(question, &names(40, |_| 0), rule, WAVES_MAX);
            assert_eq!(proposal.rest, None);
            proposal.waves
        };
        let cold = all(&question).len();
        let warm = WarmWish { interval_ms: 3_600_000, cutover_ms: Some(1), ..WarmWish::default() };
        question.vms.iter_mut().for_each(|vm| vm.warm = Some(warm));
        let waves = all(&question);
        assert!(waves.len() * 4 < cold, "{} and {cold} waves", waves.len());
        assert!(waves.iter().all(|it| it.makespan_s.p10 > 0.0 && it.places.len() == it.vms.len()));
    }

    #[test]
    fn a_vm_that_never_fits_is_a_wave_with_its_true_chance() {
        let question = question(2, 1, 500);
        let rule = WaveRule { window_s: 60.0, chance: 0.9 };
        let waves = propose(&question, &names(2, |_| 0), rule, WAVES_MAX).waves;
        assert_eq!(
            waves.iter().map(|it| (it.vms.len(), it.chance)).collect::<Vec<_>>(),
            [(1, 0.0), (1, 0.0)]
        );
    }

    #[test]
    fn what_is_left_after_the_last_window_is_a_wave_of_its_own() {
        let question = question(60, 2, 20);
        let rule = WaveRule { window_s: 1_200.0, chance: 0.9 };
        let all = propose(&question, &names(60, |_| 0), rule, WAVES_MAX);
        let Proposal { waves, rest } = propose(&question, &names(60, |_| 0), rule, 1);
        assert_eq!(waves, all.waves[..1]);
        let rest = rest.unwrap();
        assert_eq!((rest.name.as_str(), rest.vms.len()), ("rest", 60 - waves[0].vms.len()));
        assert!(rest.makespan_s.p50 > rule.window_s, "{rest:?}");
    }
}
