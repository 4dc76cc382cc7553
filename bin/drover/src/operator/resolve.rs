//! A Plan is laid over its source, on a thread of its own.

use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use drover_forecast::{FleetDisk, FleetVm};
use drover_kubevirt::{Cluster, KubeErrorKind, objects};
use drover_landing::{PlanPolicy, boot_bus, is_conversion_due, machine_of};
use drover_operator::begun::{self, Begun};
use drover_operator::lock;
use drover_operator::model::{
    Conversion, DiskSize, MigrationSpec, Pinned, Place, PlanLimits, ProviderSpec, Size, SourceId, VmId,
    WarmSize, plan_text,
};
use drover_plan::{Convert, PlannedVm, Problem, SELECTORS, Target, chosen_by};
use drover_source::PlanSource;
use drover_types::chain;
use drover_types::inventory::Inventory;
use serde_json::{Value, json};

use crate::commands::plan::resolve_here;
use crate::exit::{Exit, Failure};
use crate::plan_file::{PlanFile, parse_quietly};
use crate::source::source_of;

/// Problems of a plan that a condition names; the rest is counted.
const PROBLEMS_MAX: usize = 10;
/// To merge the snapshot of a copy under way would end that copy.
const WHOSE_SNAPSHOT: &str = "a snapshot called drover-... is that of a copy, here or from another cluster: do not remove it while that \
                              copy is under way, but leave the VM out";
/// Files of a Secret that are used.
const FILES: [&str; 2] = ["password", "ca.crt"];

/// What is to be resolved.
pub struct Question {
    pub plan: Pinned,
    pub provider: Pinned,
    pub spec: ProviderSpec,
    pub keys: Value,
    pub namespace: String,
    /// Images that its pods may run.
    pub images: Vec<String>,
    /// VMs that are on their way.
    pub begun: Vec<Begun>,
}

/// Why it could not be.
#[derive(Debug)]
pub struct Refused {
    /// A word for programs.
    pub reason: String,
    /// Words for people.
    pub message: String,
    /// Whether the provider answered.
    pub provider_is_fine: bool,
}

/// What came of it.
pub struct Resolved {
    pub plan: Pinned,
    pub provider: Pinned,
    /// Its VMs.
    pub result: Result<Vec<MigrationSpec>, Refused>,
}

pub fn resolve(cluster: &Cluster, question: Question) -> Resolved {
    let laid = catch_unwind(AssertUnwindSafe(|| laid(cluster, &question)));
    let result =
        laid.unwrap_or_else(|_| Err(refused("Internal", "internal error: see the operator's log", true)));
    Resolved { plan: question.plan, provider: question.provider, result }
}

fn refused(reason: &str, message: impl Into<String>, provider_is_fine: bool) -> Refused {
    Refused { reason: reason.into(), message: message.into(), provider_is_fine }
}

fn laid(cluster: &Cluster, question: &Question) -> Result<Vec<MigrationSpec>, Refused> {
    let secret = &question.spec.secret_name;
    let path = format!("/api/v1/namespaces/{}/secrets/{secret}", question.namespace);
    let found = cluster.get(&path).map_err(|error| refused("SecretNotRead", error.what, false))?;
    let found =
        found.ok_or_else(|| refused("SecretMissing", format!("there is no Secret {secret}"), false))?;
    let folder = tempfile::tempdir().map_err(|error| refused("Internal", error.to_string(), true))?;
    let user = unpack(&found["data"], secret, folder.path())?;
    let place = Place {
        namespace: &question.namespace,
        folder: &folder.path().display().to_string(),
        images: &question.images,
    };
    let text = plan_text(&question.plan.name, &question.keys, &question.spec, &user, &place)
        .map_err(|why| refused("PlanForbidden", why, true))?;
    let parsed = parse_quietly(text, folder.path().join("plan.yaml"), folder.path().to_path_buf());
    let file = parsed.map_err(|problems| refused("PlanHasErrors", told(&problems), true))?;
    let policy = PlanPolicy::default();
    policy.check_plan(&file.plan).map_err(|why| refused("PlanForbidden", why.what, true))?;
    let at_source = |why: Failure| refused(&format!("Source{:?}", why.exit), why.message, false);
    let provider = source_of(&file, None).map_err(at_source)?;
    let asked = provider.inventory().map_err(|error| at_source(error.into()));
    let laid = asked.and_then(|inventory| {
        let elsewhere = elsewhere(cluster, &question.namespace, &inventory)?;
        over(question, &elsewhere, &file, &provider, inventory)
    });
    // A session that cannot be ended changes nothing in what was found.
    if let Err(error) = provider.close() {
        crate::out::say(format_args!("note: {}", chain(&error)));
    }
    laid
}

