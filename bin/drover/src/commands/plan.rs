//! `drover plan`: new, check, schema.

use std::path::{Path, PathBuf};

use drover_engine::deadlines::{manual_in_windows, past_moments, past_waves, past_windows};
use drover_engine::{Clock, Store, StoreError, SystemClock, others_have};
use drover_landing::look::Inspected;
use drover_landing::{PlanPolicy, PlanTarget, far, found, room_problems};
use drover_mover::StopSignal;
use drover_plan::nfc::HostNfc;
use drover_plan::{
    Begun, Concern, DraftOptions, DraftSource, ManifestUse, OvaSource, PlannedVm, Problem, Resolution,
    TargetHost, Weight, resolve,
};
use drover_source::{PlanSource, appliance, hide_own_snapshots};
use drover_types::inventory::Inventory;
use drover_types::{Bytes, some_of};
use drover_view::{clean, count};

use crate::cli::{PlanCheckArgs, PlanNewArgs};
use crate::commands::inventory::{Counters, ask, check_wanted};
use crate::evidence::check_not_anothers;
use crate::exit::{Exit, Failure};
use crate::files::read_text;
use crate::hooks::hook_problems;
use crate::inspection::{self, inspect_plan};
use crate::landing;
use crate::plan_file::{self, PlanFile};
use crate::signals::stop_on_signals;
use crate::source::source_of;
use crate::state::{begun_in, state_folder, store_here};

mod shown;
mod tight;

use shown::Shown;
pub use shown::told_hosts;

/// Lays a plan over an inventory, and judges this machine too; touches nothing.
pub fn resolve_here(file: &PlanFile, provider: &PlanSource, inventory: &mut Inventory) -> Resolution {
    let mut resolution = lay_over(file, inventory);
    judge_here(file, provider, inventory, &mut resolution);
    resolution
}

/// The first part of [`resolve_here`]: what comes after it looks at no VM of the inventory.
pub fn lay_over(file: &PlanFile, inventory: &mut Inventory) -> Resolution {
    hide_own_snapshots(inventory, &file.plan.name);
    resolve(&file.plan, inventory)
}

/// The second part: what this machine and the source give the plan.
pub fn judge_here(
    file: &PlanFile,
    provider: &PlanSource,
    inventory: &Inventory,
    resolution: &mut Resolution,
) {
    provider.share_out(&file.plan, resolution, inventory);
    let of_source = provider.problems(&file.plan, resolution, inventory);
    resolution.problems.extend(of_source);
    resolution.problems.extend(room_problems(&file.plan, resolution));
}

/// Adds what stands against a resolution besides the plan itself, in one order for a check and a run: moments and windows
/// that are over, hooks, the hosts and the site of the target, proxies, which are looked at closely if asked for. Gives a
/// line about the site.
pub fn judge(
    file: &PlanFile,
    resolution: &mut Resolution,
    begun: &[Begun],
    (provider, target): (&PlanSource, &PlanTarget),
    closely: bool,
) -> String {
    let now_ms = SystemClock.now_ms();
    resolution.problems.extend(past_moments(&resolution.vms, begun, now_ms));
    resolution.problems.extend(hook_problems(&file.plan, &file.folder));
    resolution.problems.extend(past_waves(&file.plan, &resolution.vms, begun, now_ms));
    resolution.problems.extend(manual_in_windows(&file.plan, &resolution.vms, now_ms));
    target.survey(resolution, begun);
    let site = far_summary(file, resolution, target);
    resolution.problems.extend(provider.proxy_problems(resolution, closely));
    site
}

/// What a plan is, held against its source and this machine.
pub struct Checked {
    pub resolution: Resolution,
    /// What the user may not do at the source.
    pub rights: Vec<Problem>,
    /// Which hosts of the source cannot be reached for disks.
    pub at_hosts: Vec<Problem>,
    /// What stands in the way at the target.
    pub at_target: Vec<Problem>,
    target: PlanTarget,
    begun: Vec<Begun>,
    inspected: Vec<Inspected>,
    nfc: Vec<HostNfc>,
    /// About the machine and the site, for people.
    told: String,
}

impl Checked {
    /// Everything that was found.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.resolution.problems.iter().chain(&self.at_target).chain(&self.rights).chain(&self.at_hosts)
    }
}

