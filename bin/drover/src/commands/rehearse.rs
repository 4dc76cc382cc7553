//! `drover rehearse`: boots copies from throw-away overlays, in a network that leads nowhere, and asks the plan's checks.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use drover_engine::{
    Answer, Cause, Converted, CopyState, EngineError, HookResult, HookRunner, PlanRow, RehearsalResult,
    RehearsedCheck, Store, VmRow, chain, copy_of, hold_plan,
};
use drover_landing::{PlanTarget, ServedCopy, qemu_error, remove_stale_doors};
use drover_mover::StopSignal;
use drover_plan::{Check, Plan, PlannedVm, Probe, resolve};
use drover_qemu::{Accelerator, Forward, MachineSpec, Prepared, Rehearsal, prepare_rehearsal};
use drover_types::count;
use drover_types::inventory::{About, Inventory};
use drover_view::{check_words, clean};
use serde_json::{Value, json};

use super::migrate::{open_store_beside_daemon, plan_name, state_option, unknown_plan};
use crate::cli::RehearseArgs;
use crate::exit::{Exit, Failure};
use crate::hooks::{Outside, speaks};
use crate::landing;
use crate::plan_file;
use crate::run::file_of;
use crate::signals::stop_on_signals;

/// How often a guest without checks is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Rehearses VMs of a plan that was begun, one after the other.
pub fn run(args: &RehearseArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let store = open_store_beside_daemon(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let hurry = || "stop it (Ctrl-C, or `drover serve`'s pause), rehearse, then `drover resume`";
    remove_stale_doors(&std::env::temp_dir());
    let _held = hold_plan(&store, &name).map_err(|error| Failure::from(error).advise(hurry()))?;
    let vms = chosen(&store, &name, args)?;
    let target = target_of(&store, row, args, &stop)?;
    let checks = checks_of(&target.1, args, &vms)?;
    let mut worst = None;
    let (mut ready, mut not_ready) = (0, 0);
    for (row, planned) in &vms {
        let place = Stage {
            store: &store,
            plan: &name,
            target: &target.0,
            args,
            stop: &stop,
            folder: &target.1.folder,
        };
        if stop.is_set() {
            return Ok(Exit::Interrupted);
        }
        let state = match target.0.why_not_rehearsed(planned) {
            Some(why) => CopyState::NotReady(why),
            None => match copy_of(&store, &name, row, planned, &target.0) {
                // Others may be at hosts that answer.
                Err(EngineError::Provider(error)) if error.cause == Cause::Connection => {
                    CopyState::NotReady(chain(&error))
                }
                state => state?,
            },
        };
        match state {
            CopyState::NotReady(why) => {
                not_ready += 1;
                place.tell(row, "rehearsal_left_out", json!({"why": why}), &format!("not rehearsed: {why}"));
            }
            CopyState::Whole { is_converted } => {
                ready += 1;
                let checks = checks.get(&row.id).map_or(&[][..], Vec::as_slice);
                worst = worse(worst, place.rehearse(row, planned, checks, is_converted)?);
            }
        }
    }
    match (worst, ready) {
        (Some(exit), _) => {
            crate::out::next(&args.run, format_args!("drover report {name}{}", state_option(&args.run)));
            Ok(exit)
        }
        (None, 0) => {
            let text = format!("none of {} has a copy that can be rehearsed now", count(vms.len(), "VM"));
            Err(Failure::new(Exit::Plan, text).advise("see the reasons above, and `drover status`"))
        }
        // What was named is to be rehearsed; of a whole plan what is ready.
        (None, _) if not_ready > 0 && !args.vm.is_empty() => Ok(Exit::Plan),
        (None, _) => {
            crate::out::next(&args.run, format_args!("drover report {name}{}", state_option(&args.run)));
            Ok(Exit::Success)
        }
    }
}

/// A failed check tells more than a stop, and a stop more than nothing.
fn worse(one: Option<Exit>, other: Option<Exit>) -> Option<Exit> {
    match (one, other) {
        (Some(Exit::Check), _) | (_, Some(Exit::Check)) => Some(Exit::Check),
        (one, other) => one.or(other),
    }
}

/// The VMs that are asked for.
fn chosen(store: &Store, name: &str, args: &RehearseArgs) -> Result<Vec<(VmRow, PlannedVm)>, Failure> {
    let mut vms = Vec::new();
    let rows = store.vms(name)?;
    for wanted in &args.vm {
        if !rows.iter().any(|row| row.name == *wanted) {
            let text = format!("plan {name} has no VM '{}'", clean(wanted));
            let advice = drover_engine::see_its_vms(name, wanted, &rows);
            return Err(Failure::new(Exit::Usage, text).advise(advice));
        }
    }
    for row in rows.into_iter().filter(|row| args.vm.is_empty() || args.vm.contains(&row.name)) {
        let planned = serde_json::from_str(&row.planned).map_err(|error| {
            Failure::new(Exit::State, format!("what was planned of {} cannot be read: {error}", row.name))
        })?;
        vms.push((row, planned));
    }
    Ok(vms)
}

/// The plan's target, as it was when the plan was begun.
fn target_of(
    store: &Store,
    row: PlanRow,
    args: &RehearseArgs,
    stop: &StopSignal,
) -> Result<(PlanTarget, plan_file::PlanFile), Failure> {
    let file = file_of(store, row)?;
    let target = landing::target_of(&file, &About::default(), args.run.state.as_deref(), stop);
    Ok((target, file))
}

/// The checks of each VM by its id: of the plan's file if that was given, else as the plan was begun with.
fn checks_of(
    begun: &plan_file::PlanFile,
    args: &RehearseArgs,
    vms: &[(VmRow, PlannedVm)],
) -> Result<HashMap<String, Vec<Check>>, Failure> {
    let path = Path::new(&args.plan);
    let given = if path.is_file() { Some(plan_file::read(path)?) } else { None };
    let plan: &Plan = given.as_ref().map_or(&begun.plan, |file| &file.plan);
    let inventory = Inventory {
        vms: vms.iter().map(|(_, planned)| planned.vm.clone()).collect(),
        ..Inventory::default()
    };
    // Only what is asked of each VM is taken from it: what else the plan says was settled when it was begun.
    let resolved = resolve(plan, &inventory).vms;
    let of_vm = |planned: &PlannedVm| {
        let now = resolved.iter().find(|vm| vm.vm.id == planned.vm.id).unwrap_or(planned);
        (planned.vm.id.clone(), now.checks.post_start.clone())
    };
    Ok(vms.iter().map(|(_, planned)| of_vm(planned)).collect())
}

/// What a rehearsal happens in.
struct Stage<'a> {
    store: &'a Store,
    plan: &'a str,
    target: &'a PlanTarget,
    args: &'a RehearseArgs,
    stop: &'a StopSignal,
    /// Folder of the plan.
    folder: &'a Path,
}