/// VMs that other namespaces move, or have moved.
fn elsewhere(cluster: &Cluster, namespace: &str, inventory: &Inventory) -> Result<Vec<Begun>, Refused> {
    match cluster.all(&lock::path("")) {
        Ok(locks) => Ok(lock::elsewhere(&locks, namespace, inventory)),
        // Nothing begins without them: Migrations tell that themselves.
        Err(error) if matches!(error.kind, KubeErrorKind::Denied | KubeErrorKind::NotServed) => {
            crate::out::say(format_args!("which VMs other namespaces move is not known: {error}"));
            Ok(Vec::new())
        }
        Err(error) => Err(refused("VmLocksNotRead", error.what, true)),
    }
}

fn over(
    question: &Question,
    elsewhere: &[Begun],
    file: &PlanFile,
    provider: &PlanSource,
    mut inventory: Inventory,
) -> Result<Vec<MigrationSpec>, Refused> {
    begun::settle(&mut inventory, &question.begun);
    begun::settle(&mut inventory, elsewhere);
    let resolution = resolve_here(file, provider, &mut inventory);
    if !resolution.is_ok() {
        let errors: Vec<Problem> = resolution.problems.iter().filter(|it| it.is_error()).cloned().collect();
        return Err(refused("PlanHasErrors", told(&errors), true));
    }
    check_order(&resolution.vms).map_err(|why| refused("PlanForbidden", why, true))?;
    let source = inventory.about.instance_uuid.clone();
    let specs = resolution.vms.iter().map(|vm| MigrationSpec {
        plan_ref: question.plan.clone(),
        provider: question.provider.clone(),
        source: SourceId { instance_uuid: source.clone() },
        vm: VmId {
            instance_uuid: vm.vm.instance_uuid.clone(),
            id: vm.vm.id.clone(),
            name: vm.vm.name.clone(),
        },
        target_name: objects::vm_name(vm),
        wave: vm.wave.clone(),
        size: Size { plan_limits: limits_of(&question.keys), ..size_of(vm) },
        conversion: conversion_of(vm, &file.plan.target),
        plan: alone(&question.keys, &chosen_by(&file.plan, &inventory, &vm.vm), vm),
        cancel: false,
    });
    Ok(specs.collect())
}

/// Refuses what orders VMs among each other: each worker knows its own VM alone.
fn check_order(vms: &[PlannedVm]) -> Result<(), String> {
    match vms.iter().find(|vm| vm.group.is_some() || vm.anti_affinity.is_some()) {
        Some(vm) => Err(format!(
            "vms[]: `group` and `anti_affinity` are not carried out by the operator ({}); leave them out",
            vm.vm.name
        )),
        None => Ok(()),
    }
}

/// Whether a guest is converted. What is in its disks is seen once they are copied, and then decides of those that are not sure.
fn conversion_of(vm: &PlannedVm, target: &Target) -> Conversion {
    match vm.convert {
        Convert::Never => Conversion::No,
        _ if is_conversion_due(vm, boot_bus(&machine_of(vm, target, ""))) => Conversion::Needed,
        Convert::Auto | Convert::Always => Conversion::Maybe,
    }
}

