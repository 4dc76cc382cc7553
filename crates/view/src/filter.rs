//! Which VMs of a plan are told, and how much of a large plan where nobody asks for some of them.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};

use drover_engine::{VmRow, VmState};
use drover_plan::name_matches;
use drover_types::some_of;

use crate::checked::without_numbers;
use crate::text::{clean, count};

/// Of a plan with more VMs not all are listed, unless somebody asks for them.
pub const LISTED_MAX: usize = 40;
/// VMs that are named for an error that they share.
const NAMES_MAX: usize = 5;

/// The states that are listed of a large plan, what needs somebody first.
const LISTED: [ShownState; 8] = [
    ShownState::Of(VmState::Failed),
    ShownState::Of(VmState::NotCleanedUp),
    ShownState::Of(VmState::Stopped),
    ShownState::Interrupted,
    ShownState::Of(VmState::Running),
    ShownState::Waiting,
    ShownState::Of(VmState::Skipped),
    ShownState::Of(VmState::Cancelled),
];

/// A state as people are told of it: that of the store, which calls a VM running whatever it does between its begin and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownState {
    /// That of the store.
    Of(VmState),
    /// It runs, and waits for its next pass or its cutover.
    Waiting,
    /// It ran when its run was killed.
    Interrupted,
}

impl ShownState {
    /// All of them in the order in which they are counted.
    pub const ALL: [ShownState; 10] = [
        ShownState::Of(VmState::Done),
        ShownState::Waiting,
        ShownState::Of(VmState::Running),
        ShownState::Interrupted,
        ShownState::Of(VmState::Queued),
        ShownState::Of(VmState::Failed),
        ShownState::Of(VmState::NotCleanedUp),
        ShownState::Of(VmState::Stopped),
        ShownState::Of(VmState::Skipped),
        ShownState::Of(VmState::Cancelled),
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            ShownState::Of(state) => state.word(),
            ShownState::Waiting => "waiting",
            ShownState::Interrupted => "interrupted",
        }
    }

    /// What VMs in it do.
    pub fn help(self) -> &'static str {
        match self {
            ShownState::Of(VmState::Queued) => "They have not begun",
            ShownState::Of(VmState::Running) => "They are at work, or were when their run was killed",
            ShownState::Waiting => "They are copied, and wait for their next pass or their cutover",
            ShownState::Interrupted => "They were at work when their run was killed",
            ShownState::Of(VmState::Done) => "They have arrived",
            ShownState::Of(VmState::NotCleanedUp) => {
                "They have arrived, and the clean-up at the source failed"
            }
            ShownState::Of(VmState::Failed) => "They failed",
            ShownState::Of(VmState::Stopped) => "They were stopped, and a resume goes on with them",
            ShownState::Of(VmState::Skipped) => "A hook left them out",
            ShownState::Of(VmState::Cancelled) => "They were given up",
        }
    }
}

/// Which VMs of a plan: those that fit one value of each list that has some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmFilter {
    /// Names at the target, or patterns of them.
    pub names: Vec<String>,
    /// Waves.
    pub waves: Vec<String>,
    /// Words of states: `failed`, `waiting`. `running` is also a VM whose run is gone.
    pub states: Vec<String>,
}

/// How much of a plan is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent<'a> {
    /// All.
    Whole,
    /// A summary; of a plan with more than [`LISTED_MAX`] VMs only those that run, failed, wait for somebody or were left out.
    Short,
    /// These VMs.
    Of(&'a VmFilter),
}

impl VmFilter {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.waves.is_empty() && self.states.is_empty()
    }

    /// What of a plan it asks for.
    pub fn extent(&self) -> Extent<'_> {
        if self.is_empty() { Extent::Short } else { Extent::Of(self) }
    }

    /// Whether a VM fits, by its name, its wave and the word of its state.
    pub fn fits(&self, name: &str, wave: Option<&str>, state: &str) -> bool {
        let has_gone = |asked: &str| asked == "running" && state == "interrupted";
        let none_or =
            |list: &[String], fits: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|it| fits(it));
        none_or(&self.names, &|asked| name_matches(asked, name))
            && none_or(&self.waves, &|asked| wave == Some(asked))
            && none_or(&self.states, &|asked| asked == state || has_gone(asked))
    }
}