/// What came of one.
struct Outcome {
    result: RehearsalResult,
    text: String,
    checks: Vec<RehearsedCheck>,
}

impl Stage<'_> {
    /// Rehearses a VM and records it; gives how the program ends, if not well.
    fn rehearse(
        &self,
        row: &VmRow,
        planned: &PlannedVm,
        checks: &[Check],
        is_converted: bool,
    ) -> Result<Option<Exit>, Failure> {
        let id = self.store.begin_rehearsal(self.plan, &row.id)?;
        self.tell(row, "rehearsal_started", json!({}), "boots from overlays, in a network of its own");
        let began = Instant::now();
        let booted = self.boot(row, planned, checks, is_converted);
        let outcome = booted.unwrap_or_else(|failure| Outcome {
            result: RehearsalResult::Failed,
            text: failure
                .advice
                .map_or(failure.message.clone(), |it| format!("{}; try: {it}", failure.message)),
            checks: Vec::new(),
        });
        let Outcome { result, text, checks } = outcome;
        self.store.end_rehearsal(id, result, &text, &checks)?;
        let seconds = began.elapsed().as_secs_f64();
        let fields = json!({"result": result, "text": text, "checks": checks, "seconds": seconds});
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        self.tell(
            row,
            "rehearsal_ended",
            fields,
            &format!("rehearsal {} after {seconds:.1} s{said}", result.word()),
        );
        Ok(match result {
            RehearsalResult::Passed | RehearsalResult::Ran => None,
            RehearsalResult::Failed => Some(Exit::Check),
            RehearsalResult::Interrupted => Some(Exit::Interrupted),
        })
    }

    fn boot(
        &self,
        row: &VmRow,
        planned: &PlannedVm,
        checks: &[Check],
        is_converted: bool,
    ) -> Result<Outcome, Failure> {
        let (spec, mut served) = self.target.rehearsed(planned)?;
        let booted = self.prepare(row, planned, is_converted, &spec, served.as_ref());
        let booted =
            booted.and_then(|prepared| self.run_checks(row, planned, checks, prepared, served.as_mut()));
        booted.map_err(|failure| match served.as_ref().and_then(ServedCopy::lost) {
            Some(lost) => Failure { message: format!("{lost} ({})", failure.message), ..failure },
            None => failure,
        })
    }

    /// Makes the overlays, with a guest that can boot from the disks of its machine.
    fn prepare(
        &self,
        row: &VmRow,
        planned: &PlannedVm,
        is_converted: bool,
        spec: &MachineSpec,
        served: Option<&ServedCopy>,
    ) -> Result<Prepared, Failure> {
        let uris = served.map(ServedCopy::uris).unwrap_or_default();
        let prepared = prepare_rehearsal(spec, &uris).map_err(|error| Failure::from(qemu_error(error)))?;
        if !is_converted {
            // As the run will.
            match self.target.convert_on(prepared.spec(), planned, served)? {
                Converted::Done { .. } => self.say(row, "converted, on the overlays"),
                Converted::Skipped(why) => self.say(row, &format!("not converted: {why}")),
            }
        }
        Ok(prepared)
    }

    fn run_checks(
        &self,
        row: &VmRow,
        planned: &PlannedVm,
        checks: &[Check],
        prepared: Prepared,
        mut served: Option<&mut ServedCopy>,
    ) -> Result<Outcome, Failure> {
        let asked: Vec<(&Check, How)> = checks.iter().map(|check| (check, How::of(check))).collect();
        let forwards: Vec<Forward> = asked.iter().filter_map(|(_, how)| how.forward()).collect();
        let mut rehearsal = prepared.start(&forwards).map_err(|error| Failure::from(qemu_error(error)))?;
        if let Some(served) = &mut served {
            // QEMU has all its disks open.
            served.close_door();
        }
        let served = served.as_deref();
        if rehearsal.accelerator == Accelerator::Tcg {
            self.say(row, "runs without KVM, and slowly");
        }
        let document = json!({
            "version": 1,
            "kind": "check",
            "point": drover_engine::POST_START,
            "plan": self.plan,
            "rehearsal": true,
            "vm": {"id": row.id, "name": planned.vm.name, "target_name": planned.target_name},
            "target": {"folder": rehearsal.folder()},
        });
        let mut results = Vec::new();
        for (check, how) in &asked {
            let result = self.ask(check, how, &document, &mut rehearsal, served);
            self.tell(row, "rehearsal_check", json!(result), &check_words(&result));
            let is_over = result.passed == Some(false) || self.is_over(served);
            results.push(result);
            if is_over {
                break;
            }
        }
        let was_asked = results.iter().any(|it| it.passed.is_some());
        if !was_asked {
            self.look_on(&mut rehearsal, served);
        }
        Ok(self.judge(results, was_asked, &mut rehearsal, served))
    }

    /// Whether nothing more can be asked.
    fn is_over(&self, served: Option<&ServedCopy>) -> bool {
        self.stop.is_set() || served.is_some_and(|served| served.lost().is_some())
    }

    fn ask(
        &self,
        check: &Check,
        how: &How,
        document: &Value,
        rehearsal: &mut Rehearsal,
        served: Option<&ServedCopy>,
    ) -> RehearsedCheck {
        let told = |passed, message: &str| RehearsedCheck {
            what: check.words(),
            passed,
            message: clean(message).into_owned(),
        };
        if let How::NotAsked(why) = how {
            return told(None, why);
        }
        let until = Instant::now() + check.within;
        loop {
            // Looked at before it is asked: what a guest says last is not missed when its machine ends.
            let is_alive = rehearsal.is_alive();
            let answer = self.ask_once(check, how, document);
            let lost = served.and_then(ServedCopy::lost);
            match (answer.result, lost) {
                (HookResult::Passed, _) => return told(Some(true), &answer.message),
                _ if self.stop.is_set() => return told(None, "stopped"),
                (_, Some(lost)) => return told(None, &lost),
                // A guest that waits for its disks is not to blame; they come back, or are lost.
                _ if served.is_some_and(ServedCopy::is_away) => {}
                _ if !is_alive => {
                    let words = rehearsal.words();
                    let words = if words.is_empty() { String::new() } else { format!(" ({words})") };
                    return told(Some(false), &format!("{}; the machine has ended{words}", answer.message));
                }
                _ if Instant::now() >= until => return told(Some(false), &answer.message),
                _ => {}
            }
            let now = Instant::now();
            let next = (now + check.every).min(until.max(now + LOOK));
            while Instant::now() < next && !self.is_over(served) {
                std::thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
            }
        }
    }

    fn ask_once(&self, check: &Check, how: &How, document: &Value) -> Answer {
        match how {
            How::Speaks(forward) => speaks("127.0.0.1", forward.here, check.timeout, self.stop),
            How::As(probe, _) => {
                let check = Check { probe: probe.clone(), ..check.clone() };
                Outside::new(self.folder).ask(&check, document, self.stop)
            }
            How::NotAsked(why) => Answer::new(HookResult::Failed, *why),
        }
    }

    /// Sees that a guest goes on running of which nothing can be asked.
    fn look_on(&self, rehearsal: &mut Rehearsal, served: Option<&ServedCopy>) {
        let until = Instant::now() + Duration::from_secs(self.args.seconds);
        let is_away = || served.is_some_and(ServedCopy::is_away);
        while (Instant::now() < until || is_away()) && !self.is_over(served) && rehearsal.is_alive() {
            std::thread::sleep(LOOK);
        }
    }

    fn judge(
        &self,
        checks: Vec<RehearsedCheck>,
        was_asked: bool,
        rehearsal: &mut Rehearsal,
        served: Option<&ServedCopy>,
    ) -> Outcome {
        let failed = checks.iter().find(|it| it.passed == Some(false));
        // Whatever the guest did then tells nothing of its copy. Asked first, a site that went silent answers or is lost.
        let unread = served
            .filter(|_| !self.stop.is_set())
            .and_then(|served| served.changed().or_else(|| served.lost()));
        let (result, text) = match (failed, unread) {
            (_, Some(why)) => (RehearsalResult::Failed, format!("{why}{}", last_line(rehearsal))),
            (Some(check), None) => {
                (RehearsalResult::Failed, format!("{}{}", check_words(check), last_line(rehearsal)))
            }
            (None, None) if self.stop.is_set() => (RehearsalResult::Interrupted, String::new()),
            (None, None) if was_asked => (RehearsalResult::Passed, String::new()),
            (None, None) if !rehearsal.is_alive() => {
                (RehearsalResult::Failed, format!("the machine ended{}", last_line(rehearsal)))
            }
            (None, None) => {
                (RehearsalResult::Ran, format!("it ran for {} s{}", self.args.seconds, last_line(rehearsal)))
            }
        };
        Outcome { result, text, checks }
    }

    fn say(&self, row: &VmRow, text: &str) {
        self.tell(row, "rehearsal_note", json!({"text": text}), text);
    }

    fn tell(&self, row: &VmRow, event: &str, mut fields: Value, words: &str) {
        if self.args.run.json {
            fields["event"] = json!(event);
            fields["plan"] = json!(self.plan);
            fields["vm"] = json!(row.name);
            crate::out::json(fields);
        } else if !self.args.run.quiet || event == "rehearsal_ended" {
            crate::out::say(format_args!("{}: {words}", clean(&row.name)));
        }
    }
}