/// Holds a plan against its source, its target and this machine; touches nothing. Looks into its VMs before they are held against the
/// target, if there is a signal that ends the look.
pub fn check_online(
    file: &PlanFile,
    state: Option<&Path>,
    policy: Option<&PlanPolicy>,
    look: Option<&StopSignal>,
) -> Result<Checked, Failure> {
    policy.map_or(Ok(()), |policy| policy.check_plan(&file.plan))?;
    let provider = source_of(file, state)?;
    let mut inventory = provider.inventory()?;
    provider.find_proxies(&file.plan, &inventory);
    let mut resolution = resolve_here(file, &provider, &mut inventory);
    policy.map_or(Ok(()), |policy| policy.check_vms(&file.plan, &resolution.vms))?;
    let nfc = provider.share_out(&file.plan, &mut resolution, &inventory);
    let rights = provider.rights(&resolution, &inventory)?;
    let target = landing::target_of(file, &inventory.about, state, &StopSignal::default());
    let store = store_here(state);
    let begun = store.as_ref().map(|store| begun_in(store, &file.plan.name)).unwrap_or_default();
    found::recall(&state_folder(state), &mut resolution.vms);
    let inspected = match look {
        Some(stop) => inspect_plan(file, state, &mut resolution, stop)?,
        None => Vec::new(),
    };
    let site = judge(file, &mut resolution, &begun, (&provider, &target), true);
    if let Some(store) = &store {
        resolution.problems.extend(anothers(file, store));
        resolution.problems.extend(others_have(&file.plan, &resolution.vms, &begun, store));
    }
    resolution.problems.extend(tight::too_short(file, &resolution.vms, &inventory, &begun, state));
    let at_hosts = provider.host_problems(&resolution.vms, &begun);
    let mut at_target = target.problems(&resolution.vms);
    if let Some(stop) = look {
        at_target.extend(inspected.iter().filter_map(|it| it.at_target(&resolution, &target, stop)));
    }
    let way = provider.way().map_or(String::new(), |way| format!("disks are {way}\n"));
    let hosts = told_hosts(&resolution, crate::log::is_verbose()) + &target.told_ways(&resolution.vms);
    let told = site + &hosts + &way + &nfc_sums(&nfc, &inventory);
    Ok(Checked { resolution, rights, at_hosts, at_target, target, begun, inspected, nfc, told })
}

/// `drover plan check`.
pub fn check(args: &PlanCheckArgs) -> Result<Exit, Failure> {
    let file = plan_file::read(&args.plan)?;
    if args.offline {
        let mut problems = file.plan.warnings.clone();
        problems.extend(past_windows(&file.plan, SystemClock.now_ms()));
        problems.extend(hook_problems(&file.plan, &file.folder));
        match args.json {
            true => print_json(&serde_json::json!({ "problems": problems, "nfc": [], "hosts": [] })),
            false => crate::out::problems(&file.path, &problems),
        }
        return verdict(&problems, Exit::Plan, args);
    }
    let stop = args.inspect.then(stop_on_signals).transpose();
    let stop = stop.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let mut checked = check_online(&file, args.state.as_deref(), None, stop.as_ref())?;
    let is_begun = |vm: &PlannedVm| checked.begun.iter().any(|it| it.planned.vm.id == vm.vm.id);
    let is_known = |vm: &&PlannedVm| checked.inspected.iter().any(|it| it.tells_of(vm)) || is_begun(vm);
    // A target that cannot be reached is not asked once more.
    if !checked.problems().any(Problem::is_error) {
        let unknown = checked.resolution.vms.iter().filter(|vm| !is_known(vm));
        let unsure = checked.target.unsure(unknown, args.inspect);
        checked.at_target.extend(unsure);
    }
    // As a run ends that finds the same: the plan itself, then rights, hosts, and what stands in the way at the target.
    let exit = if checked.resolution.problems.iter().any(Problem::is_error) {
        Exit::Plan
    } else if checked.rights.iter().any(Problem::is_error) {
        Exit::Access
    } else if checked.at_hosts.iter().any(Problem::is_error) {
        Exit::Connection
    } else {
        Exit::Target
    };
    let problems: Vec<Problem> = checked.problems().cloned().collect();
    let shown = Shown::new(&checked.resolution, &problems, args, crate::log::is_verbose())?;
    if args.json {
        let mut found = serde_json::json!({
            "problems": shown.of(&problems), "vms": shown.json(), "nfc": checked.nfc,
            "hosts": host_documents(&checked.resolution),
        });
        if args.inspect {
            found["inspected"] = checked.inspected.iter().map(inspection::json).collect();
        }
        print_json(&found);
    } else {
        let seen = checked.inspected.iter().map(inspection::line).filter(|line| shown.has(line));
        let seen: String = seen.collect();
        let (passes, unknown) = told_by_passes(&file.plan.name, args.state.as_deref());
        let head = summary(&checked.resolution) + &shown.head();
        crate::out::print(&(head + &checked.told + &seen + &shown.concerns(&passes) + &unknown));
        let text = shown.problems(&file.path, &shown.of(&problems));
        if !text.is_empty() {
            crate::out::say(text.trim_end());
        }
    }
    verdict(&problems, exit, args)
}

