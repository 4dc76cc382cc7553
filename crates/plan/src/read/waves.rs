//! Reading the waves of a plan, and what can be told of them without an inventory.

use std::collections::{BTreeMap, BTreeSet};

use crate::resolve::NAMES_SHOWN_MAX;
use drover_types::{IfFailed, Opening, WINDOWS_MAX, Wave, WaveWindow, Window, Windows, some_of};

use super::{Fields, Reader};
use crate::glob::matches;
use crate::model::{Plan, PlanWave, Selector};
use crate::near::nearest;
use crate::node::Value;
use crate::problem::{At, Problem};
use crate::warm::parse_moment;

/// Waves of one plan; a fleet that needs more has to be planned otherwise.
pub const WAVES_MAX: usize = 500;

impl Reader {
    pub(super) fn waves(&mut self, plan: &Fields<'_>) -> Vec<PlanWave> {
        let freezes = self.freezes(plan);
        let waves = self.list(plan, "waves", |reader, fields| PlanWave {
            wave: Wave {
                name: reader.short_name(fields, "name").unwrap_or_default(),
                window: reader.window(fields, &freezes),
                after: reader.texts(fields, "after").unwrap_or_default(),
                if_failed: match reader.choice(fields, "if_failed") {
                    Some("go_on") => IfFailed::GoOn,
                    Some("stop") => IfFailed::Stop,
                    _ => IfFailed::Wait,
                },
            },
            vms: reader.list(fields, "vms", |reader, fields| reader.selector(fields)),
            hooks: reader.wave_hooks(fields),
            at: fields.at,
            path: fields.path.clone(),
        });
        if let (Some(entry), true) = (plan.find("waves"), waves.len() > WAVES_MAX) {
            let text = format!("there are {} of them, {WAVES_MAX} are the most", waves.len());
            let problem = Problem::error(plan.path_of("waves"), text).at(entry.at);
            self.problems.push(problem.advise("make several plans of it"));
        }
        waves
    }

    fn window(&mut self, fields: &Fields<'_>, freezes: &Windows) -> WaveWindow {
        let problems = self.problems.len();
        let window = WaveWindow {
            windows: self.windows(fields, "window"),
            freezes: freezes.clone(),
            from_ms: self.moment(fields, "from"),
            until_ms: self.moment(fields, "until"),
            ..WaveWindow::default()
        };
        // What could not be read is told already.
        if self.problems.len() == problems && window.at(window.from_ms.unwrap_or(0)) == Opening::Never {
            let text = match (window.from_ms, window.until_ms) {
                (Some(from), Some(until)) if until <= from => "it ends before it begins",
                (None, None) => "its windows are all in freezes, or in an hour that daylight saving skips",
                _ => "its windows never come between its first and its last moment",
            };
            let problem = Problem::error(fields.path.clone(), text).at(fields.at);
            self.problems
                .push(problem.advise("look at window, from, until and `freezes`: all of them have to hold"));
        }
        window
    }

    /// One window or several.
    fn windows(&mut self, fields: &Fields<'_>, name: &str) -> Windows {
        let Some(entry) = fields.find(name) else { return Windows::default() };
        let (path, mut windows) = (fields.path_of(name), Vec::new());
        let nodes = match &entry.node.value {
            Value::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(&entry.node),
        };
        if nodes.is_empty() || nodes.len() > WINDOWS_MAX {
            let text = format!("there are {} of them: 1 to {WINDOWS_MAX} may be", nodes.len());
            self.problems.push(Problem::error(&path, text).at(entry.at));
        }
        for node in nodes {
            let Value::Scalar { text, .. } = &node.value else {
                self.mismatch(
                    &path,
                    node,
                    "a window such as Sat 22:00-06:00 Europe/Berlin, or a list of them,",
                );
                continue;
            };
            match text.parse::<Window>() {
                Ok(window) => windows.push(window),
                Err(why) => self.problems.push(Problem::error(&path, why.to_string()).at(node.at)),
            }
        }
        Windows(windows)
    }

    /// Dates in which no wave begins or moves over.
    fn freezes(&mut self, plan: &Fields<'_>) -> Windows {
        let freezes = self.windows(plan, "freezes");
        let Some(entry) = plan.find("freezes") else { return freezes };
        if let Some(other) = freezes.0.iter().find(|it| !it.is_of_dates()) {
            let problem = Problem::error("freezes", format!("'{other}' comes again and again")).at(entry.at);
            self.problems
                .push(problem.advise("write dates such as 2026-12-20 - 2027-01-03; hours are for `window`"));
        }
        if plan.find("waves").is_none() {
            let problem =
                Problem::error("freezes", "it holds back waves, and the plan has none").at(entry.at);
            self.problems.push(problem.advise("add `waves`, of which one with all VMs is enough"));
        }
        freezes
    }