/// What the guest wrote last, where its console is on the serial line.
fn last_line(rehearsal: &Rehearsal) -> String {
    let serial = rehearsal.serial();
    match serial.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("; the last line of its serial line was '{}'", clean(line)),
        None => "; it wrote nothing to its serial line".into(),
    }
}

/// How a check is asked of a guest whose network leads nowhere.
enum How {
    /// By what takes a connection on its behalf, which proves nothing by itself: the guest has to say something.
    Speaks(Forward),
    /// As this, by a port that leads to the guest's if there is one.
    As(Probe, Option<Forward>),
    /// Not at all, and why.
    NotAsked(&'static str),
}

impl How {
    fn of(check: &Check) -> How {
        match &check.probe {
            Probe::Serial(text) => How::As(Probe::Serial(text.clone()), None),
            Probe::Tcp { port, .. } => free_port(*port).map_or(How::NotAsked(NO_PORT), How::Speaks),
            Probe::Http { url, status, trust } => {
                let Some((port, path)) = plain_http(url) else { return How::NotAsked(HTTPS) };
                match free_port(port) {
                    None => How::NotAsked(NO_PORT),
                    Some(forward) => {
                        let url = format!("http://127.0.0.1:{}{path}", forward.here);
                        How::As(Probe::Http { url, status: *status, trust: trust.clone() }, Some(forward))
                    }
                }
            }
            Probe::Command(_) | Probe::Shell(_) => How::NotAsked(PROGRAM),
        }
    }

