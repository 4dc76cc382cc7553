//! What a monitor is asked before a move: what it can do, what its machine is, what it measures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use drover_live::{Ability, Disk, Machine};
use serde_json::{Value, json};

use super::guest::{Guest, POLL};
use crate::error::{QemuError, QemuErrorKind};

impl Guest {
    /// What this QEMU can do, by its own words.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub fn ability(&mut self) -> Result<Ability, QemuError> {
        let version = self.qmp.execute("query-version", Value::Null)?;
        let schema = self.qmp.execute("query-qmp-schema", Value::Null)?;
        let capabilities = self.qmp.execute("query-migrate-capabilities", Value::Null)?;
        Ok(Ability::read(&version, &schema, &capabilities))
    }

    /// What its machine is.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub fn machine(&mut self) -> Result<Machine, QemuError> {
        let migrating = self.qmp.execute("query-migrate", Value::Null)?;
        let is_busy = |status: &&str| {
            matches!(*status, "setup" | "active" | "cancelling" | "device")
                || status.starts_with("postcopy")
                || status.starts_with("pre-")
        };
        let reasons = migrating["blocked-reasons"].as_array().into_iter().flatten();
        let memory = self.qmp.execute("query-memory-size-summary", Value::Null)?;
        let processors = self.qmp.execute("query-cpus-fast", Value::Null)?;
        let paths: Vec<String> = texts(&processors, "qom-path");
        let asked: Vec<Value> = paths.iter().map(|path| kind_at(path)).collect();
        let kinds = self.qmp.execute_each("qom-get", &asked)?.into_iter();
        let kinds: Result<Vec<String>, QemuError> = kinds.map(|kind| Ok(text_of(&kind?))).collect();
        let features = match paths.first() {
            Some(path) => self.features(path)?,
            None => None,
        };
        Ok(Machine {
            status: self.status()?,
            kind: self.kind_of("/machine")?.trim_end_matches("-machine").to_string(),
            memory_bytes: memory["base-memory"].as_u64().unwrap_or_default(),
            processors: kinds?,
            features,
            devices: self.devices()?,
            disks: self.disks()?,
            blocked: reasons.filter_map(|reason| Some(reason.as_str()?.to_string())).collect(),
            migrating: migrating["status"].as_str().filter(is_busy).map(str::to_string),
        })
    }

    /// Whether it is what it was, of all that changes while a guest runs: its state, its devices, its disks.
    pub(super) fn is_still(&mut self, machine: &Machine) -> Result<bool, QemuError> {
        Ok(self.status()? == machine.status
            && self.devices()? == machine.devices
            && self.disks()? == machine.disks)
    }

    fn kind_of(&mut self, path: &str) -> Result<String, QemuError> {
        Ok(text_of(&self.qmp.execute("qom-get", kind_at(path))?))
    }

    /// Names of what a processor has switched on; nothing where they are not told.
    fn features(&mut self, processor: &str) -> Result<Option<Vec<String>>, QemuError> {
        let properties = self.qmp.execute("qom-list", json!({ "path": processor }))?;
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

    fn devices(&mut self) -> Result<BTreeMap<String, String>, QemuError> {
        let mut devices = BTreeMap::new();
        for folder in ["/machine/peripheral", "/machine/peripheral-anon"] {
            let children = self.qmp.execute("qom-list", json!({ "path": folder }))?;
            for child in children.as_array().into_iter().flatten() {
                let (Some(name), Some(kind)) = (child["name"].as_str(), child["type"].as_str()) else {
                    continue;
                };
                let Some(kind) = kind.strip_prefix("child<") else { continue };
                devices.insert(format!("{folder}/{name}"), kind.trim_end_matches('>').to_string());
            }
        }
        Ok(devices)
    }

    fn disks(&mut self) -> Result<BTreeMap<String, Disk>, QemuError> {
        let blocks = self.qmp.execute("query-block", Value::Null)?;
        Ok(blocks.as_array().into_iter().flatten().filter_map(disk).collect())
    }

    /// Bytes of pages that the guest writes to in a second, as QEMU finds by looking at a sample of pages for so long;
    /// nothing where it cannot tell.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`]; [`QemuErrorKind::Timeout`] if it never comes to an end.
    pub fn dirty_rate(&mut self, seconds: u64) -> Result<Option<f64>, QemuError> {
        // An older one still measures, or a newer one wants what it is not told: no reason not to move.
        if self.qmp.execute("calc-dirty-rate", json!({ "calc-time": seconds })).is_err() {
            return Ok(None);
        }
        self.measured(seconds)
    }

    fn measured(&mut self, seconds: u64) -> Result<Option<f64>, QemuError> {
        let until = Instant::now() + Duration::from_secs(seconds) + MEASURE_TIME_MAX;
        loop {
            let answer = self.qmp.execute("query-dirty-rate", Value::Null)?;
            if answer["status"] == "measured" {
                return Ok(answer["dirty-rate"]
                    .as_f64()
                    .filter(|rate| *rate >= 0.0)
                    .map(|mib| mib * (1 << 20) as f64));
            }
            if Instant::now() >= until {
                let what = "measuring how fast the guest writes".to_string();
                return Err(QemuError::new(QemuErrorKind::Timeout, what));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Guest {
    /// Whether KVM writes down in a ring which pages the guest writes to. Takes a second where it does.
    pub(super) fn has_dirty_ring(&mut self) -> Result<bool, QemuError> {
        // Asked for the ring without KVM, QEMU 7.2 ends.
        if self.qmp.execute("query-kvm", Value::Null)?["enabled"] != true {
            return Ok(false);
        }
        match self.qmp.execute("calc-dirty-rate", json!({"calc-time": 1, "mode": "dirty-ring"})) {
            Ok(_) => self.measured(1).map(|_| true),
            Err(error) if error.is_of_connection() => Err(error),
            Err(_) => Ok(false),
        }
    }
}

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