fn size_of(vm: &PlannedVm) -> Size {
    // What forecasts of runs go by, too.
    let foreseen = FleetVm::planned(vm, 0, "");
    let disk = |(disk, it): (&drover_plan::PlannedDisk, &FleetDisk)| DiskSize {
        bytes: disk.disk.capacity_bytes,
        datastore: disk.disk.datastore.clone(),
        data: Some(it.data_bytes).filter(|bytes| *bytes != disk.disk.capacity_bytes),
    };
    Size {
        host: vm.vm.host_id.clone(),
        disks: vm.disks.iter().zip(&foreseen.disks).map(disk).collect(),
        host_disks: vm.nfc.map(|nfc| nfc.disks_at_once.max(1)),
        priority: vm.priority,
        deadline_ms: vm.deadline_ms,
        plan_limits: PlanLimits::default(),
        verified_bytes: Some(foreseen.verified_bytes).filter(|bytes| *bytes != foreseen.data_bytes()),
        runs: Some(foreseen.runs),
        warm: foreseen.warm.map(|warm| WarmSize {
            interval_ms: warm.interval_ms,
            cutover_ms: warm.cutover_ms,
            downtime_ms: warm.downtime_ms,
        }),
    }
}

/// What a plan says of its limits itself: what holds unless it does is the operator's.
fn limits_of(keys: &Value) -> PlanLimits {
    let told = |key: &str| keys["limits"][key].as_u64().and_then(|number| u32::try_from(number).ok());
    PlanLimits { vms_per_host: told("vms_per_host"), disks: told("disks") }
}

/// A plan's keys for one VM: what its selections say of it, chosen by its id, under the name that it has now.
fn alone(keys: &Value, chosen: &[usize], vm: &PlannedVm) -> Value {
    let mut plan = keys.clone();
    let of = |place: &usize| {
        let mut selection = keys["vms"][*place].clone();
        if let Some(selection) = selection.as_object_mut() {
            SELECTORS.iter().for_each(|key| drop(selection.remove(*key)));
            selection.insert("id".into(), json!(vm.vm.id));
            selection.insert("target_name".into(), json!(objects::vm_name(vm)));
        }
        selection
    };
    plan["vms"] = chosen.iter().map(of).collect();
    let wave = vm.wave.as_ref().map(|wave| wave_alone(&keys["waves"], wave, &vm.vm.id));
    if let Some(plan) = plan.as_object_mut() {
        plan.remove("exclude");
        match wave {
            Some(wave) => drop(plan.insert("waves".into(), json!([wave]))),
            None => ["waves", "freezes"].iter().for_each(|key| drop(plan.remove(*key))),
        }
    }
    plan
}

/// The wave of a VM with it alone: its worker keeps to the window, and the operator to what has to be over before.
fn wave_alone(waves: &Value, name: &str, vm: &str) -> Value {
    let known = waves.as_array().into_iter().flatten().find(|it| it["name"] == name);
    let mut wave = known.cloned().unwrap_or_else(|| json!({"name": name}));
    if let Some(wave) = wave.as_object_mut() {
        ["after", "if_failed"].iter().for_each(|key| drop(wave.remove(*key)));
        wave.insert("vms".into(), json!([{"id": vm}]));
    }
    wave
}

/// Writes a Secret's files where only this user reads them; gives the user name.
fn unpack(data: &Value, secret: &str, folder: &Path) -> Result<String, Refused> {
    let value = |key: &str| data[key].as_str().and_then(decoded);
    let missing = |key: &str| refused("SecretIncomplete", format!("Secret {secret} has no {key}"), false);
    for name in FILES {
        let Some(bytes) = value(name) else { continue };
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(folder.join(name));
        let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, &bytes));
        written.map_err(|error| refused("Internal", error.to_string(), true))?;
    }
    if data["password"].is_null() {
        return Err(missing("password"));
    }
    let user = value("user").and_then(|bytes| String::from_utf8(bytes).ok());
    user.map(|user| user.trim().to_string()).filter(|user| !user.is_empty()).ok_or_else(|| missing("user"))
}

/// Base64 as the API server writes it.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        held = held << 6 | u32::from(digit(c)?);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

