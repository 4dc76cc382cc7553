//! What Plans and Migrations say, as far as it is shown; and which of them are meant.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use drover_operator::decide::reason::{WAVE_FAILED, WAVE_STOPPED};
use drover_operator::lock::MOVED_ELSEWHERE;
use drover_operator::model::{Foreseen, WaveStatus};
use drover_operator::time::Moment;
use drover_operator::waves::HELD;
use drover_view::{Align, Table, local_time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Words of VMs that are shown below the table.
const SAID_MAX: usize = 20;

/// A Plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlanRow {
    pub name: String,
    pub provider: String,
    pub migrations: u64,
    pub done: u64,
    pub failed: u64,
    /// The reason of its condition `Resolved`.
    pub resolved: String,
    pub message: String,
    /// When the last of its VMs is foreseen to arrive.
    pub forecast: Option<Foreseen>,
    /// VMs that do not move by it, and why.
    pub refused: Vec<Refused>,
    /// How its waves stand.
    pub waves: Vec<WaveStatus>,
    /// Why waves do not begin since VMs of others failed, and what to do.
    pub held: Option<String>,
    pub cancel: bool,
    /// The names of all its waves.
    #[serde(skip)]
    pub wave_names: Vec<String>,
    /// Whether it is laid over its source as it is now, or needs not be.
    #[serde(skip)]
    pub is_settled: bool,
}

/// A VM that a Plan does not move.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Refused {
    pub vm: String,
    pub reason: String,
}

/// A Migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    #[serde(skip)]
    pub uid: String,
    pub vm: String,
    pub target_name: String,
    pub plan: String,
    /// Its wave, if its Plan has some.
    pub wave: Option<String>,
    pub phase: String,
    pub percent: u64,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// When it is foreseen to have arrived.
    pub forecast: Option<Foreseen>,
    pub reason: String,
    pub message: String,
    pub guest_off: bool,
    pub outages: u64,
    pub warm: bool,
    pub arrived: bool,
    /// Absent as long as nothing was to be cleaned up.
    pub cleaned_up: Option<bool>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == kind)
}

/// Absent of an operator that tells none.
fn forecast(status: &Value) -> Option<Foreseen> {
    Foreseen::deserialize(&status["forecast"]).ok()
}

/// When it is likely to have arrived, on the user's clock.
fn eta(forecast: Option<&Foreseen>) -> String {
    forecast.map(|it| minute(it.p50)).unwrap_or_default()
}

/// The same with the span into which eight of ten fall, in words.
fn foreseen(forecast: &Foreseen) -> String {
    let Foreseen { p10, p50, p90, .. } = *forecast;
    format!("foreseen for {} (P10 {}, P90 {})", minute(p50), minute(p10), minute(p90))
}

fn minute(at: Moment) -> String {
    let text = local_time(at.0.saturating_mul(1000));
    text.get(..MINUTES).unwrap_or(&text).to_string()
}

/// Characters of a moment to its minute.
const MINUTES: usize = "2026-03-01 14:05".len();

impl PlanRow {
    pub fn of(object: &Value) -> PlanRow {
        let status = &object["status"];
        let number = |key: &str| status[key].as_u64().unwrap_or_default();
        let resolved = condition(object, "Resolved");
        let held = condition(object, HELD).filter(|it| it["status"] == "True");
        let refused = status["refused"].as_array().into_iter().flatten();
        let cancel = object["spec"]["cancel"] == true;
        let waves = object["spec"]["plan"]["waves"].as_array().into_iter().flatten();
        PlanRow {
            name: text(&object["metadata"]["name"]),
            provider: text(&object["spec"]["provider"]),
            migrations: number("migrations"),
            done: number("done"),
            failed: number("failed"),
            resolved: resolved.map_or("Waits".into(), |it| text(&it["reason"])),
            message: resolved.map_or(String::new(), |it| text(&it["message"])),
            forecast: forecast(status),
            refused: refused.map(|it| Refused { vm: text(&it["vm"]), reason: text(&it["reason"]) }).collect(),
            waves: Vec::deserialize(&status["waves"]).unwrap_or_default(),
            held: held.map(|it| text(&it["message"])),
            cancel,
            wave_names: waves.map(|wave| text(&wave["name"])).collect(),
            is_settled: cancel || status["resolvedGeneration"] == object["metadata"]["generation"],
        }
    }
}