/// The name of a VM, its wave, and the word of its state.
type Told<'a> = (&'a str, Option<&'a str>, &'a str);

impl Extent<'_> {
    /// The places of the VMs that are listed.
    pub(crate) fn listed(self, vms: &[Told<'_>]) -> Vec<usize> {
        let fitting = |fits: &dyn Fn(&Told<'_>) -> bool| {
            let found = vms.iter().enumerate().filter(|(_, vm)| fits(vm));
            found.map(|(at, _)| at).collect::<Vec<_>>()
        };
        match self {
            Extent::Of(filter) => fitting(&|(name, wave, state)| filter.fits(name, *wave, state)),
            Extent::Short if vms.len() > LISTED_MAX => LISTED
                .iter()
                .flat_map(|of| fitting(&|(.., state)| *state == of.word()).into_iter().take(LISTED_MAX))
                .collect(),
            Extent::Whole | Extent::Short => (0..vms.len()).collect(),
        }
    }

    /// Whether what many VMs share is said once.
    pub(crate) fn groups(self, vms: usize) -> bool {
        self == Extent::Short && vms > LISTED_MAX
    }

    /// How the errors of so many VMs are told.
    pub(crate) fn errors(self, vms: usize) -> Errors {
        match self {
            Extent::Short if vms > LISTED_MAX => Errors::ByCause(2),
            Extent::Short => Errors::ByCause(OF_ONE_CAUSE),
            Extent::Whole | Extent::Of(_) => Errors::Each,
        }
    }
}

/// `3000 VMs: 2400 done, 588 queued, 12 failed`.
pub(crate) fn by_state(states: &[&str]) -> String {
    let number = |of: &ShownState| {
        let word = of.word();
        (states.iter().filter(|it| **it == word).count(), word.replace('_', " "))
    };
    let parts: Vec<String> = ShownState::ALL
        .iter()
        .map(number)
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    format!("{}: {}", count(states.len(), "VM"), parts.join(", "))
}

/// How to see the VMs that are not listed; nothing if all are.
pub(crate) fn others(listed: usize, all: usize) -> String {
    match listed == all {
        true => String::new(),
        false => format!("\nlisted: {listed} of {all} VMs; others by --vm '*', --only STATE, --wave NAME\n"),
    }
}

/// In a list of few VMs, a cause of so many is told once.
const OF_ONE_CAUSE: usize = 4;

/// How errors of VMs are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errors {
    /// Each for itself.
    Each,
    /// Those of one cause once, if so many VMs have it.
    ByCause(usize),
}

/// Errors of VMs and what to try.
pub(crate) fn write_errors(
    text: &mut String,
    vms: &[&VmRow],
    errors: Errors,
    one: impl Fn(&mut String, &VmRow) -> fmt::Result,
) -> fmt::Result {
    let Errors::ByCause(from) = errors else {
        return vms.iter().try_for_each(|vm| one(text, vm));
    };
    let mut causes: Vec<Vec<&VmRow>> = Vec::new();
    let mut by_key: HashMap<_, usize> = HashMap::new();
    for vm in vms.iter().filter(|vm| vm.error.is_some()) {
        let words = |text: &Option<String>| words_of_cause(text.as_deref().unwrap_or_default(), &vm.name);
        let key = (words(&vm.error), words(&vm.advice));
        let at = *by_key.entry(key).or_insert_with(|| {
            causes.push(Vec::new());
            causes.len() - 1
        });
        causes[at].push(vm);
    }
    for cause in causes {
        match cause.len() >= from {
            true => write_cause(text, &cause)?,
            false => cause.into_iter().try_for_each(|vm| one(text, vm))?,
        }
    }
    Ok(())
}

