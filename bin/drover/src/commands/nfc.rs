//! `drover nfc check`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_endpoint::{Place, place};
use drover_nfc::{NfcState, Trace};
use drover_source::frozen;
use drover_source::nfc::{Asked, NfcWay};
use drover_source::single::find_disk;
use drover_types::inventory::{PowerState, Snapshot, Vm, VmDisk};
use drover_types::{Bytes, count};
use drover_vddk::{Measured, measure};
use drover_vsphere::{Route, Session};
use rustix::system::uname;
use serde_json::{Value, json};

use crate::cli::NfcCheckArgs;
use crate::connect;
use crate::exit::{Exit, Failure};
use crate::signals::{Undo, stop_on_signals};
use crate::state::state_folder;

/// Read to learn the rate, and for how long at most.
const MEASURE_BYTES_MAX: u64 = 16 << 30;
const MEASURE_TIME_MAX: Duration = Duration::from_secs(5);
/// What the note of the protocol has from others, in bytes per second of one disk: below it something is in the way.
const USUAL_BYTES_PER_S: u64 = 150_000_000;

/// Every snapshot of a check is called so, and says so: one that a killed check left is known by it.
const SNAPSHOT_NAME: &str = "drover-nfc-check";
const SNAPSHOT_DESCRIPTION: &str = "made by drover nfc check, which removes it again";
/// No check takes so long: a snapshot of that age was left, whoever made it.
const LEFT_AFTER: Duration = Duration::from_secs(60 * 60);

/// Reads a disk for a moment. Nothing is changed, but for a snapshot of a VM that runs.
pub fn check(args: &NfcCheckArgs) -> Result<Exit, Failure> {
    let Ok(Place::Vsphere { host, vm, disk }) = place(&format!("vsphere://{}", args.disk)) else {
        let message = format!("'{}' is not HOST[:PORT]/VM/DISK, with DISK counted from 0", args.disk);
        return Err(Failure::new(Exit::Usage, message));
    };
    let session = connect::connect_host(&host, args.user.as_deref(), &args.secret)?;
    let (vm, disk) = find_disk(&session, &vm, disk)?;
    if vm.power != PowerState::Off && !args.snapshot {
        let message = format!("{} runs, and a running VM is read from a snapshot only", vm.name);
        return Err(Failure::new(Exit::Plan, message)
            .advise("name one that is off, or add --snapshot: one is made of it, and removed again"));
    }
    let told = match vm.power {
        PowerState::Off => read(args, &session, &vm, &disk, &disk),
        _ => read_frozen(args, &session, &vm, &disk),
    }?;
    match args.json {
        true => crate::out::line(format!("{told:#}")),
        false => crate::out::print(&text(&told)),
    }
    session.logout()?;
    Ok(Exit::Success)
}

/// Reads a disk of a VM that runs, from a snapshot that is removed whatever comes of it.
fn read_frozen(args: &NfcCheckArgs, session: &Session, vm: &Vm, disk: &VmDisk) -> Result<Value, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let undo = Undo::begin();
    let here = uname().nodename().to_string_lossy().into_owned();
    for left in vm.snapshots.iter().filter(|it| is_left(it, &here, SystemTime::now(), &runs)) {
        session.remove_snapshot(&left.id)?;
    }
    let description = format!("{SNAPSHOT_DESCRIPTION} (process {} on {here})", std::process::id());
    let made = session.create_snapshot(&vm.id, SNAPSHOT_NAME, &description, false)?;
    let frozen = frozen(session, vm, disk, &made.id).map_err(Failure::from);
    let told = frozen.and_then(|frozen| match stop.is_set() {
        true => Err(Failure::new(Exit::Interrupted, "interrupted")),
        false => read(args, session, vm, disk, &frozen.disk),
    });
    let removed = session.remove_snapshot(&made.id);
    drop(undo);
    if let Err(error) = removed {
        let why = told.as_ref().err().map(|first| format!("; before that: {}", first.message));
        let message = format!(
            "the snapshot {SNAPSHOT_NAME} of {} may still be there: {}{}",
            vm.name,
            drover_engine::chain(&error),
            why.unwrap_or_default()
        );
        let advice = "run the check with --snapshot again, which removes it, or remove it by hand";
        return Err(Failure::new(Exit::Source, message).advise(advice));
    }
    match stop.is_set() {
        true => Err(Failure::new(Exit::Interrupted, "interrupted; the source is as it was")),
        false => told,
    }
}

/// Whether a snapshot was left by a check that ended, on this host or long ago. Another check may be reading from one.
fn is_left(snapshot: &Snapshot, here: &str, now: SystemTime, runs: &dyn Fn(u32) -> bool) -> bool {
    let Some(by) = snapshot.description.strip_prefix(SNAPSHOT_DESCRIPTION) else { return false };
    let by = by.strip_prefix(" (process ").and_then(|by| by.strip_suffix(')')?.split_once(" on "));
    let has_ended = by.is_some_and(|(process, host)| host == here && !process.parse().is_ok_and(runs));
    let created = snapshot.created_s.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    has_ended || created.is_some_and(|created| now.duration_since(created).is_ok_and(|age| age > LEFT_AFTER))
}

fn runs(process: u32) -> bool {
    std::path::Path::new(&format!("/proc/{process}")).exists()
}