fn print_json(found: &serde_json::Value) {
    crate::out::json(format_args!("{found:#}"));
}

/// How a check ends that found these problems; `exit` if one of them is an error.
fn verdict(problems: &[Problem], exit: Exit, args: &PlanCheckArgs) -> Result<Exit, Failure> {
    let errors = problems.iter().filter(|problem| problem.is_error()).count();
    if errors > 0 {
        return Err(Failure::new(
            exit,
            format!("the plan has {}; nothing was touched", count(errors, "error")),
        ));
    }
    if !args.json {
        crate::out::line("the plan is fine; nothing was touched");
        crate::out::line(format_args!("next: drover migrate {}", args.plan.display()));
    }
    Ok(Exit::Success)
}

/// Asks the site that the plan goes to, if it goes to one, adds what stands in the way, and gives a line about it.
fn far_summary(file: &PlanFile, resolution: &mut Resolution, target: &PlanTarget) -> String {
    let Some(site) = target.site() else { return String::new() };
    let found = far::ask(&file.plan, resolution, site);
    let line = found.summary(file.plan.target.via.as_deref().unwrap_or_default());
    resolution.problems.extend(found.problems);
    line
}

fn host_documents(resolution: &Resolution) -> Vec<serde_json::Value> {
    let placed = resolution.vms.iter().filter_map(|vm| Some((vm, vm.target_host.as_ref()?)));
    let document = |(vm, host): (&PlannedVm, &TargetHost)| serde_json::json!({"vm": vm.target_name, "host": host.name, "why": host.why});
    placed.map(document).collect()
}

/// A file that would take over another's plan; nothing where the state cannot be looked at.
fn anothers(file: &PlanFile, store: &Store) -> Option<Problem> {
    let refused = check_not_anothers(store, file).ok()??;
    let problem = Problem::error("name", refused.message);
    Some(refused.advice.into_iter().fold(problem, Problem::advise))
}

/// What the passes so far tell of a plan that was begun, and why that is not known; nothing if it was not begun.
fn told_by_passes(plan: &str, state: Option<&Path>) -> (Vec<Concern>, String) {
    let folder = state_folder(state);
    if !Store::is_there(&folder) {
        return (Vec::new(), String::new());
    }
    let concern = |name: String, message: String| Concern {
        id: "passes".into(),
        severity: Weight::Warning,
        subject: name,
        message,
        advice: String::new(),
    };
    let hints = || -> Result<Vec<Concern>, StoreError> {
        let store = Store::open_to_read(&folder)?;
        let mut hints = Vec::new();
        for vm in store.vms(plan)? {
            hints.extend(store.warm(plan, &vm.id)?.hint.map(|hint| concern(vm.name, hint)));
        }
        Ok(hints)
    };
    match hints() {
        Ok(hints) => (hints, String::new()),
        // A plan can be checked by users who may not see what became of others' runs.
        Err(error) => (Vec::new(), format!("note: what earlier passes tell is not known: {error}\n")),
    }
}

/// What the plan takes of each host's NFC server.
fn nfc_sums(hosts: &[HostNfc], inventory: &Inventory) -> String {
    let name =
        |host: &HostNfc| inventory.host(&host.host_id).map_or(host.host_id.clone(), |it| it.name.clone());
    hosts.iter().map(|host| format!("NFC of {}: {}\n", clean(&name(host)), host.words())).collect()
}

fn summary(resolution: &Resolution) -> String {
    let disks: usize = resolution.vms.iter().map(|vm| vm.disks.len()).sum();
    let bytes = resolution.vms.iter().fold(0u64, |sum, vm| sum.saturating_add(vm.capacity_bytes()));
    let (vms, disks) = (count(resolution.vms.len(), "VM"), count(disks, "disk"));
    format!("{vms} with {disks} of {} in all\n", Bytes(bytes))
}

/// VMs that are named where a draft gives names.
const GIVEN_MAX: usize = 5;

/// `drover plan new`.
pub fn new(args: &PlanNewArgs) -> Result<Exit, Failure> {
    let inventory = ask(&args.provider, Counters::LeaveAlone)?.inventory;
    check_matches(args, &inventory)?;
    let text = draft_of(args, &inventory)?;
    let given = drover_plan::given_in(&text);
    if !given.is_empty() {
        crate::out::say(format_args!(
            "{} would have the name of another at the target, and {} given a `target_name`: {}",
            count(given.len(), "VM"),
            if given.len() == 1 { "is" } else { "are" },
            some_of(&given, GIVEN_MAX)
        ));
    }
    match &args.output {
        None => crate::out::print(&text),
        Some(path) => {
            write_new(path, &text)?;
            crate::out::say(format_args!(
                "wrote {}; look through it, then: drover plan check {}",
                path.display(),
                path.display()
            ));
        }
    }
    Ok(Exit::Success)
}