/// The first problems of a plan, without places in a text that nobody wrote.
pub fn told(problems: &[Problem]) -> String {
    let line = |it: &Problem| match it.path.is_empty() {
        true => it.message.clone(),
        false => format!("{}: {}", it.path, it.message),
    };
    let mut lines: Vec<String> = problems.iter().take(PROBLEMS_MAX).map(line).collect();
    if problems.len() > PROBLEMS_MAX {
        lines.push(format!("and {} more", problems.len() - PROBLEMS_MAX));
    }
    let has_snapshots =
        |it: &Problem| [" snapshot (", " snapshots ("].iter().any(|part| it.message.contains(part));
    if problems.iter().any(has_snapshots) {
        lines.push(WHOSE_SNAPSHOT.into());
    }
    lines.join("; ")
}

/// The word of an exit.
pub fn word_of(exit: Exit) -> String {
    format!("{exit:?}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::nfc::NfcShare;
    use drover_types::inventory::{PowerState, ToolsState, Vm, VmDisk};

    use super::*;

    fn running(id: &str, name: &str) -> Vm {
        let disk = VmDisk {
            key: 2000,
            label: "Hard disk 1".into(),
            capacity_bytes: 1 << 30,
            datastore: "ds1".into(),
            ..VmDisk::default()
        };
        Vm {
            id: id.into(),
            name: name.into(),
            instance_uuid: format!("uuid-{id}"),
            power: PowerState::On,
            change_tracking: true,
            tools: ToolsState::Running,
            disks: vec![disk],
            ..Vm::default()
        }
    }

    #[test]
    fn what_a_plan_says_of_limits_priority_and_deadline_goes_with_its_vms() {
        let inventory = Inventory { vms: vec![running("vm-1", "web01")], ..Inventory::default() };
        let keys = json!({
            "version": 1, "name": "p", "target": {"type": "kubevirt", "namespace": "vms", "image": "i"}, "power_off": "shutdown",
            "source": {"type": "vsphere", "endpoint": "vc", "user": "u", "password_file": "/p", "insecure": true},
            "limits": {"vms_per_host": 3, "memory": "128MiB"},
            "vms": [{"name": "web01", "priority": 7, "deadline": "2026-12-01T22:00:00Z"}],
        });
        let plan = drover_plan::Plan::parse(&keys.to_string()).unwrap();
        let mut vm = drover_plan::resolve(&plan, &inventory).vms.remove(0);
        let size = size_of(&vm);
        assert_eq!((size.host_disks, size.priority, size.deadline_ms), (None, 7, Some(1_796_162_400_000)));
        // For forecasts.
        assert_eq!(
            (size.runs, size.warm, size.verified_bytes, size.disks[0].data),
            (Some(true), None, None, None)
        );
        vm.nfc = Some(NfcShare { aio: None, disk_bytes: 1 << 20, disks_at_once: 27, request_bytes: 1 << 20 });
        assert_eq!(size_of(&vm).host_disks, Some(27));
        // The number of disks is the operator's.
        let limits = PlanLimits { vms_per_host: Some(3), disks: None };
        assert_eq!((limits_of(&keys), limits_of(&json!({}))), (limits, PlanLimits::default()));
    }

    #[test]
    fn a_worker_has_the_wave_of_its_vm_with_its_window_and_no_other() {
        let vms = vec![running("vm-1", "web01"), running("vm-2", "db01")];
        let inventory = Inventory { vms, ..Inventory::default() };
        let mut keys = json!({
            "version": 1, "name": "p", "target": {"type": "kubevirt", "namespace": "vms", "image": "i"}, "power_off": "shutdown",
            "source": {"type": "vsphere", "endpoint": "vc", "user": "u", "password_file": "/p", "insecure": true},
            "vms": [{"glob": "*"}, {"name": "db01", "wave": "rest"}], "freezes": "2026-12-24",
            "waves": [{"name": "pilot", "vms": [{"glob": "web*"}], "if_failed": "go_on"},
                {"name": "rest", "after": ["pilot"], "window": "22:00-06:00"}],
        });
        let plan = drover_plan::Plan::parse(&keys.to_string()).unwrap();
        let vms = drover_plan::resolve(&plan, &inventory).vms;
        let of = |name: &str| {
            let vm = vms.iter().find(|it| it.vm.name == name).unwrap();
            let keys = alone(&keys, &chosen_by(&plan, &inventory, &vm.vm), vm);
            let plan = drover_plan::Plan::parse(&keys.to_string()).unwrap();
            let alone = drover_plan::resolve(&plan, &inventory);
            assert!(alone.is_ok() && alone.vms.len() == 1, "{:?}", alone.problems);
            assert_eq!((&alone.vms[0].vm.name, &alone.vms[0].wave), (&vm.vm.name, &vm.wave));
            plan.waves()
        };
        let [pilot, rest] = ["web01", "db01"].map(|name| of(name).remove(0));
        assert_eq!((pilot.name.as_str(), rest.name.as_str()), ("pilot", "rest"));
        assert!(rest.after.is_empty() && !rest.window.windows.is_empty() && !pilot.window.freezes.is_empty());
        assert_eq!([of("web01").len(), of("db01").len()], [1, 1]);
        // One of a plan without waves keeps nothing of them.
        keys["waves"] = json!(null);
        keys["freezes"] = json!(null);
        let vm = PlannedVm { wave: None, ..vms[0].clone() };
        assert!(alone(&keys, &[0], &vm).get("freezes").is_none());
    }

    #[test]
    fn who_may_need_a_converter_is_told_by_guest_bus_and_plan() {
        let of = |guest_id: &str, keys: Value| {
            let vm = Vm { guest_id: guest_id.into(), ..running("vm-1", "web01") };
            let inventory = Inventory { vms: vec![vm], ..Inventory::default() };
            let mut plan = json!({
                "version": 1, "name": "p", "target": {"type": "kubevirt", "namespace": "vms", "image": "i"}, "power_off": "shutdown",
                "source": {"type": "vsphere", "endpoint": "vc", "user": "u", "password_file": "/p", "insecure": true},
                "vms": [{"name": "web01"}],
            });
            let (convert, bus) = (&keys["convert"], &keys["disk_bus"]);
            plan["convert"] = convert.as_str().unwrap_or("auto").into();
            plan["target"]["disk_bus"] = bus.as_str().unwrap_or("virtio").into();
            let plan = drover_plan::Plan::parse(&plan.to_string()).unwrap();
            let vm = drover_plan::resolve(&plan, &inventory).vms.remove(0);
            conversion_of(&vm, &plan.target)
        };
        let windows = "windows2019srv_64Guest";
        assert_eq!(of(windows, json!({})), Conversion::Needed);
        assert_eq!(of(windows, json!({"convert": "never"})), Conversion::No);
        assert_eq!(of(windows, json!({"disk_bus": "sata"})), Conversion::Maybe);
        assert_eq!(of("rhel9_64Guest", json!({})), Conversion::Maybe);
        assert_eq!(of("rhel9_64Guest", json!({"convert": "always"})), Conversion::Needed);
        assert_eq!(of("debian12_64Guest", json!({})), Conversion::Maybe);
    }

    #[test]
    fn secrets_are_read_as_the_server_writes_them() {
        for (text, plain) in
            [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj", "abc"), ("czNjcmV0", "s3cret")]
        {
            assert_eq!(decoded(text).as_deref(), Some(plain.as_bytes()), "{text}");
        }
        assert_eq!(decoded("a b"), None);
    }

    #[test]
    fn nobody_is_advised_to_remove_the_snapshot_of_a_copy() {
        let problem = |text: &str| Problem::error("vms[0]", format!("web01 {text}"));
        let text = told(&[problem("has 1 snapshot (drover-vm-1): its base disks lack later changes")]);
        assert!(text.contains("do not remove it while that copy is under way"), "{text}");
        assert!(!told(&[problem("is encrypted")]).contains("snapshot"));
    }
}