fn read(
    args: &NfcCheckArgs,
    session: &Session,
    vm: &Vm,
    disk: &VmDisk,
    frozen: &VmDisk,
) -> Result<Value, Failure> {
    let trace = match &args.trace {
        Some(path) => {
            let file = std::fs::File::create(path)
                .map_err(|error| Failure::new(Exit::Usage, format!("trace {}: {error}", path.display())))?;
            Some(Arc::new(Trace::new(Box::new(std::io::BufWriter::new(file)))))
        }
        None => None,
    };
    let way = NfcWay::unasked(&state_folder(None)).encrypted(!args.clear_text);
    let route = match &args.from {
        Some(address) => {
            Route::Host { address: address.clone(), trust: session.trust().clone(), login: None }
        }
        None => Route::Provider,
    };
    let asked =
        Asked { session, vm, disk, frozen, route, identity: frozen.path.clone(), extents: None, trace };
    let opened = way.open(asked)?;
    let buffer_bytes = opened.state().buffer_bytes;
    let measured = measure(&opened, MEASURE_BYTES_MAX, MEASURE_TIME_MAX, buffer_bytes)
        .map_err(|error| Failure::new(crate::exit::disk_exit(&error, ""), drover_engine::chain(&error)))?;
    let state = opened.state();
    let used = way
        .used(&state.memory_of, &state.service)
        .map_err(|error| Failure::new(Exit::Internal, format!("the ledger of NFC memory: {error}")))?;
    Ok(told(&state, &measured, used))
}

fn told(state: &NfcState, measured: &Measured, (used, disks, budget): (u64, u32, u64)) -> Value {
    let rates: Vec<Value> = state
        .rates
        .iter()
        .map(|(codec, rate)| json!({"codec": codec.to_string(), "bytes_per_s": *rate as u64}))
        .collect();
    json!({
        "host": state.host, "service": state.service, "version": state.version, "buffers": state.buffers,
        "bytes": measured.bytes, "wire_bytes": state.bytes.1, "ms": measured.time.as_millis() as u64,
        "bytes_per_s": measured.rate(), "latency_us": measured.latency.as_micros() as u64,
        "compression": state.codec.map(|codec| codec.to_string()), "compression_rates": rates,
        "budget": {"bytes": budget, "used": used, "disks": disks}, "notes": state.notes, "advice": advice(measured),
    })
}

fn advice(measured: &Measured) -> &'static str {
    match measured.rate() {
        _ if measured.bytes == 0 => "the disk holds no data to read; name another",
        rate if rate >= USUAL_BYTES_PER_S => {
            "this is what others reach with one disk; several disks at once may bring more"
        }
        _ if measured.latency > Duration::from_millis(20) => {
            "answers take long: look at the datastore's latency, and at the line between here and the host"
        }
        _ => {
            "slow for one disk: look at the line (10 Gbit/s?), the host's vSphereBackupNFC vmknic, and whether a backup runs"
        }
    }
}

fn text(told: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let word = |key: &str| told[key].as_str().unwrap_or("not chosen yet").to_string();
    let rates = told["compression_rates"].as_array().into_iter().flatten();
    let rates: Vec<String> = rates
        .map(|it| {
            format!("{} {}/s", it["codec"].as_str().unwrap_or_default(), Bytes(number(&it["bytes_per_s"])))
        })
        .collect();
    let mut lines = vec![
        format!("host         {} ({}, NFC version {})", word("host"), word("service"), told["version"]),
        format!("buffers      {}", word("buffers")),
        format!(
            "budget       {} of {} in use by {} of this machine's drovers",
            Bytes(number(&told["budget"]["used"])),
            Bytes(number(&told["budget"]["bytes"])),
            count(number(&told["budget"]["disks"]) as usize, "disk")
        ),
        format!(
            "read         {} in {} ms, {}/s; {} over the line; a lone request takes {:.1} ms",
            Bytes(number(&told["bytes"])),
            told["ms"],
            Bytes(number(&told["bytes_per_s"])),
            Bytes(number(&told["wire_bytes"])),
            number(&told["latency_us"]) as f64 / 1e3
        ),
        format!("compression  {} ({})", word("compression"), rates.join(", ")),
    ];
    for note in told["notes"].as_array().into_iter().flatten() {
        lines.push(format!("note         {}", note.as_str().unwrap_or_default()));
    }
    lines.push(format!("advice       {}", word("advice")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_a_check_is_left_once_its_process_is_gone_or_an_hour_has_passed() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let is_left = |description: &str, age_s: u64| {
            let snapshot = Snapshot {
                description: description.to_string(),
                created_s: Some(1_800_000_000 - age_s),
                ..Snapshot::default()
            };
            is_left(&snapshot, "here", now, &|process| process == 7)
        };
        let by = |process: &str| format!("{SNAPSHOT_DESCRIPTION} (process {process})");
        assert!(is_left(&by("8 on here"), 0));
        assert!(
            !is_left(&by("7 on here"), 0) && is_left(&by("7 on here"), 3601),
            "it runs, or another has its number"
        );
        assert!(!is_left(&by("8 on there"), 0) && is_left(&by("8 on there"), 3601));
        assert!(
            !is_left(SNAPSHOT_DESCRIPTION, 0) && is_left(SNAPSHOT_DESCRIPTION, 3601),
            "of an older drover"
        );
        assert!(!is_left("somebody's", 3601));
    }
}