impl PlanRow {
    /// Leaves out how other waves stand.
    pub fn keep_wave(&mut self, wave: Option<&str>) {
        self.waves.retain(|it| wave.is_none_or(|wave| it.name == wave));
    }
}

/// How far a wave is, in a word or two.
fn state_of(wave: &WaveStatus) -> &'static str {
    let left = wave.vms.saturating_sub(wave.arrived + wave.failed);
    match wave {
        _ if wave.holds => "holds others up",
        _ if wave.waits.is_some() => "waits",
        _ if left > 0 => "may begin",
        _ if wave.failed > 0 => "failed",
        _ => "done",
    }
}

impl Row {
    pub fn of(object: &Value) -> Row {
        let (spec, status) = (&object["spec"], &object["status"]);
        let arrived = condition(object, "Arrived");
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        // What has arrived waits for its clean-up alone.
        let said = match condition(object, "CleanedUp") {
            Some(cleaned) if cleaned["status"] == "False" => Some(cleaned),
            _ => arrived,
        };
        let modes = [&spec["plan"]["vms"][0]["mode"], &spec["plan"]["mode"]];
        Row {
            name: text(&object["metadata"]["name"]),
            uid: text(&object["metadata"]["uid"]),
            vm: text(&spec["vm"]["name"]),
            target_name: text(&spec["targetName"]),
            plan: text(&spec["planRef"]["name"]),
            wave: spec["wave"].as_str().map(str::to_string),
            phase: status["phase"].as_str().unwrap_or("Pending").to_string(),
            percent: number(&status["progress"]["percent"]),
            done_bytes: number(&status["progress"]["doneBytes"]),
            total_bytes: number(&status["progress"]["totalBytes"]),
            forecast: forecast(status),
            reason: said.map_or(String::new(), |it| text(&it["reason"])),
            message: said.map_or(String::new(), |it| text(&it["message"])),
            guest_off: status["guestOff"] == true,
            outages: number(&status["outages"]),
            warm: modes.into_iter().find_map(Value::as_str) == Some("warm"),
            arrived: arrived.is_some_and(|it| it["status"] == "True"),
            cleaned_up: condition(object, "CleanedUp").map(|it| it["status"] == "True"),
        }
    }

    /// Whether it is in one of these phases; in any, if none is named.
    pub fn is_in(&self, phases: &[String]) -> bool {
        phases.is_empty() || phases.iter().any(|it| it.eq_ignore_ascii_case(&self.phase))
    }

    /// Whether nothing more comes of it by itself.
    pub fn is_at_rest(&self) -> bool {
        match self.phase.as_str() {
            "Done" | "Cancelled" => true,
            // A worker may yet switch its guest on.
            "Failed" => !self.guest_off,
            _ => self.reason == MOVED_ELSEWHERE,
        }
    }

    /// Why its cutover cannot be asked for.
    pub fn no_cutover(&self) -> Option<String> {
        match self.phase.as_str() {
            "Done" | "Cancelled" | "Cancelling" | "Failed" => {
                Some(format!("{} is {}", self.vm, self.phase.to_lowercase()))
            }
            _ if !self.warm => Some(format!("{} does not move warm", self.vm)),
            _ => None,
        }
    }

    /// Why there is nothing to be undone.
    pub fn no_cancel(&self) -> Option<String> {
        self.arrived.then(|| format!("{} has arrived, and stays", self.vm))
    }

    /// Why there is nothing to be tried again.
    pub fn no_retry(&self) -> Option<String> {
        match self.phase.as_str() {
            "Done" if self.cleaned_up == Some(false) => None,
            "Failed" if self.reason == WAVE_STOPPED => Some(format!(
                "{} has its turn again by itself, once those of the wave before its own that failed are tried again, or by \
                 `kubectl drover proceed {}`",
                self.vm, self.plan
            )),
            "Failed" | "Retrying" | "Pending" | "Cancelling" => None,
            "Done" => Some(format!("{} has arrived, and its source is cleaned up", self.vm)),
            "Cancelled" => Some(format!(
                "{} is cancelled: remove its Migration {} to have its Plan make it anew",
                self.vm, self.name
            )),
            _ => Some(format!("{} is on its way: {}", self.vm, self.phase.to_lowercase())),
        }
    }