    fn forward(&self) -> Option<Forward> {
        match self {
            How::Speaks(forward) => Some(*forward),
            How::As(_, forward) => *forward,
            How::NotAsked(_) => None,
        }
    }
}

const HTTPS: &str = "a certificate's name cannot be held against a guest without a network";
const PROGRAM: &str = "a program would ask the VM that runs at the source";
const NO_PORT: &str = "no port of this machine is free";

/// A port of this machine that nobody listens at now.
fn free_port(guest: u16) -> Option<Forward> {
    let here = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).ok()?.port();
    Some(Forward { here, guest })
}

/// Port and path of an address without TLS.
fn plain_http(url: &str) -> Option<(u16, String)> {
    let url: drover_http::Url = url.parse().ok()?;
    (!url.endpoint.https).then(|| (url.endpoint.port, url.path.clone()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(probe: Probe) -> Check {
        let second = Duration::from_secs(1);
        Check { probe, within: second, every: second, timeout: second, line: 1 }
    }

    #[test]
    fn what_would_reach_beyond_the_guest_is_not_asked() {
        let trust = drover_plan::Trust::System;
        let http = |url: &str| Probe::Http { url: url.into(), status: Some(204), trust: trust.clone() };
        assert!(matches!(How::of(&check(Probe::Command(vec!["x".into()]))), How::NotAsked(PROGRAM)));
        assert!(matches!(How::of(&check(Probe::Shell("x".into()))), How::NotAsked(PROGRAM)));
        assert!(matches!(How::of(&check(http("https://web01/"))), How::NotAsked(HTTPS)));
        let How::Speaks(forward) = How::of(&check(Probe::Tcp { host: "web01".into(), port: 22 })) else {
            panic!("not asked");
        };
        assert_eq!(forward.guest, 22);
        let How::As(Probe::Http { url, status, .. }, Some(forward)) =
            How::of(&check(http("http://web01:8080/x?y")))
        else {
            panic!("not asked");
        };
        assert_eq!((url, status), (format!("http://127.0.0.1:{}/x?y", forward.here), Some(204)));
        assert_eq!(forward.guest, 8080);
    }

    #[test]
    fn a_failed_check_is_worse_than_a_stop() {
        assert_eq!(worse(None, Some(Exit::Interrupted)), Some(Exit::Interrupted));
        assert_eq!(worse(Some(Exit::Check), Some(Exit::Interrupted)), Some(Exit::Check));
        assert_eq!(worse(Some(Exit::Interrupted), Some(Exit::Check)), Some(Exit::Check));
        assert_eq!(worse(None, None), None);
    }
}
