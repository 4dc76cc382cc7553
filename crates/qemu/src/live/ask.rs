//! What a monitor is asked before a move: what it can do, what its machine is, what it measures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use drover_live::{Ability, BlockJob, Disk, Machine};
use serde_json::{Value, json};

use super::core::WATCH_S;
use super::disks::MIRROR;
use super::guest::{Guest, POLL};
use crate::error::QemuError;

/// What a look at one side found.
#[derive(Debug)]
pub(super) struct Look {
    /// What its QEMU can do.
    pub can: Ability,
    pub machine: Machine,
    /// The name of the credentials that its moves are set to use; empty: none.
    pub credentials_set: String,
    /// Its guest runs under software emulation.
    pub is_emulated: bool,
}

impl Guest {
    /// What it can do and is, by its own words. All that does not depend on another answer is asked at once: over a long line
    /// each wait takes a round trip.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub(super) fn look(&mut self) -> Result<Look, QemuError> {
        let [
            version,
            schema,
            capabilities,
            parameters,
            migrating,
            memory,
            processors,
            kind,
            here,
            anonymous,
            blocks,
            jobs,
            kvm,
            status,
        ] = self.qmp.execute_in_turn([
            ("query-version", Value::Null),
            ("query-qmp-schema", Value::Null),
            ("query-migrate-capabilities", Value::Null),
            ("query-migrate-parameters", Value::Null),
            ("query-migrate", Value::Null),
            ("query-memory-size-summary", Value::Null),
            ("query-cpus-fast", Value::Null),
            ("qom-get", kind_at("/machine")),
            ("qom-list", json!({"path": DEVICES[0]})),
            ("qom-list", json!({"path": DEVICES[1]})),
            ("query-block", Value::Null),
            JOBS,
            ("query-kvm", Value::Null),
            ("query-status", Value::Null),
        ])?;
        let (kinds, features) = self.processors(&texts(&processors, "qom-path"))?;
        let reasons = migrating["blocked-reasons"].as_array().into_iter().flatten();
        let machine = Machine {
            status: text_of(&status["status"]),
            kind: text_of(&kind).trim_end_matches("-machine").to_string(),
            memory_bytes: memory["base-memory"].as_u64().unwrap_or_default(),
            processors: kinds,
            features,
            devices: devices(&[here, anonymous]),
            disks: disks(&blocks),
            blocked: reasons.filter_map(|reason| Some(reason.as_str()?.to_string())).collect(),
            migrating: migrating["status"].as_str().filter(is_busy).map(str::to_string),
            jobs: others_jobs(&jobs),
        };
        let can = Ability::read(&version, &schema, &capabilities);
        let is_emulated = kvm["enabled"] != true;
        Ok(Look { can, machine, credentials_set: text_of(&parameters["tls-creds"]), is_emulated })
    }

    /// Capabilities that are on for its moves.
    pub(super) fn capabilities_set(&mut self) -> Result<Vec<String>, QemuError> {
        let told = self.qmp.execute("query-migrate-capabilities", Value::Null)?;
        let is_on = |entry: &&Value| entry["state"] == true;
        Ok(texts_of(told.as_array().into_iter().flatten().filter(is_on), "capability"))
    }

    /// Jobs at work on its disks that are not drover's.
    pub(super) fn others_jobs(&mut self) -> Result<Vec<BlockJob>, QemuError> {
        Ok(others_jobs(&self.qmp.execute(JOBS.0, JOBS.1)?))
    }

    /// Whether it is what it was, of all that changes while a guest runs: its state, its devices, its disks and their jobs.
    pub(super) fn is_still(&mut self, machine: &Machine) -> Result<bool, QemuError> {
        let [status, here, anonymous, blocks, jobs] = self.qmp.execute_in_turn([
            ("query-status", Value::Null),
            ("qom-list", json!({"path": DEVICES[0]})),
            ("qom-list", json!({"path": DEVICES[1]})),
            ("query-block", Value::Null),
            JOBS,
        ])?;
        Ok(status["status"] == machine.status.as_str()
            && devices(&[here, anonymous]) == machine.devices
            && disks(&blocks) == machine.disks
            && others_jobs(&jobs) == machine.jobs)
    }

    /// The kinds of its processors, and names of what the first has switched on; nothing where they are not told.
    fn processors(&mut self, paths: &[String]) -> Result<(Vec<String>, Option<Vec<String>>), QemuError> {
        let Some(first) = paths.first() else { return Ok((Vec::new(), None)) };
        let mut asked = vec![("qom-list", json!({ "path": first }))];
        asked.extend(paths.iter().map(|path| ("qom-get", kind_at(path))));
        let mut answers = self.qmp.execute_all(&asked)?.into_iter();
        let properties = answers.next().unwrap_or(Ok(Value::Null))?;
        let kinds: Result<Vec<String>, QemuError> = answers.map(|kind| Ok(text_of(&kind?))).collect();
        Ok((kinds?, self.features(first, &properties)?))
    }

    fn features(&mut self, processor: &str, properties: &Value) -> Result<Option<Vec<String>>, QemuError> {
        let is_switch = |entry: &&Value| entry["type"] == "bool";
        let names = texts_of(properties.as_array().into_iter().flatten().filter(is_switch), "name");
        let names = names.into_iter().filter(|name| is_feature(name)).take(FEATURES_MAX);
        let names: Vec<String> = names.collect();
        let asked: Vec<Value> =
            names.iter().map(|name| json!({"path": processor, "property": name})).collect();
        let answers = self.qmp.execute_each("qom-get", &asked)?;
        // Some can only be written.
        let is_on = |(name, answer): (String, Result<Value, QemuError>)| {
            answer.is_ok_and(|value| value == true).then_some(name)
        };
        let features: Vec<String> = names.into_iter().zip(answers).filter_map(is_on).collect();
        Ok((!features.is_empty()).then_some(features))
    }

    /// Begins to measure how fast the guest writes, as [`Guest::dirty_rate`] does, so that other things can be asked meanwhile.
    /// A QEMU that does not take it is no reason not to move; a measurement that somebody else began, and that is as drover's
    /// own, is taken over.
    ///
    /// # Errors
    /// If the connection breaks, or an answer does not come in time.
    pub fn begin_to_measure(&mut self) -> Result<(), QemuError> {
        if self.measures.is_some_and(|since| since.elapsed() < MEASURE_AGE_MAX) {
            return Ok(());
        }
        let measure = ("calc-dirty-rate", json!({ "calc-time": WATCH_S }));
        let answers = self.qmp.execute_all(&[measure, ("query-dirty-rate", Value::Null)])?;
        let is_own = answers.first().is_some_and(Result::is_ok);
        // Refused, since a run that ended a moment ago measures the same still.
        let is_measured = is_own || answers.iter().flatten().any(is_as_own);
        self.measures = is_measured.then(Instant::now);
        Ok(())
    }

    /// Bytes of pages that the guest writes to in a second, as QEMU finds by looking at a sample of pages for as long;
    /// nothing where it cannot tell, or does not come to an end.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub fn dirty_rate(&mut self) -> Result<Option<f64>, QemuError> {
        self.begin_to_measure()?;
        match self.measures.take() {
            Some(_) => self.measured(),
            None => Ok(None),
        }
    }

    fn measured(&mut self) -> Result<Option<f64>, QemuError> {
        let until = Instant::now() + Duration::from_secs(WATCH_S) + MEASURE_TIME_MAX;
        loop {
            let answer = self.qmp.execute("query-dirty-rate", Value::Null)?;
            if answer["status"] == "measured" {
                return Ok(answer["dirty-rate"]
                    .as_f64()
                    .filter(|rate| *rate >= 0.0)
                    .map(|mib| mib * (1 << 20) as f64));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Guest {
    /// Whether KVM writes down in a ring which pages the guest writes to. Takes a second where it does. Where somebody else's
    /// measurement does not end it cannot be told, and QEMU may refuse what needs a ring when that is set.
    pub(super) fn has_dirty_ring(&mut self) -> Result<bool, QemuError> {
        // It measures in one way at a time.
        if self.measures.take().is_some() {
            self.measured()?;
        }
        // Asked for the ring without KVM, QEMU 7.2 ends.
        if self.qmp.execute("query-kvm", Value::Null)?["enabled"] != true {
            return Ok(false);
        }
        match self.qmp.execute("calc-dirty-rate", json!({"calc-time": WATCH_S, "mode": "dirty-ring"})) {
            Ok(_) => self.measured().map(|_| true),
            Err(error) if error.is_of_connection() => Err(error),
            Err(_) => {
                let told = self.qmp.execute("query-dirty-rate", Value::Null);
                Ok(told.is_ok_and(|told| told["status"] == "measuring"))
            }
        }
    }
}

/// Where a machine keeps its devices: those that have a name, and the others.
const DEVICES: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// What those folders hold, by path.
fn devices(folders: &[Value; 2]) -> BTreeMap<String, String> {
    let mut devices = BTreeMap::new();
    for (folder, children) in DEVICES.iter().zip(folders) {
        for child in children.as_array().into_iter().flatten() {
            let (Some(name), Some(kind)) = (child["name"].as_str(), child["type"].as_str()) else {
                continue;
            };
            let Some(kind) = kind.strip_prefix("child<") else { continue };
            devices.insert(format!("{folder}/{name}"), kind.trim_end_matches('>').to_string());
        }
    }
    devices
}

fn disks(blocks: &Value) -> BTreeMap<String, Disk> {
    blocks.as_array().into_iter().flatten().filter_map(disk).collect()
}

/// Asks for jobs on disks.
const JOBS: (&str, Value) = ("query-block-jobs", Value::Null);

fn others_jobs(jobs: &Value) -> Vec<BlockJob> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let all = jobs.as_array().into_iter().flatten();
    // One that has ended and was not dismissed does nothing any more.
    let at_work = all.filter(|job| !matches!(job["status"].as_str(), Some("concluded" | "null")));
    let all = at_work.map(|job| BlockJob { name: text(&job["device"]), kind: text(&job["type"]) });
    all.filter(|job| !job.name.starts_with(MIRROR)).collect()
}

/// Whether something moves there, by QEMU's word for a move.
fn is_busy(status: &&str) -> bool {
    matches!(*status, "setup" | "active" | "cancelling" | "device")
        || status.starts_with("postcopy")
        || status.starts_with("pre-")
}

/// Whether what is measured is what drover would measure.
fn is_as_own(told: &Value) -> bool {
    let mode = &told["mode"];
    told["status"] == "measuring"
        && told["calc-time"] == WATCH_S
        && (mode.is_null() || mode == "page-sampling")
}

/// What was measured is of another time after it.
const MEASURE_AGE_MAX: Duration = Duration::from_secs(30);
/// Beyond the time measured: looking at a sample of some thousand pages, on a busy host.
const MEASURE_TIME_MAX: Duration = Duration::from_secs(30);
/// A processor has some 250 properties.
const FEATURES_MAX: usize = 2000;
/// Whether a switch of a processor is something that it has, and not how QEMU makes it: those come and go with QEMU's
/// versions, while the machine type keeps what the guest sees.
fn is_feature(name: &str) -> bool {
    !name.starts_with("x-") && !NO_FEATURES.contains(&name)
}

/// Of the object, or of how QEMU describes it.
const NO_FEATURES: [&str; 14] = [
    "fill-mtrr-mask",
    "full-cpuid-auto-level",
    "kvm",
    "legacy-cache",
    "legacy-multi-node",
    "tcg-cpuid",
    "realized",
    "hotplugged",
    "hotpluggable",
    "start-powered-off",
    "cpu-throttle",
    "migratable",
    "check",
    "enforce",
];

/// A drive that has a medium: by what it is plugged into, which is the same on both sides, where its node's name may differ.
fn disk(block: &Value) -> Option<(String, Disk)> {
    let inserted = block.get("inserted")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let plugged = [&block["qdev"], &block["device"]].into_iter().filter_map(Value::as_str);
    let name =
        plugged.into_iter().find(|name| !name.is_empty())?.trim_end_matches("/virtio-backend").to_string();
    let disk = Disk {
        bytes: inserted["image"]["virtual-size"].as_u64().unwrap_or_default(),
        node: text(&inserted["node-name"]),
        place: text(&inserted["file"]),
        is_read_only: inserted["ro"] == true,
    };
    Some((name, disk))
}

/// Asks for the type of an object.
fn kind_at(path: &str) -> Value {
    json!({"path": path, "property": "type"})
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn texts(list: &Value, key: &str) -> Vec<String> {
    texts_of(list.as_array().into_iter().flatten(), key)
}

fn texts_of<'a>(list: impl Iterator<Item = &'a Value>, key: &str) -> Vec<String> {
    list.filter_map(|entry| Some(entry[key].as_str()?.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_qemu_makes_a_processor_is_none_of_its_features() {
        for name in ["sse", "x2apic", "xsave", "legacy", "pmu"] {
            assert!(is_feature(name), "{name}");
        }
        for name in ["x-pdcm-on-even-without-pmu", "full-cpuid-auto-level", "realized"] {
            assert!(!is_feature(name), "{name}");
        }
    }

    #[test]
    fn jobs_that_have_ended_or_are_drovers_own_are_in_nobodys_way() {
        let jobs = json!([
            {"device": "b", "type": "backup", "status": "running"},
            {"device": "c", "type": "commit", "status": "concluded"},
            {"device": "drover-mirror-0", "type": "mirror", "status": "ready"},
        ]);
        assert_eq!(others_jobs(&jobs), [BlockJob { name: "b".into(), kind: "backup".into() }]);
        assert_eq!(others_jobs(&json!({})), []);
    }

    #[test]
    fn drives_old_and_new_and_empty_ones() {
        let inserted =
            json!({"node-name": "n0", "file": "/vm/a.raw", "ro": false, "image": {"virtual-size": 512}});
        let new =
            json!({"device": "", "qdev": "/machine/peripheral/vd0/virtio-backend", "inserted": inserted});
        let (name, found) = disk(&new).unwrap();
        assert_eq!((name.as_str(), found.bytes, found.node.as_str()), ("/machine/peripheral/vd0", 512, "n0"));
        assert_eq!(disk(&json!({"device": "ide0-hd0", "inserted": inserted})).unwrap().0, "ide0-hd0");
        assert_eq!(disk(&json!({"device": "cd0"})), None);
        assert_eq!(disk(&json!({"inserted": inserted})), None);
    }
}
