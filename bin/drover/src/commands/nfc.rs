//! `drover nfc check`.

use std::path::Path;
use std::sync::Arc;

use drover_endpoint::{Place, place};
use drover_nfc::Trace;
use drover_source::check::{NfcCheck, NfcChecked};
use drover_source::single::find_disk;
use drover_types::inventory::PowerState;
use drover_types::{Bytes, count};
use drover_vsphere::Route;
use serde_json::{Value, json};

use crate::cli::NfcCheckArgs;
use crate::connect;
use crate::exit::{Exit, Failure};
use crate::signals::{Undo, stop_on_signals};
use crate::state::state_folder;

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
    let route = match &args.from {
        Some(address) => {
            Route::Host { address: address.clone(), trust: session.trust().clone(), login: None }
        }
        None => Route::Provider,
    };
    let check = NfcCheck {
        session: &session,
        vm: &vm,
        disk: &disk,
        route,
        encrypted: !args.clear_text,
        own_state: &state_folder(None),
        trace: args.trace.as_deref().map(trace).transpose()?,
    };
    let found = match vm.power {
        PowerState::Off => check.read()?,
        _ => {
            let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
            let undo = Undo::begin();
            let found = check.read_frozen(&stop);
            drop(undo);
            found?
        }
    };
    let told = told(&found);
    match args.json {
        true => crate::out::line(format!("{told:#}")),
        false => crate::out::print(&text(&told)),
    }
    session.logout()?;
    Ok(Exit::Success)
}

fn trace(path: &Path) -> Result<Arc<Trace>, Failure> {
    let file = std::fs::File::create(path)
        .map_err(|error| Failure::new(Exit::Usage, format!("trace {}: {error}", path.display())))?;
    Ok(Arc::new(Trace::new(Box::new(std::io::BufWriter::new(file)))))
}

fn told(found: &NfcChecked) -> Value {
    let NfcChecked { state, measured, used: (used, disks, budget) } = found;
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
        "budget": {"bytes": budget, "used": used, "disks": disks}, "notes": state.notes, "advice": found.advice(),
    })
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