    pub(super) fn moment(&mut self, fields: &Fields<'_>, name: &str) -> Option<u64> {
        let entry = fields.find(name)?;
        let moment = match &entry.node.value {
            Value::Scalar { text, .. } => parse_moment(text).and_then(|ms| u64::try_from(ms).ok()),
            _ => None,
        };
        if moment.is_none() {
            self.wrong(fields, entry, "is not a moment such as 2026-12-01T22:00:00Z");
        }
        moment
    }

    /// What does not go together about waves, as far as the plan alone tells.
    pub(super) fn check_waves(&mut self, plan: &Plan) {
        self.check_wave_names(plan);
        let in_circle = self.check_circles(plan);
        if !in_circle {
            self.check_order(plan);
        }
        self.check_named(plan);
        if !plan.waves.is_empty() {
            self.check_members(plan);
        }
    }

    fn check_wave_names(&mut self, plan: &Plan) {
        let names = || plan.waves.iter().map(|it| it.wave.name.as_str());
        for (number, it) in plan.waves.iter().enumerate() {
            if names().take(number).any(|earlier| earlier == it.wave.name) && !it.wave.name.is_empty() {
                let text = format!("there is another wave '{}' before it", it.wave.name);
                self.problems.push(Problem::error(format!("{}.name", it.path), text).at(it.at));
            }
            for after in it.wave.after.iter().filter(|after| !names().any(|name| name == *after)) {
                let text = format!("there is no wave '{after}'");
                let problem = Problem::error(format!("{}.after", it.path), text).at(it.at);
                self.problems.push(problem.advise(which(after, names())));
            }
        }
    }

    /// Tells a circle, if there is one: none of its waves could ever begin.
    fn check_circles(&mut self, plan: &Plan) -> bool {
        let mut left: BTreeMap<&str, &PlanWave> =
            plan.waves.iter().map(|it| (it.wave.name.as_str(), it)).collect();
        loop {
            let begins = |it: &PlanWave| !it.wave.after.iter().any(|after| left.contains_key(after.as_str()));
            let free: Vec<&str> = left.iter().filter(|(_, it)| begins(it)).map(|(name, _)| *name).collect();
            if free.is_empty() {
                break;
            }
            left.retain(|name, _| !free.contains(name));
        }
        let Some((first, it)) = left.first_key_value().map(|(name, it)| (*name, *it)) else { return false };
        // Each of those left is after another of them, so this comes back to one that was seen.
        let (mut seen, mut name) = (vec![first], first);
        let circle = loop {
            let after = left.get(name).into_iter().flat_map(|it| &it.wave.after);
            let Some(next) = after.map(String::as_str).find(|after| left.contains_key(after)) else {
                break seen;
            };
            if let Some(at) = seen.iter().position(|earlier| *earlier == next) {
                seen.push(next);
                break seen.split_off(at);
            }
            seen.push(next);
            name = next;
        };
        let text = format!("these waves wait for each other: {}", circle.join(" after "));
        let problem = Problem::error(format!("{}.after", it.path), text).at(it.at);
        self.problems.push(problem.advise("take one of them out of `after`"));
        true
    }

    /// A wave that is over before those that it is after may begin.
    fn check_order(&mut self, plan: &Plan) {
        let by_name: BTreeMap<&str, &Wave> =
            plan.waves.iter().map(|it| (it.wave.name.as_str(), &it.wave)).collect();
        let mut earliest: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for it in &plan.waves {
            let begins = begin_of(&it.wave.name, &by_name, &mut earliest);
            let own = it.wave.window.at(it.wave.window.from_ms.unwrap_or(0));
            let are_fine = it.wave.after.iter().all(|after| earliest.get(after.as_str()) != Some(&None));
            if begins.is_none() && own != Opening::Never && are_fine {
                let after = it.wave.after.join(", ");
                let text = format!("its window is over before that of {after} opens, which it is after");
                let problem = Problem::error(it.path.clone(), text).at(it.at);
                self.problems.push(problem.advise("give it a later window, or the others an earlier one"));
            }
        }
    }

    /// Waves that entries of `vms` name and that there are not.
    fn check_named(&mut self, plan: &Plan) {
        let names = || plan.waves.iter().map(|it| it.wave.name.as_str());
        for vm in &plan.vms {
            let Some(wave) = vm.overrides.wave.as_deref() else { continue };
            if !names().any(|name| name == wave) {
                let text = format!("there is no wave '{wave}'");
                let problem = Problem::error(format!("{}.wave", vm.selector.path), text).at(vm.selector.at);
                self.problems.push(problem.advise(which(wave, names())));
            }
        }
    }

