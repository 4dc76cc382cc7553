//! `drover plan waves`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use drover_engine::{Clock, SystemClock};
use drover_forecast::{Proposal, ProposedWave, WAVES_MAX, WaveRule, propose};
use drover_plan::{DraftMember, DraftWave, PlannedVm, draft_waves};
use drover_types::inventory::Vm;
use drover_types::{Opening, Window, Windows, counted};
use serde_json::json;

use super::plan;
use crate::cli::{PlanWavesArgs, WhatIfArgs};
use crate::exit::{Exit, Failure};
use crate::plan_file;
use crate::source::source_of;
use crate::state::state_folder;
use crate::what_if::{question, written};

/// Proposes waves that fit a window; changes nothing but the file that is asked for.
pub fn run(args: &PlanWavesArgs) -> Result<Exit, Failure> {
    let [window] = args.what_if.window.as_slice() else {
        return Err(Failure::new(Exit::Usage, "one window is needed for waves")
            .advise("give it as --window 22:00-06:00"));
    };
    check_output(args)?;
    let file = plan_file::read(&args.plan)?;
    let provider = source_of(&file, args.what_if.state.as_deref())?;
    let mut inventory = provider.inventory()?;
    provider.warnings().iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let resolution = plan::resolve_here(&file, &provider, &mut inventory);
    crate::out::problems_of(&file.path, &resolution.problems, &resolution.vms);
    let vms = resolution.vms;
    if vms.is_empty() {
        return Err(Failure::new(Exit::Plan, format!("plan {} moves no VM", file.plan.name)));
    }
    let written = written(&provider, &vms, &args.what_if);
    provider.close()?;
    let groups: Vec<String> = vms.iter().map(|vm| group_of(&vm.vm, args.tag.as_deref())).collect();
    let fleet = drover_foresight::fleet(&vms, 0, &inventory, &written);
    let what_if = WhatIfArgs { window: Vec::new(), ..args.what_if.clone() };
    let names = vec![file.plan.name.clone()];
    let budgets = drover_engine::budgets_of(&file.plan.limits);
    let state = state_folder(args.what_if.state.as_deref());
    let lines = drover_foresight::lines_of(&[&file.plan], &state);
    let mut question = question(fleet, names, BTreeMap::new(), budgets, lines, &what_if)?;
    if what_if.link.is_none() {
        question.sites = drover_foresight::sites_of(&[&file.plan], &state);
    }
    if what_if.hosts.is_none() {
        drover_foresight::limit_hosts(&mut question.hosts, &vms, |vm| {
            drover_foresight::host_of(vm, &inventory)
        });
    }
    let first = args.first.unwrap_or(SystemClock.now_ms()).max(0) as u64;
    // Each wave has the freezes of the plan.
    let freezes = file.plan.waves.first().map(|it| it.wave.window.freezes.clone()).unwrap_or_default();
    let spans = whole_windows(window, &freezes, first);
    let Some((opens, closes)) = spans.first().copied() else {
        return Err(Failure::new(Exit::Usage, format!("{window} does not open any more"))
            .advise("give a --window that does, or an earlier moment as --first"));
    };
    question.start_ms = opens;
    let chance = f64::from(args.chance) / 100.0;
    let mut rule = WaveRule { window_s: (closes - opens) as f64 / 1000.0, chance };
    // One more has the rest.
    let most = spans.len().min(WAVES_MAX - 1);
    let proposal = loop {
        let proposal = propose(&question, &groups, rule, most);
        // Where a clock is put forward, a window may be shorter than the first one.
        let shortest = spans.iter().take(proposal.waves.len()).map(|(from, to)| (to - from) as f64 / 1000.0);
        let shortest = shortest.fold(rule.window_s, f64::min);
        if shortest == rule.window_s {
            break proposal;
        }
        rule.window_s = shortest;
    };
    tell(args, &file.plan.name, &proposal, rule, window, &spans)?;
    if let Some(path) = &args.output {
        write(path, args.force, &draft_waves(&drafts(&proposal, &vms, &spans)))?;
        let what = if file.plan.waves.is_empty() {
            "add it to the end of"
        } else {
            "put it in the place of the waves of"
        };
        crate::out::say(format_args!("wrote {}; {what} {}", path.display(), args.plan.display()));
    }
    Ok(Exit::Success)
}