/// What an error says apart from which VM, which of its files, and where in it: the same for VMs that failed for one cause.
fn words_of_cause(text: &str, vm: &str) -> String {
    let text = text.replace(vm, "");
    // What stands in parentheses counts as little.
    let bare = |word: &str| word.trim_matches([',', ';', ':']).to_string();
    let is_number = |word: &str| {
        let word = bare(word);
        word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let is_unit = |word: &str| ["B", "KiB", "MiB", "GiB", "TiB"].contains(&bare(word).as_str());
    let mut after_number = false;
    let kept = text.split(' ').filter(|word| {
        let is_size = std::mem::replace(&mut after_number, is_number(word)) && is_unit(word);
        // Spans and addresses are told in hexadecimal digits.
        !(is_size || after_number || word.starts_with('/') || word.starts_with("0x"))
    });
    without_numbers(&kept.collect::<Vec<_>>().join(" "))
}

/// Snapshots of VMs without an error: an interrupted run leaves such.
pub(crate) fn write_snapshots(text: &mut String, vms: &[&VmRow], errors: Errors) -> fmt::Result {
    let held: Vec<(String, String)> = vms
        .iter()
        .filter(|vm| vm.error.is_none())
        .filter_map(|vm| Some((clean(&vm.name).to_string(), clean(vm.snapshot.as_deref()?).to_string())))
        .collect();
    match errors {
        Errors::ByCause(from) if held.len() >= from => {
            let names: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
            writeln!(
                text,
                "\n{} still at the source; resume and cancel remove them\n  {}",
                count(held.len(), "snapshot"),
                some_of(&names, NAMES_MAX)
            )
        }
        _ => held.iter().try_for_each(|(name, snapshot)| {
            writeln!(
                text,
                "\n{name}: snapshot {snapshot} is still at the source; resume and cancel remove it"
            )
        }),
    }
}

fn write_cause(text: &mut String, vms: &[&VmRow]) -> fmt::Result {
    let first = vms[0];
    let error = clean(first.error.as_deref().unwrap_or_default());
    let errors: BTreeSet<&Option<String>> = vms.iter().map(|vm| &vm.error).collect();
    let similar = if errors.len() > 1 { "; similar for the others" } else { "" };
    let names: Vec<_> = vms.iter().map(|vm| clean(&vm.name)).collect();
    writeln!(text, "\n{}: {error}{similar}", count(vms.len(), "VM"))?;
    if let Some(advice) = &first.advice {
        writeln!(text, "  try: {}", clean(advice))?;
    }
    let snapshots = vms.iter().filter(|vm| vm.snapshot.is_some()).count();
    if snapshots > 0 {
        writeln!(
            text,
            "  {} still at the source; resume and cancel remove them",
            count(snapshots, "snapshot")
        )?;
    }
    writeln!(text, "  {}", some_of(&names, NAMES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::vm;

    fn filter(names: &[&str], waves: &[&str], states: &[&str]) -> VmFilter {
        let own = |list: &[&str]| list.iter().map(|it| it.to_string()).collect();
        VmFilter { names: own(names), waves: own(waves), states: own(states) }
    }

    #[test]
    fn every_state_of_the_store_is_shown_by_its_word() {
        for state in VmState::ALL {
            assert!(ShownState::ALL.contains(&ShownState::Of(state)), "{}", state.word());
        }
    }

    #[test]
    fn a_vm_fits_one_value_of_each_list_that_has_some() {
        let web = filter(&["web*", "db"], &["pilot"], &[]);
        assert!(web.fits("web01", Some("pilot"), "done") && web.fits("db", Some("pilot"), "queued"));
        assert!(!web.fits("web01", Some("rest"), "done") && !web.fits("web01", None, "done"));
        assert!(!web.fits("mail", Some("pilot"), "done"));
        let running = filter(&[], &[], &["running", "failed"]);
        assert!(["running", "interrupted", "failed"].iter().all(|state| running.fits("a", None, state)));
        assert!(!["waiting", "done"].iter().any(|state| running.fits("a", None, state)));
        assert!(VmFilter::default().is_empty() && VmFilter::default().fits("a", None, "done"));
    }

    #[test]
    fn of_a_large_plan_those_are_listed_that_somebody_has_to_know_of() {
        let states = |number: usize, word: &'static str| std::iter::repeat_n(("a", None, word), number);
        let small: Vec<_> = states(LISTED_MAX, "done").collect();
        assert_eq!(Extent::Short.listed(&small).len(), LISTED_MAX);
        let large: Vec<_> =
            states(3000, "done").chain(states(100, "waiting")).chain(states(2, "failed")).collect();
        let listed = Extent::Short.listed(&large);
        assert_eq!(listed[..3], [3100, 3101, 3000], "what failed is first");
        assert_eq!(listed.len(), 2 + LISTED_MAX);
        assert_eq!(Extent::Whole.listed(&large).len(), 3102);
        let cancelled: Vec<_> = states(109, "done").chain(states(1, "cancelled")).collect();
        assert_eq!(Extent::Short.listed(&cancelled), [109], "what was given up is no secret");
        let all = filter(&["*"], &[], &[]);
        assert_eq!(all.extent().listed(&large).len(), 3102);
        let words: Vec<&str> = large.iter().map(|(.., word)| *word).collect();
        assert_eq!(by_state(&words), "3102 VMs: 3000 done, 100 waiting, 2 failed");
        assert!(others(42, 3102).chars().count() <= 80 && others(7, 7).is_empty());
    }

    #[test]
    fn errors_of_many_vms_are_said_once_for_each_cause() {
        let failed = |at: usize, error: &str| VmRow {
            error: Some(error.replace("NAME", &format!("web{at}"))),
            advice: Some(format!("make room for web{at}")),
            snapshot: (at == 2).then(|| "snapshot-7".into()),
            ..vm("vm", &format!("web{at}"), VmState::Failed)
        };
        let mut rows: Vec<VmRow> =
            (1..8).map(|at| failed(at, "copy of NAME/Hard disk 1: no space")).collect();
        rows.push(failed(8, "NAME is encrypted"));
        let rows: Vec<&VmRow> = rows.iter().collect();
        let one = |text: &mut String, vm: &VmRow| writeln!(text, "{} alone", vm.name);
        let told = |errors| {
            let mut text = String::new();
            write_errors(&mut text, &rows, errors, one).unwrap();
            text
        };
        assert_eq!(
            told(Errors::ByCause(2)),
            "
7 VMs: copy of web1/Hard disk 1: no space; similar for the others
  try: make room for web1
  1 snapshot still at the source; resume and cancel remove them
  web1, web2, web3, web4, web5 and 2 more
web8 alone
"
        );
        assert_eq!(told(Errors::Each).lines().count(), 8);
        assert_eq!(told(Errors::ByCause(8)).lines().count(), 8);
        assert_eq!(
            (Extent::Short.errors(20), Extent::Whole.errors(3000)),
            (Errors::ByCause(4), Errors::Each)
        );
    }

    #[test]
    fn a_cause_is_the_same_whatever_the_file_the_offset_the_size_and_the_vm_are() {
        let full = |vm: &str, at: &str, free: &str| {
            let text = format!(
                "copy of {vm}/Hard disk 1: write of {at} on /vms/small/{vm}/{vm}-0.raw: No space left on device (os error 28), \
                 {free} free"
            );
            words_of_cause(&text, vm)
        };
        let one = full("db01", "0x2900000+0xa0000", "3.2 MiB");
        assert_eq!(one, full("db17", "0xd00000+0x100000", "0 B"));
        let other =
            words_of_cause("copy of db02/Hard disk 1: read of 0x0+0x1 on [ds1] db02: it is locked", "db02");
        assert_ne!(one, other);
        assert_ne!(words_of_cause("disk is 3 GiB", "a"), words_of_cause("disk is locked", "a"));
    }
}
