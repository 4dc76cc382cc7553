//! Waves: parts of a fleet that each fit a window with a chance that is asked for.

use serde::Serialize;

use crate::fleet::FleetVm;
use crate::foresee::{Question, makespans};
use crate::quantile::Spread;

/// Draws of each look at a wave: a chance of 90 % is told apart from 85 %.
const DRAWS: usize = 60;
/// Waves in all; a fleet that needs more has to be planned otherwise.
pub const WAVES_MAX: usize = 500;

/// A part of a fleet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wave {
    /// Its name.
    pub name: String,
    /// Names of its VMs.
    pub vms: Vec<String>,
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

/// Waves for VMs of which each belongs to a group, such as its folder: groups stay together where they fit. Within a group the
/// largest go first. Windows of the VMs are not looked at.
pub fn propose(question: &Question, groups: &[String], rule: WaveRule) -> Vec<Wave> {
    let mut order: Vec<usize> = (0..question.vms.len().min(groups.len())).collect();
    order.sort_by_key(|at| (&groups[*at], std::cmp::Reverse(question.vms[*at].data_bytes()), *at));
    let mut waves = Vec::new();
    let mut left = order.as_slice();
    while !left.is_empty() && waves.len() < WAVES_MAX {
        let most = fitting(question, left, rule);
        let size = at_a_border(left, groups, most);
        let (wave, rest) = left.split_at(size);
        waves.push(wave_of(question, wave, waves.len() + 1, rule));
        left = rest;
    }
    waves
}

/// How many of the first VMs fit together; 1 at the least.
fn fitting(question: &Question, left: &[usize], rule: WaveRule) -> usize {
    let fits = |size: usize| chance(&drawn(question, &left[..size]), rule.window_s) >= rule.chance;
    // Doubled until it is too much, then halved in between: a long fleet is not simulated as a whole for each wave.
    let (mut low, mut high) = (1, 2);
    while high <= left.len() && fits(high) {
        (low, high) = (high, high * 2);
    }
    let mut high = high.min(left.len() + 1);
    while high - low > 1 {
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
    let vms = vms.iter().map(|at| FleetVm { windows: Vec::new(), ..question.vms[*at].clone() }).collect();
    makespans(&Question { vms, ..question.clone_without_vms() }, DRAWS)
}

fn chance(makespans: &[f64], window_s: f64) -> f64 {
    makespans.iter().filter(|it| **it <= window_s).count() as f64 / makespans.len().max(1) as f64
}

fn wave_of(question: &Question, vms: &[usize], number: usize, rule: WaveRule) -> Wave {
    let makespans = drawn(question, vms);
    Wave {
        name: format!("wave-{number}"),
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
        let waves = propose(&question, &names(60, |_| 0), rule);
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
        let waves = propose(&question, &groups, WaveRule { window_s: 1_200.0, chance: 0.9 });
        let folder_of = |name: &String| {
            let at = question.vms.iter().position(|vm| vm.name == *name).unwrap();
            groups[at].clone()
        };
        for pair in waves.windows(2) {
            assert_ne!(folder_of(pair[0].vms.last().unwrap()), folder_of(&pair[1].vms[0]));
        }
    }

    #[test]
    fn a_vm_that_never_fits_is_a_wave_with_its_true_chance() {
        let question = question(2, 1, 500);
        let waves = propose(&question, &names(2, |_| 0), WaveRule { window_s: 60.0, chance: 0.9 });
        assert_eq!(
            waves.iter().map(|it| (it.vms.len(), it.chance)).collect::<Vec<_>>(),
            [(1, 0.0), (1, 0.0)]
        );
    }
}
