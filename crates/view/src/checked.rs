//! What a check found about many VMs, said once for all that share it: problems of the plan, and what is worth knowing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use drover_plan::{Concern, PlannedVm, Problem, Weight};

use crate::problems::problems_text;
use crate::text::{clean, count, width};

/// A VM that a check is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedVm {
    /// Name at the source.
    pub name: String,
    /// Name at the target.
    pub target_name: String,
    /// Host that runs it; empty if not told.
    pub host: String,
}

impl From<&PlannedVm> for CheckedVm {
    fn from(vm: &PlannedVm) -> CheckedVm {
        CheckedVm {
            name: vm.vm.name.clone(),
            target_name: vm.target_name.clone(),
            host: vm.host_name.clone().unwrap_or_default(),
        }
    }
}

/// The VMs of a check, and whether each is to be named.
#[derive(Debug)]
pub struct Grouping<'a> {
    vms: &'a [CheckedVm],
    by_name: HashMap<&'a str, usize>,
    names_all: bool,
}

/// Hosts named for a group; the others are counted.
const HOSTS_SHOWN: usize = 3;
/// So many VMs are always named.
const NAMED_MAX: usize = 4;
/// Columns of lines with names.
const COLUMNS: usize = 80;

/// What several VMs share.
#[derive(Debug)]
struct Group<T> {
    first: T,
    /// Words of the first, without the VM's name.
    words: String,
    /// Whether those of others are not the same.
    differs: bool,
    vms: Vec<usize>,
}

impl<'a> Grouping<'a> {
    /// Of these VMs; `names_all`: the members of each group are named.
    pub fn new(vms: &'a [CheckedVm], names_all: bool) -> Grouping<'a> {
        let names = vms.iter().enumerate().flat_map(|(at, vm)| [(&*vm.target_name, at), (&*vm.name, at)]);
        Grouping { vms, by_name: names.filter(|(name, _)| !name.is_empty()).collect(), names_all }
    }

    /// The VM that a sentence is about, by its position, and the sentence without its name. A name may have blanks; the
    /// longest counts.
    pub fn about<'t>(&self, text: &'t str) -> Option<(usize, &'t str)> {
        let ends = text.char_indices().filter(|(_, c)| [' ', ':', '/'].contains(c)).map(|(at, _)| at);
        let named = |end: usize| Some((*self.by_name.get(&text[..end])?, end));
        let (vm, end) = ends.filter_map(named).next_back()?;
        Some((vm, text[end..].trim_start_matches([' ', ':', '/'])))
    }

    /// Problems as compilers write them; those that VMs share are one.
    pub fn problems(&self, file: &Path, problems: &[Problem]) -> String {
        let mut order: Vec<Result<&Problem, usize>> = Vec::new();
        let mut groups: Vec<Group<&Problem>> = Vec::new();
        let mut by_key: HashMap<_, usize> = HashMap::new();
        for problem in problems {
            let Some((vm, words)) = self.about(&problem.message) else {
                order.push(Ok(problem));
                continue;
            };
            let key = (
                problem.is_error(),
                without_numbers(&problem.path),
                without_numbers(words),
                problem.advice.as_deref().map(without_numbers),
            );
            let at = *by_key.entry(key).or_insert_with(|| {
                order.push(Err(groups.len()));
                groups.push(Group::new(problem, words));
                groups.len() - 1
            });
            groups[at].add(vm, words);
        }
        let text = |it: Result<&Problem, usize>| match it {
            Ok(problem) => problems_text(file, std::slice::from_ref(problem)),
            Err(at) => self.problem(file, &groups[at]),
        };
        order.into_iter().map(text).collect()
    }

    fn problem(&self, file: &Path, group: &Group<&Problem>) -> String {
        let message = match group.vms.as_slice() {
            [_] => group.first.message.clone(),
            _ => self.sentence(group),
        };
        let problem = Problem { message, ..group.first.clone() };
        problems_text(file, &[problem]) + &self.names(&group.vms)
    }