/// A plan without VMs is nobody's wish.
fn check_matches(args: &PlanNewArgs, inventory: &Inventory) -> Result<(), Failure> {
    let provider = &args.provider.provider;
    if inventory.vms.is_empty() {
        let text = format!("{provider} has no VM that this user can see");
        return Err(
            Failure::new(Exit::Plan, text).advise("see `drover inventory`, and the rights of the user")
        );
    }
    check_wanted(&args.select.wanted(), provider, inventory)
}

/// Writes a plan to a file that is not there yet.
pub fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Target, format!("writing {}: {error}", path.display()))
            .advise("an existing file is not overwritten; choose another name")
    };
    let mut file = std::fs::File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

fn draft_of(args: &PlanNewArgs, inventory: &Inventory) -> Result<String, Failure> {
    let secret = &args.provider.secret;
    let source = match appliance::path_of(&args.provider.provider) {
        Some(path) => DraftSource::Ova(OvaSource { path: absolute(&path)?, manifest: ManifestUse::Check }),
        None => DraftSource::Vsphere {
            endpoint: args.provider.provider.clone(),
            user: args.provider.user.clone().unwrap_or_default(),
            password_file: secret.password_file.clone(),
            ca_file: secret.ca_file.clone(),
            thumbprint: secret.thumbprint.clone(),
            insecure: secret.insecure,
        },
    };
    let (name, folder, wanted) = (draft_name(args), args.target_folder.clone(), args.select.wanted());
    let options = DraftOptions { name, source, folder, start: false };
    let none = || {
        Failure::new(Exit::Plan, "no VM fits all that is asked for")
            .advise("see `drover inventory` with the same options, and leave one of them out")
    };
    let Some(path) = &args.table else {
        return drover_plan::draft(inventory, &wanted, &options).ok_or_else(none);
    };
    let text = read_text(path, TABLE_BYTES_MAX).map_err(|error| {
        let what = format!("table {}: {error}", path.display());
        Failure::new(Exit::Usage, what).advise("save it as CSV in UTF-8")
    })?;
    let table = drover_plan::draft_table(&text, inventory).map_err(|problems| {
        crate::out::problems(path, &problems);
        Failure::new(Exit::Plan, format!("{} does not say which VMs to take", path.display()))
    })?;
    if !table.unused.is_empty() {
        crate::out::say(format_args!(
            "columns that are no keys of `vms` are left out: {}",
            clean(&table.unused.join(", "))
        ));
    }
    let text = drover_plan::draft_rows(inventory, &table, &wanted, &options).ok_or_else(none)?;
    // What a cell holds may be no value of its key.
    if let Err(problems) = drover_plan::Plan::parse(&text) {
        let told = args.output.as_deref().unwrap_or(Path::new("plan"));
        crate::out::problems(told, &problems);
        crate::out::say(format_args!(
            "warning: cells of {} have what their keys do not take; lines are those of the plan",
            path.display()
        ));
    }
    Ok(text)
}

/// A table of VMs may not be larger.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// Two plans of one name would be one plan: it is that of the file, else of the VMs or of where they come from.
fn draft_name(args: &PlanNewArgs) -> String {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let candidates = [
        args.output.as_deref().and_then(stem),
        Some(args.select.words().join("-")),
        args.table.as_deref().and_then(stem),
        Some(args.provider.provider.clone()),
    ];
    let fit = |name: String| drover_plan::short_name(&name.chars().take(64).collect::<String>());
    let mut names = candidates.into_iter().flatten().map(fit).filter(|name| !name.is_empty());
    args.name.clone().or_else(|| names.next()).unwrap_or_else(|| "plan".to_string())
}

/// A path that holds wherever the plan is read.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", path.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, PlanCommand};

    #[test]
    fn a_draft_is_named_by_its_file_or_by_what_it_moves() {
        let name = |words: &str| {
            let cli = Cli::try_parse_from(
                ["drover", "plan", "new", "vc.example.org"].into_iter().chain(words.split_whitespace()),
            )
            .unwrap();
            let Command::Plan { command: PlanCommand::New(args) } = cli.command else { panic!() };
            draft_name(&args)
        };
        assert_eq!(name("--name x -o web.yaml"), "x");
        assert_eq!(name("-o plans/Web_1.yaml"), "web-1");
        assert_eq!(name("-o=--.yaml --vm web*"), "web");
        assert_eq!(name("--vm web* --vm db01"), "web-db01");
        assert_eq!(name("--folder prod/web --tag app:shop --power on"), "prod-web-app-shop");
        assert_eq!(name(""), "vc-example-org");
    }
}