/// The next windows from a moment on that are whole, one for each wave that may be.
fn whole_windows(window: &Window, freezes: &Windows, from_ms: u64) -> Vec<(u64, u64)> {
    let spans = std::iter::successors(window.span_at(from_ms), |(_, closes)| window.span_at(*closes));
    let is_whole = |(opens, closes): &(u64, u64)| match freezes.at(*opens) {
        Opening::Open { .. } => false,
        Opening::At(freezes) => freezes >= *closes,
        Opening::Never => true,
    };
    spans.skip_while(|(opens, _)| *opens < from_ms).filter(is_whole).take(WAVES_MAX).collect()
}

/// What keeps a VM with others: its tag of the category, or else its folder.
fn group_of(vm: &Vm, category: Option<&str>) -> String {
    let of = |tag: &String| {
        category.is_some_and(|category| tag.split_once(':').is_some_and(|(it, _)| it == category))
    };
    match vm.tags.iter().find(|tag| of(tag)) {
        // Folders come after all tags.
        Some(tag) => format!("0{tag}"),
        None => format!("1{}", vm.folder),
    }
}

/// Each wave has a window of its own, and the rest none.
fn drafts(proposal: &Proposal, vms: &[PlannedVm], spans: &[(u64, u64)]) -> Vec<DraftWave> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    vms.iter().for_each(|vm| *names.entry(&vm.vm.name).or_default() += 1);
    let member = |at: &usize| {
        let vm = &vms[*at].vm;
        match names.get(vm.name.as_str()) {
            Some(1) => DraftMember::Name(vm.name.clone()),
            _ => DraftMember::Id(vm.id.clone(), vm.name.clone()),
        }
    };
    let spans = spans.iter().map(|(opens, closes)| Some((*opens as i64, *closes as i64)));
    let with_spans = proposal.waves.iter().zip(spans).chain(proposal.rest.iter().map(|rest| (rest, None)));
    let mut drafts: Vec<DraftWave> = Vec::new();
    for (wave, window_ms) in with_spans {
        let note = match window_ms {
            Some(_) => drover_view::proposed_note(wave),
            None => format!("{}; give it a window", drover_view::proposed_rest_note(wave)),
        };
        drafts.push(DraftWave {
            name: wave.name.clone(),
            note,
            after: drafts.last().map(|before| before.name.clone()),
            window_ms,
            vms: wave.places.iter().map(member).collect(),
        });
    }
    drafts
}

fn tell(
    args: &PlanWavesArgs,
    plan: &str,
    Proposal { waves, rest }: &Proposal,
    rule: WaveRule,
    window: &Window,
    spans: &[(u64, u64)],
) -> Result<(), Failure> {
    let opens: Vec<u64> = spans.iter().take(waves.len()).map(|(opens, _)| *opens).collect();
    if args.json {
        crate::out::json(format_args!(
            "{:#}",
            json!({ "plan": plan, "opens_ms": opens[0], "opens_each_ms": opens, "window_s": rule.window_s, "chance": rule.chance,
                "waves": waves, "rest": rest })
        ));
    } else {
        let opens: Vec<String> = opens.iter().map(|ms| window.moment(*ms)).collect();
        crate::out::print(&drover_view::proposed_waves_text(waves, &opens, rest.as_ref()));
    }
    for wave in waves.iter().filter(|wave| wave.chance < rule.chance) {
        crate::out::say(format_args!("warning: {}", too_small(wave)));
    }
    if let Some(rest) = rest {
        crate::out::say(format_args!("warning: {}", rest_words(rest, waves.len(), window, spans)));
    }
    Ok(())
}

/// Why a wave does not fit its window with the chance that was asked for.
fn too_small(wave: &ProposedWave) -> String {
    let (name, percent) = (&wave.name, (wave.chance * 100.0).floor());
    match wave.vms.as_slice() {
        [vm] => {
            let vm = drover_view::clean(vm);
            format!(
                "{name}: {vm} alone fits the window with {percent} %; move it warm, or give it a longer window"
            )
        }
        vms => format!(
            "{name}: its {} VMs fit the window with {percent} %; take some of them out, or give it a longer window",
            vms.len()
        ),
    }
}