    /// What is worth knowing and stops nothing, the warnings first.
    pub fn concerns<'c>(&self, concerns: impl IntoIterator<Item = &'c Concern>) -> String {
        let mut groups: BTreeMap<(Weight, &str, &str), Group<&Concern>> = BTreeMap::new();
        for concern in concerns.into_iter().filter(|concern| concern.severity != Weight::Blocks) {
            let about = format!("{}: {}", concern.subject, concern.message);
            let Some((vm, words)) = self.about(&about) else { continue };
            let key = (concern.severity, concern.id.as_str(), concern.advice.as_str());
            groups.entry(key).or_insert_with(|| Group::new(concern, words)).add(vm, words);
        }
        groups.values().map(|group| self.concern(group)).collect()
    }

    fn concern(&self, group: &Group<&Concern>) -> String {
        let word = if group.first.severity == Weight::Warning { "warning" } else { "note" };
        let text = match group.vms.as_slice() {
            [_] => format!("{}: {}", group.first.subject, group.first.message),
            _ => self.sentence(group),
        };
        let advice = &group.first.advice;
        let advice = if advice.is_empty() { String::new() } else { format!(" ({})", clean(advice)) };
        format!("{word}: {}{advice}\n{}", clean(&text), self.names(&group.vms))
    }

    /// `300 VMs on esx1: is encrypted`.
    fn sentence<T>(&self, group: &Group<T>) -> String {
        let more = if group.differs { "; similar for the others" } else { "" };
        let on = self.hosts(&group.vms);
        format!("{} VMs{on}: {}{more}", group.vms.len(), group.words)
    }

    /// ` on esx1`, ` (200 on esx1, 100 on esx2)`; nothing where no host is told.
    fn hosts(&self, vms: &[usize]) -> String {
        let mut by_host: BTreeMap<&str, usize> = BTreeMap::new();
        vms.iter().for_each(|at| *by_host.entry(&self.vms[*at].host).or_default() += 1);
        let mut hosts: Vec<(&str, usize)> = by_host.into_iter().collect();
        hosts.sort_by(|one, two| two.1.cmp(&one.1).then(one.0.cmp(two.0)));
        match hosts.as_slice() {
            [("", _)] | [] => String::new(),
            [(host, _)] => format!(" on {host}"),
            hosts => {
                let part = |(host, number): &(&str, usize)| match *host {
                    "" => format!("{number} on no known host"),
                    host => format!("{number} on {host}"),
                };
                let mut parts: Vec<String> = hosts.iter().take(HOSTS_SHOWN).map(part).collect();
                let rest = hosts.get(HOSTS_SHOWN..).unwrap_or_default();
                let others: usize = rest.iter().map(|(_, number)| number).sum();
                parts.extend((others > 0).then(|| format!("{others} on {}", count(rest.len(), "more host"))));
                format!(" ({})", parts.join(", "))
            }
        }
    }

    /// The names of several VMs on lines of their own, if they are few or to be named.
    fn names(&self, vms: &[usize]) -> String {
        if vms.len() < 2 || (vms.len() > NAMED_MAX && !self.names_all) {
            return String::new();
        }
        let (mut text, mut line) = (String::new(), String::from("   "));
        for (at, vm) in vms.iter().enumerate() {
            let end = if at + 1 == vms.len() { "" } else { "," };
            let word = format!(" {}{end}", clean(&self.vms[*vm].name));
            if line.len() > 3 && width(&line) + width(&word) > COLUMNS {
                text.extend([&*line, "\n"]);
                line = String::from("   ");
            }
            line.push_str(&word);
        }
        text + &line + "\n"
    }
}

impl<T> Group<T> {
    fn new(first: T, words: &str) -> Group<T> {
        Group { first, words: words.to_string(), differs: false, vms: Vec::new() }
    }

    fn add(&mut self, vm: usize, words: &str) {
        self.differs |= self.words != words;
        // Several disks of a VM may share it.
        if self.vms.last() != Some(&vm) {
            self.vms.push(vm);
        }
    }
}