    /// What is new of it, in a line.
    pub fn line(&self) -> String {
        let reason = if self.reason == self.phase { "" } else { &self.reason };
        let eta = self.forecast.as_ref().map(|it| format!("ETA {}", minute(it.p50))).unwrap_or_default();
        let line = format!("{}  {} {} %  {reason}  {eta}", self.vm, self.phase, self.percent);
        line.trim_end().to_string()
    }

    /// Whether its words are to be read, where those of its Plan are or not.
    fn is_said(&self, with_plan: bool) -> bool {
        let is_ordinary = matches!(self.reason.as_str(), "" | "Moving" | "Starting" | "Arrived")
                // Of waves the Plan tells.
                || matches!(self.reason.as_str(), "WaitsForSlot" | "WaitsForWindow" | "WaitsForWave")
                // It is its turn soon.
                || self.reason == "CutoverQueued"
                || (with_plan && [WAVE_FAILED, WAVE_STOPPED].contains(&self.reason.as_str()))
                || self.phase == "Cancelled";
        !is_ordinary && !self.message.is_empty()
    }
}

/// Those that names mean, of a Plan if one is named; all of that without names.
///
/// # Errors
/// In words for people: a name that none has, or several.
pub fn chosen<'a>(rows: &'a [Row], names: &[String], plan: Option<&str>) -> Result<Vec<&'a Row>, String> {
    let of_plan = |row: &&Row| plan.is_none_or(|plan| row.plan == plan);
    if names.is_empty() {
        return Ok(rows.iter().filter(of_plan).collect());
    }
    let place = plan.map(|plan| format!(" of the Plan {plan}")).unwrap_or_default();
    let mut all: Vec<&Row> = Vec::new();
    for name in names {
        let own = |row: &&Row| row.name == *name;
        let is_it = |row: &&Row| own(row) || row.vm == *name || row.target_name == *name;
        let mut found: Vec<&Row> = rows.iter().filter(of_plan).filter(is_it).collect();
        if found.iter().any(own) {
            found.retain(own);
        }
        match found.as_slice() {
            [] => return Err(format!("there is no Migration{place} of a VM called {name}")),
            [one] if all.iter().any(|it| it.name == one.name) => {}
            [one] => all.push(*one),
            more => {
                let names: Vec<&str> = more.iter().map(|row| row.name.as_str()).collect();
                return Err(format!("{name} is the name of several: {}", names.join(", ")));
            }
        }
    }
    Ok(all)
}

/// Those of a wave, if one is named.
///
/// # Errors
/// In words for people: none of them is in it.
pub fn of_wave<'a>(rows: Vec<&'a Row>, wave: Option<&str>) -> Result<Vec<&'a Row>, String> {
    let Some(wave) = wave else { return Ok(rows) };
    let rows: Vec<&Row> = rows.into_iter().filter(|row| row.wave.as_deref() == Some(wave)).collect();
    match rows.is_empty() {
        true => Err(format!("there is no such Migration of a VM of the wave {wave}")),
        false => Ok(rows),
    }
}