    /// VMs that are named by their names: what the inventory says of others is seen when it is asked.
    fn check_members(&mut self, plan: &Plan) {
        let entries: Vec<(&str, &Selector)> = plan
            .vms
            .iter()
            .filter_map(|vm| Some((vm.overrides.wave.as_deref()?, &vm.selector)))
            .chain(plan.waves.iter().flat_map(|it| it.vms.iter().map(|vm| (it.wave.name.as_str(), vm))))
            .collect();
        let giving = Giving::of(&entries);
        let mut told = BTreeSet::new();
        for vm in &plan.vms {
            let Some(name) = vm.selector.name.as_deref() else { continue };
            if plan.exclude.iter().any(|out| surely(out, name)) || !told.insert(name) {
                continue;
            }
            if vm.overrides.wave.is_none() && !giving.may_give(name) {
                self.problems.push(in_no_wave(&[name], &vm.selector.path, vm.selector.at));
            }
        }
        // Of entries of `vms` the later ones win; a wave that takes a VM of another is a mistake.
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (wave, selector) in plan.waves.iter().flat_map(|it| it.vms.iter().map(|vm| (&it.wave.name, vm))) {
            let Some(name) = selector.name.as_deref().filter(|_| is_plain(selector)) else { continue };
            match owners.insert(name, wave) {
                Some(other) if other != wave => {
                    self.problems.push(in_two_waves(name, &[other, wave], &selector.path, selector.at));
                }
                _ => {}
            }
        }
    }
}

/// A VM that is in no wave, or several of one entry.
pub(crate) fn in_no_wave(names: &[&str], path: &str, at: At) -> Problem {
    let are = if names.len() == 1 { "is" } else { "are" };
    let text = format!("{} {are} in no wave", some_of(names, NAMES_SHOWN_MAX));
    let advice = "give `wave: NAME` here, or add an entry to `vms` of a wave";
    Problem::error(path, text).at(at).advise(advice)
}

/// A VM that is in several waves.
pub(crate) fn in_two_waves(name: &str, waves: &[&str], path: &str, at: At) -> Problem {
    let text = format!("{name} is in more than one wave: {}", waves.join(", "));
    Problem::error(path, text).at(at).advise("a VM moves once: leave it in one of them")
}

/// What gives VMs a wave, by their names.
struct Giving<'a> {
    names: BTreeSet<&'a str>,
    others: Vec<&'a Selector>,
}

impl<'a> Giving<'a> {
    fn of(entries: &[(&'a str, &'a Selector)]) -> Giving<'a> {
        let names = entries.iter().filter_map(|(_, it)| it.name.as_deref()).collect();
        let others = entries.iter().map(|(_, it)| *it).filter(|it| it.name.is_none()).collect();
        Giving { names, others }
    }

    /// Whether a VM of this name may get a wave: what else is asked of it, only the inventory tells.
    fn may_give(&self, name: &str) -> bool {
        let fits = |it: &&Selector| it.glob.as_ref().is_none_or(|glob| matches(glob, name));
        self.names.contains(name) || self.others.iter().any(fits)
    }
}

/// Whether a selector asks for nothing but a name.
fn is_plain(selector: &Selector) -> bool {
    selector.glob.is_none() && selector.beside_name().into_iter().all(Option::is_none)
}

/// Whether a selector selects every VM of this name.
fn surely(selector: &Selector, name: &str) -> bool {
    selector.beside_name().into_iter().all(Option::is_none)
        && selector.name.as_ref().is_none_or(|it| it == name)
        && selector.glob.as_ref().is_none_or(|glob| matches(glob, name))
}

fn which<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(word, names.clone()) {
        Some(near) => format!("did you mean '{near}'?"),
        None if names.clone().next().is_none() => "the plan has no `waves`".to_string(),
        None => format!("there are: {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// When a wave may begin at the earliest, in milliseconds since 1970, were each before it over at once; `None` if never.
fn begin_of<'a>(
    name: &'a str,
    waves: &BTreeMap<&'a str, &'a Wave>,
    known: &mut BTreeMap<&'a str, Option<u64>>,
) -> Option<u64> {
    if let Some(begin) = known.get(name) {
        return *begin;
    }
    let wave = waves.get(name)?;
    // There is no circle, so this ends; `WAVES_MAX` deep at most.
    let mut at = Some(wave.window.from_ms.unwrap_or(0));
    for after in wave.after.iter().filter_map(|after| waves.get_key_value(after.as_str())) {
        at = begin_of(after.0, waves, known).zip(at).map(|(one, other)| one.max(other));
    }
    let begin = at.and_then(|at| match wave.window.at(at) {
        Opening::Open { .. } => Some(at),
        Opening::At(opens) => Some(opens),
        Opening::Never => None,
    });
    known.insert(name, begin);
    begin
}