/// A sentence without what is a VM's own in it: numbers, whether they count one or many, and words in quotes or brackets.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut is_counted = false;
    let singular = |word: &'_ str| {
        let bare = if is_counted { word.strip_suffix('s').unwrap_or(word) } else { word };
        is_counted = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
        bare.to_string()
    };
    let text = text.split(' ').map(singular).collect::<Vec<String>>().join(" ");
    let (mut kept, mut end) = (String::new(), None);
    for c in text.chars() {
        match (end, c) {
            (Some(mark), c) if c == mark => end = None,
            (Some(_), _) => {}
            (None, '(') => end = Some(')'),
            (None, '\'') => end = Some('\''),
            (None, c) if c.is_ascii_digit() => {}
            (None, c) => kept.push(c),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use drover_plan::At;

    use super::*;

    fn fleet(number: usize) -> Vec<CheckedVm> {
        let vm = |at: usize| CheckedVm {
            name: format!("web {at:04}"),
            target_name: format!("web-{at:04}"),
            host: if at.is_multiple_of(3) { "esx2" } else { "esx1" }.into(),
        };
        (0..number).map(vm).collect()
    }

    fn concern(id: &str, severity: Weight, subject: &str, message: &str) -> Concern {
        Concern {
            id: id.into(),
            severity,
            subject: subject.into(),
            message: message.into(),
            advice: "switch it on".into(),
        }
    }

    #[test]
    fn what_a_fleet_shares_is_said_once_and_a_few_screens_hold_it() {
        let vms = fleet(3000);
        let concerns: Vec<Concern> = vms
            .iter()
            .enumerate()
            .flat_map(|(at, vm)| {
                [
                    concern("cbt-off", Weight::Info, &vm.name, "change tracking is off"),
                    concern("running", Weight::Warning, &vm.name, "is running"),
                    concern(
                        "large-disk",
                        Weight::Info,
                        &format!("{}/Hard disk 1", vm.name),
                        &format!("is large ({at} TB)"),
                    ),
                ]
            })
            .collect();
        let text = Grouping::new(&vms, false).concerns(&concerns);
        assert_eq!(
            text,
            "warning: 3000 VMs (2000 on esx1, 1000 on esx2): is running (switch it on)\n\
             note: 3000 VMs (2000 on esx1, 1000 on esx2): change tracking is off (switch it on)\n\
             note: 3000 VMs (2000 on esx1, 1000 on esx2): Hard disk 1: is large (0 TB); similar for the others (switch it on)\n"
        );
        let on_one: Vec<CheckedVm> = vms.iter().filter(|vm| vm.host == "esx1").cloned().collect();
        let of_one = Grouping::new(&on_one, false).concerns(&concerns);
        assert!(of_one.starts_with("warning: 2000 VMs on esx1: is running"), "{of_one}");
        let named = Grouping::new(&vms[..30], true).concerns(&concerns);
        let names: Vec<&str> = named.lines().filter(|line| line.starts_with("    ")).collect();
        assert!(names.iter().all(|line| line.len() <= 80) && names[0].starts_with("    web 0000, web 0001,"));
        assert_eq!(named.matches("web 0029\n").count(), 3, "each group names all: {named}");
    }

    #[test]
    fn problems_of_many_vms_are_one_and_those_of_the_plan_stay() {
        let vms = fleet(300);
        let of = |at: usize, message: String| {
            Problem::error(format!("vms[{at}]"), message)
                .at(At { line: 10 + at as u32, column: 5 })
                .advise("remove them")
        };
        let mut problems: Vec<Problem> = (0..300)
            .map(|at| {
                of(
                    at,
                    format!(
                        "web {at:04} has {} (a, b{at}): base disks lack changes",
                        count(1 + at % 4, "snapshot")
                    ),
                )
            })
            .collect();
        problems.insert(1, Problem::error("networks", "there is no bridge br7"));
        problems.push(of(4, "web 0004 is encrypted".into()));
        let text = Grouping::new(&vms, false).problems(Path::new("p.yaml"), &problems);
        assert_eq!(
            text,
            "p.yaml:10:5: error: vms[0]: 300 VMs (200 on esx1, 100 on esx2): has 1 snapshot (a, b0): base disks lack changes; similar for the others\n\
             \x20 try: remove them\n\
             p.yaml: error: networks: there is no bridge br7\n\
             p.yaml:14:5: error: vms[4]: web 0004 is encrypted\n\
             \x20 try: remove them\n"
        );
    }

    #[test]
    fn a_sentence_is_about_the_longest_name_that_it_begins_with() {
        let vms = ["web", "web 1", "db"].map(|name| CheckedVm { name: name.into(), ..CheckedVm::default() });
        let grouping = Grouping::new(&vms, false);
        assert_eq!(grouping.about("web 1/Hard disk 2: is large"), Some((1, "Hard disk 2: is large")));
        assert_eq!(grouping.about("web is off"), Some((0, "is off")));
        assert_eq!(grouping.about("webcam is off"), None);
        assert_eq!(grouping.about("db"), None, "a name alone says nothing");
    }
}