/// How many do what.
fn summary(rows: &[&Row]) -> String {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in rows {
        *counts.entry((&row.phase, &row.reason)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let mut table =
        Table::new(&[("PHASE", Align::Left), ("REASON", Align::Left), ("VMS", Align::Right)]).fitted();
    for ((phase, reason), count) in counts {
        table.row([phase, reason, &count.to_string()]);
    }
    table.to_string()
}

/// For people. In a summary VMs are counted, and nothing is told of a single one.
pub fn shown(namespace: &str, plans: &[PlanRow], rows: &[&Row], is_summary: bool) -> String {
    if plans.is_empty() && rows.is_empty() {
        return format!("no Plans and no Migrations in the namespace {namespace}\n");
    }
    let mut parts = Vec::new();
    if !plans.is_empty() {
        let mut table = Table::new(&[
            ("PLAN", Align::Left),
            ("VMS", Align::Right),
            ("DONE", Align::Right),
            ("FAILED", Align::Right),
            ("RESOLVED", Align::Left),
            ("ETA", Align::Right),
        ])
        .fitted();
        for plan in plans {
            let [all, done, failed] = [plan.migrations, plan.done, plan.failed].map(|it| it.to_string());
            let resolved = if plan.cancel { "Cancelled" } else { &plan.resolved };
            table.row([plan.name.as_str(), &all, &done, &failed, resolved, &eta(plan.forecast.as_ref())]);
        }
        parts.push(table.to_string());
    }
    if plans.iter().any(|plan| !plan.waves.is_empty()) {
        let mut table = Table::new(&[
            ("PLAN", Align::Left),
            ("WAVE", Align::Left),
            ("VMS", Align::Right),
            ("ARRIVED", Align::Right),
            ("FAILED", Align::Right),
            ("STATE", Align::Left),
        ])
        .fitted();
        for (plan, wave) in plans.iter().flat_map(|plan| plan.waves.iter().map(move |wave| (plan, wave))) {
            let [all, arrived, failed] = [wave.vms, wave.arrived, wave.failed].map(|it| it.to_string());
            table.row([plan.name.as_str(), &wave.name, &all, &arrived, &failed, state_of(wave)]);
        }
        parts.push(table.to_string());
    }
    if is_summary && !rows.is_empty() {
        parts.push(summary(rows));
    } else if !rows.is_empty() {
        let mut table = Table::new(&[
            ("VM", Align::Left),
            ("PLAN", Align::Left),
            ("PHASE", Align::Left),
            ("%", Align::Right),
            ("REASON", Align::Left),
            ("ETA", Align::Right),
        ])
        .fitted();
        for row in rows {
            let percent = row.percent.to_string();
            let eta = eta(row.forecast.as_ref());
            table.row([&row.vm, &row.plan, &row.phase, &percent, &row.reason, &eta].map(String::as_str));
        }
        parts.push(table.to_string());
    }
    let of_plans = plans.iter().flat_map(|plan| {
        let own = (!plan.is_settled && !plan.message.is_empty())
            .then(|| format!("Plan {}: {}", plan.name, plan.message));
        let held = plan.held.iter().map(|why| format!("Plan {}: {why}", plan.name));
        let refused = plan.refused.iter();
        let refused = refused.map(|it| format!("{} is refused by Plan {}: {}", it.vm, plan.name, it.reason));
        own.into_iter().chain(held).chain(refused).collect::<Vec<_>>()
    });
    // Of many waves nothing else is hidden by these.
    let waits = plans.iter().flat_map(|plan| {
        let waits = plan.waves.iter().filter_map(|wave| Some((&wave.name, wave.waits.as_ref()?)));
        waits.map(|(wave, why)| format!("wave {wave} of Plan {} waits: {why}", plan.name))
    });
    let of_rows = rows.iter().filter(|row| row.is_said(!plans.is_empty()) && !is_summary).map(|row| {
        let off = if row.guest_off { " (its guest is off)" } else { "" };
        format!("{}{off}: {}", row.vm, row.message)
    });
    let ends = plans.iter().filter_map(|plan| Some((format!("Plan {}", plan.name), plan.forecast.as_ref()?)));
    // Of VMs that were asked for by their names.
    let named = rows.iter().filter(|_| plans.is_empty() && !is_summary);
    let ends = ends.chain(named.filter_map(|row| Some((row.vm.clone(), row.forecast.as_ref()?))));
    let ends = ends.map(|(what, forecast)| format!("{what}: {}", foreseen(forecast)));
    let said: Vec<String> = of_plans.chain(of_rows).chain(ends).chain(waits).collect();
    let mut words: String =
        said.iter().take(SAID_MAX).map(|line| format!("{}\n", drover_view::clean(line))).collect();
    if said.len() > SAID_MAX {
        words += &format!("and {} more: see --json\n", said.len() - SAID_MAX);
    }
    parts.extend(Some(words).filter(|words| !words.is_empty()));
    parts.join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(number: u8, vm: &str, phase: &str, arrived: Value) -> Row {
        Row::of(&json!({
            "metadata": {"name": format!("vm-{number}"), "uid": format!("u{number}")},
            "spec": {"vm": {"name": vm}, "targetName": format!("{vm}-new"), "planRef": {"name": format!("p{}", number % 2)},
                     "plan": {"mode": "warm", "vms": [{"id": "vm-1"}]}},
            "status": {"phase": phase, "progress": {"percent": 7, "doneBytes": 7, "totalBytes": 100}, "conditions": [arrived]},
        }))
    }

    fn told(reason: &str) -> Value {
        json!({"type": "Arrived", "status": "False", "reason": reason, "message": format!("{reason} in words")})
    }

    #[test]
    fn vms_are_meant_by_any_of_their_names_and_never_by_two() {
        let rows = [
            migration(1, "web01", "Running", told("Moving")),
            migration(2, "web01", "Queued", told("WaitsForSlot")),
            migration(3, "db01", "Failed", told("TooManyOutages")),
        ];
        let names = |asked: &[&str], plan: Option<&str>| {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            chosen(&rows, &asked, plan).map(|all| all.iter().map(|it| it.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], None).unwrap().len(), 3);
        assert_eq!(names(&[], Some("p1")).unwrap(), ["vm-1", "vm-3"]);
        assert_eq!(names(&["db01", "vm-2", "db01-new"], None).unwrap(), ["vm-3", "vm-2"]);
        assert_eq!(names(&["web01"], Some("p0")).unwrap(), ["vm-2"]);
        assert!(names(&["web01"], None).unwrap_err().contains("several: vm-1, vm-2"));
        let why = names(&["web02"], Some("p0")).unwrap_err();
        assert_eq!(why, "there is no Migration of the Plan p0 of a VM called web02");
    }

    #[test]
    fn what_can_be_asked_of_a_vm_depends_on_where_it_is() {
        let of = |phase: &str| {
            let mut row = migration(1, "a", phase, told("x"));
            row.arrived = phase == "Done";
            [row.no_cutover(), row.no_cancel(), row.no_retry()].map(|why| why.is_none())
        };
        assert_eq!(of("Running"), [true, true, false]);
        assert_eq!(of("Retrying"), [true, true, true]);
        assert_eq!(of("Failed"), [false, true, true]);
        assert_eq!(of("Cancelled"), [false, true, false]);
        assert_eq!(of("Done"), [false, false, false]);
        let mut left = migration(1, "a", "Done", told("x"));
        left.cleaned_up = Some(false);
        assert!(left.no_retry().is_none());
        let stopped = migration(1, "a", "Failed", told(WAVE_STOPPED));
        assert!(stopped.no_retry().unwrap().contains("kubectl drover proceed p1"));
        let mut cold = migration(1, "a", "Running", told("x"));
        cold.warm = false;
        assert!(cold.no_cutover().unwrap().contains("does not move warm"));
    }

    #[test]
    fn a_vms_own_mode_counts_before_its_plans() {
        let of = |plan: Value| Row::of(&json!({"spec": {"plan": plan}})).warm;
        assert!(of(json!({"mode": "warm"})) && of(json!({"mode": "cold", "vms": [{"mode": "warm"}]})));
        assert!(!of(json!({"mode": "warm", "vms": [{"mode": "cold"}]})) && !of(json!({})));
    }

    #[test]
    fn what_is_wrong_is_said_in_whole() {
        let rows = [
            migration(1, "web01", "Running", told("Moving")),
            migration(3, "db01", "Failed", told("TooManyOutages")),
            migration(5, "app01", "Queued", told("WaitsForWindow")),
            migration(7, "app02", "Failed", told("WaveStopped")),
        ];
        let plan = PlanRow::of(&json!({
            "metadata": {"name": "web", "generation": 2}, "spec": {"provider": "vc"},
            "status": {"migrations": 2, "done": 0, "failed": 1, "resolvedGeneration": 1, "refused": [{"vm": "x", "reason": "taken"}],
                "waves": [{"name": "pilot", "vms": 1, "arrived": 1, "failed": 0, "passed": true},
                    {"name": "rest", "vms": 1, "arrived": 0, "failed": 0, "passed": false, "waits": "its window opens soon"}],
                "conditions": [{"type": "Resolved", "status": "False", "reason": "PlanHasErrors", "message": "no such VM"},
                    {"type": "WavesHeld", "status": "True", "reason": "WaveStopped", "message": "1 VM of wave pilot failed"}]},
        }));
        let text = shown("vms", std::slice::from_ref(&plan), &rows.iter().collect::<Vec<_>>(), false);
        let named = shown("vms", &[], &[&rows[3]], false);
        assert!(named.contains("app02: WaveStopped in words"), "no Plan tells of it: {named}");
        for part in [
            "PLAN  VMS  DONE  FAILED  RESOLVED",
            "web     2     0       1  PlanHasErrors",
            "web01  p1    Running  7  Moving",
            "Plan web: no such VM",
            "Plan web: 1 VM of wave pilot failed",
            "x is refused by Plan web: taken",
            "db01: TooManyOutages in words",
            "wave rest of Plan web waits: its window opens soon",
            "web   pilot    1        1       0  done",
            "web   rest     1        0       0  waits",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in [
            "Moving in words",
            "foreseen",
            "wave pilot of",
            "WaitsForWindow in words",
            "WaveStopped in words",
        ] {
            assert!(!text.contains(part), "{part} in\n{text}");
        }
        let counted = shown("vms", &[plan], &rows.iter().collect::<Vec<_>>(), true);
        for part in ["PHASE    REASON", "Failed   TooManyOutages    1", "wave rest of Plan web waits"] {
            assert!(counted.contains(part), "{part} in\n{counted}");
        }
        assert!(!counted.contains("db01"), "{counted}");
        assert!(shown("vms", &[], &[], true).contains("no Plans"));
    }

    #[test]
    fn vms_are_narrowed_to_a_wave_and_to_phases() {
        let of = |number: u8, phase: &str, wave: &str| Row {
            wave: Some(wave.into()),
            ..migration(number, &format!("web{number}"), phase, told("x"))
        };
        let rows = [of(1, "Failed", "pilot"), of(2, "Done", "pilot"), of(3, "Failed", "rest")];
        let names = |wave: Option<&str>| {
            of_wave(rows.iter().collect(), wave)
                .map(|rows| rows.iter().map(|row| row.vm.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(Some("pilot")).unwrap(), ["web1", "web2"]);
        assert_eq!(names(None).unwrap().len(), 3);
        assert!(names(Some("plot")).unwrap_err().contains("of the wave plot"));
        let phases = ["failed".to_string(), "Running".to_string()];
        assert_eq!(rows.iter().map(|row| row.is_in(&phases)).collect::<Vec<_>>(), [true, false, true]);
        assert!(rows[0].is_in(&[]));
    }

    #[test]
    fn when_it_arrives_is_shown_as_the_operator_foresees_it() {
        let told = json!({"at": "2026-03-01T12:00:00Z", "p10": "2026-03-01T14:00:00Z", "p50": "2026-03-01T15:30:59Z", "p90": "2026-03-02T03:00:00Z"});
        let mut object = json!({"metadata": {"name": "web"}, "spec": {"vm": {"name": "web01"}}, "status": {"forecast": told}});
        let (plan, row) = (PlanRow::of(&object), Row::of(&object));
        let likely = minute(Moment::parse("2026-03-01T15:30:00Z").unwrap());
        assert_eq!(eta(row.forecast.as_ref()), likely);
        let table = shown("vms", &[plan], &[&row], false);
        assert!(table.contains("  ETA\n") && table.matches(&likely).count() == 3, "{table}");
        assert!(table.contains(&format!("Plan web: foreseen for {likely} (P10 ")), "{table}");
        assert!(!table.contains("web01: foreseen"), "{table}");
        let named = shown("vms", &[], &[&row], false);
        assert!(named.contains(&format!("web01: foreseen for {likely} (P10 ")), "{named}");
        // For programs as the object has it.
        assert_eq!(json!(row)["forecast"], told);
        // Of an operator before.
        for absent in [json!(null), json!({"p50": "soon"})] {
            object["status"]["forecast"] = absent;
            assert_eq!(eta(Row::of(&object).forecast.as_ref()), "");
        }
    }

    #[test]
    fn one_whose_guest_is_off_is_not_at_rest() {
        let mut row = migration(1, "a", "Failed", told("x"));
        assert!(row.is_at_rest());
        row.guest_off = true;
        assert!(!row.is_at_rest());
        assert!(migration(1, "a", "Pending", told(MOVED_ELSEWHERE)).is_at_rest());
        assert!(!migration(1, "a", "Pending", told("PlanNotResolved")).is_at_rest());
    }
}
