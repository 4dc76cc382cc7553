//! `drover plan waves`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use drover_engine::{Clock, SystemClock};
use drover_forecast::{ProposedWave, WAVES_MAX, WaveRule, propose};
use drover_plan::{DraftMember, DraftWave, PlannedVm, draft_waves};
use drover_types::Hours;
use drover_types::inventory::Vm;
use serde_json::json;

use super::plan;
use crate::cli::{PlanWavesArgs, WhatIfArgs};
use crate::exit::{Exit, Failure};
use crate::foresight;
use crate::plan_file;
use crate::provider::Provider;

/// Proposes waves that fit a window; changes nothing but the file that is asked for.
pub fn run(args: &PlanWavesArgs) -> Result<Exit, Failure> {
    let [hours] = args.what_if.window[..] else {
        return Err(Failure::new(Exit::Usage, "one window is needed for waves")
            .advise("give it as --window 22:00-06:00"));
    };
    check_output(args)?;
    let file = plan_file::read(&args.plan)?;
    let provider = Provider::open(&file, args.what_if.state.as_deref())?;
    let mut inventory = provider.inventory()?;
    provider.warnings().iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let resolution = plan::resolve_here(&file, &provider, &mut inventory);
    crate::out::problems(&file.path, &resolution.problems);
    let vms = resolution.vms;
    if vms.is_empty() {
        return Err(Failure::new(Exit::Plan, format!("plan {} moves no VM", file.plan.name)));
    }
    let written = foresight::written(&provider, &vms, &args.what_if);
    provider.close()?;
    let groups: Vec<String> = vms.iter().map(|vm| group_of(&vm.vm, args.tag.as_deref())).collect();
    let fleet = foresight::fleet(&vms, 0, &inventory, &written);
    let what_if = WhatIfArgs { window: Vec::new(), ..args.what_if.clone() };
    let names = vec![file.plan.name.clone()];
    let budgets = drover_engine::budgets_of(&file.plan.limits);
    let lines = foresight::lines_of(&[&file.plan], args.what_if.state.as_deref());
    let mut question = foresight::question(fleet, names, BTreeMap::new(), budgets, lines, &what_if)?;
    if what_if.hosts.is_none() {
        foresight::limit_hosts(&mut question.hosts, &vms, |vm| foresight::host_of(vm, &inventory));
    }
    let first = args.first.unwrap_or(SystemClock.now_ms()).max(0) as u64;
    let (opens, closes) = first_window(hours, first);
    question.start_ms = opens;
    let rule =
        WaveRule { window_s: (closes - opens) as f64 / 1000.0, chance: f64::from(args.chance) / 100.0 };
    let waves = propose(&question, &groups, rule);
    let placed: usize = waves.iter().map(|wave| wave.places.len()).sum();
    if placed < vms.len() {
        let left = vms.len() - placed;
        return Err(Failure::new(
            Exit::Plan,
            format!("{WAVES_MAX} waves are not enough: {left} VMs are left"),
        )
        .advise("use a longer --window, or make several plans of it"));
    }
    tell(args, &file.plan.name, &waves, rule, opens)?;
    if let Some(path) = &args.output {
        write(path, args.force, &draft_waves(&drafts(&waves, &vms, (opens, closes))))?;
        let what = if file.plan.waves.is_empty() {
            "add it to the end of"
        } else {
            "put it in the place of the waves of"
        };
        crate::out::say(format_args!("wrote {}; {what} {}", path.display(), args.plan.display()));
    }
    Ok(Exit::Success)
}

/// The first whole window from a moment on.
fn first_window(hours: Hours, from_ms: u64) -> (u64, u64) {
    let (opens, closes) = hours.span_at(from_ms);
    if opens < from_ms { hours.span_at(closes) } else { (opens, closes) }
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

/// Milliseconds of a day: each wave has the window of its own day.
const DAY_MS: u64 = 86_400_000;

fn drafts(waves: &[ProposedWave], vms: &[PlannedVm], (opens, closes): (u64, u64)) -> Vec<DraftWave> {
    let mut names: HashMap<&str, usize> = HashMap::new();
    vms.iter().for_each(|vm| *names.entry(&vm.vm.name).or_default() += 1);
    let member = |at: &usize| {
        let vm = &vms[*at].vm;
        match names.get(vm.name.as_str()) {
            Some(1) => DraftMember::Name(vm.name.clone()),
            _ => DraftMember::Id(vm.id.clone(), vm.name.clone()),
        }
    };
    let draft = |(number, wave): (usize, &ProposedWave)| DraftWave {
        name: wave.name.clone(),
        note: drover_view::proposed_note(wave),
        after: number.checked_sub(1).map(|before| waves[before].name.clone()),
        from_ms: (opens + number as u64 * DAY_MS) as i64,
        until_ms: (closes + number as u64 * DAY_MS) as i64,
        vms: wave.places.iter().map(member).collect(),
    };
    waves.iter().enumerate().map(draft).collect()
}

fn tell(
    args: &PlanWavesArgs,
    plan: &str,
    waves: &[ProposedWave],
    rule: WaveRule,
    opens: u64,
) -> Result<(), Failure> {
    if args.json {
        crate::out::json(format_args!(
            "{:#}",
            json!({ "plan": plan, "opens_ms": opens, "window_s": rule.window_s, "chance": rule.chance, "waves": waves })
        ));
    } else {
        crate::out::print(&drover_view::proposed_waves_text(waves, opens as i64));
    }
    for wave in waves.iter().filter(|wave| wave.chance < rule.chance) {
        let name = drover_view::clean(&wave.vms[0]).into_owned();
        crate::out::say(format_args!(
            "warning: {}: {name} alone does not fit the window with that chance; move it warm, or give it a longer window",
            wave.name
        ));
    }
    Ok(())
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
    fn the_first_window_is_a_whole_one() {
        let night: Hours = "22:00-06:00".parse().unwrap();
        let hour = 3_600_000;
        let opens = 100 * DAY_MS + 22 * hour;
        assert_eq!(first_window(night, opens - hour), (opens, opens + 8 * hour));
        assert_eq!(first_window(night, opens), (opens, opens + 8 * hour));
        assert_eq!(first_window(night, opens + 1).0, opens + DAY_MS, "one that has begun is too short");
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
}