/// Why VMs are left.
fn rest_words(rest: &ProposedWave, waves: usize, window: &Window, spans: &[(u64, u64)]) -> String {
    let why = match waves < spans.len() {
        true => format!("no more than {} made", counted(waves, "wave", "is", "are")),
        false => format!("{window} opens no more"),
    };
    let left = counted(rest.vms.len(), "VM", "is", "are");
    format!(
        "{left} left in wave {}, which has no window, for {why}; give it one, or use a longer --window",
        rest.name
    )
}

/// Before anything is asked: minutes of a simulation are not to end in a refusal.
fn check_output(args: &PlanWavesArgs) -> Result<(), Failure> {
    match &args.output {
        Some(path) if path.exists() && !args.force => Err(is_there(path)),
        _ => Ok(()),
    }
}

fn is_there(path: &Path) -> Failure {
    Failure::new(Exit::Target, format!("{} is there already", path.display()))
        .advise("choose another name, or give --force to overwrite it")
}

fn write(path: &Path, force: bool, text: &str) -> Result<(), Failure> {
    if !force {
        return plan::write_new(path, text);
    }
    std::fs::write(path, text)
        .map_err(|error| Failure::new(Exit::Target, format!("writing {}: {error}", path.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn waves_get_whole_windows() {
        let night: Window = "22:00-06:00".parse().unwrap();
        let (hour, day) = (3_600_000, 86_400_000);
        let opens = 100 * day + 22 * hour;
        let none = Windows::default();
        for from in [opens - hour, opens] {
            let whole = whole_windows(&night, &none, from);
            assert_eq!(whole[..2], [(opens, opens + 8 * hour), (opens + day, opens + day + 8 * hour)]);
            assert_eq!(whole.len(), WAVES_MAX);
        }
        assert_eq!(
            whole_windows(&night, &none, opens + 1)[0].0,
            opens + day,
            "one that has begun is too short"
        );
        let once: Window = "1970-04-11 22:00-06:00".parse().unwrap();
        assert_eq!(whole_windows(&once, &none, opens), [(opens, opens + 8 * hour)]);
        assert_eq!(whole_windows(&once, &none, opens + 1), []);
        let frozen = Windows(vec!["1970-04-12 - 1970-04-13".parse().unwrap()]);
        assert_eq!(
            whole_windows(&night, &frozen, opens)[0].0,
            opens + 3 * day,
            "the first ends in the freeze"
        );
    }

    #[test]
    fn tags_keep_vms_together_and_folders_those_without() {
        let vm = |tags: &[&str]| Vm {
            folder: "prod".into(),
            tags: tags.iter().map(|tag| tag.to_string()).collect(),
            ..Vm::default()
        };
        assert_eq!(group_of(&vm(&["env:prod", "app:shop"]), Some("app")), "0app:shop");
        assert_eq!(group_of(&vm(&["env:prod"]), Some("app")), "1prod");
        assert_eq!(group_of(&vm(&["app:shop"]), None), "1prod");
    }

    #[test]
    fn a_warning_says_whether_one_vm_or_several_do_not_fit_and_why_some_are_left() {
        let wave = |vms: &[&str]| ProposedWave {
            name: "wave-1".into(),
            vms: vms.iter().map(|it| it.to_string()).collect(),
            places: Vec::new(),
            bytes: 0,
            makespan_s: drover_forecast::Spread::default(),
            chance: 0.899,
        };
        let one = "wave-1: web alone fits the window with 89 %; move it warm, or give it a longer window";
        assert_eq!(too_small(&wave(&["web"])), one);
        let two = too_small(&wave(&["web", "db"]));
        assert!(two.starts_with("wave-1: its 2 VMs fit the window with 89 %;"), "{two}");
        let window: Window = "2026-12-12 20:00-23:00".parse().unwrap();
        let once = rest_words(&wave(&["web", "db"]), 1, &window, &[(0, 1)]);
        assert!(
            once.starts_with("2 VMs are left in wave wave-1, which has no window, for 2026-12-12"),
            "{once}"
        );
        assert!(once.contains("opens no more"), "{once}");
        let many = rest_words(&wave(&["web"]), 1, &window, &[(0, 1), (2, 3)]);
        assert!(many.starts_with("1 VM is left") && many.contains("no more than 1 wave is made"), "{many}");
    }
}
