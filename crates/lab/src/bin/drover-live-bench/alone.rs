//! QEMU alone, with the settings that its users have to find by hand.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_lab::Pulse;
use drover_qemu::Qmp;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::run::{Terms, Told, look_again};

const ANSWER: Duration = Duration::from_secs(60);
/// QEMU's own cap is 128 MiB/s; this is none.
const NO_LIMIT: u64 = 100_000_000_000;
/// What is cancelled must have ended.
const CANCEL: Duration = Duration::from_secs(60);

/// Moves guests, all at once, encrypted by a key in a folder of its own if one is given.
pub fn migrate(
    pairs: &[(Pulse, Pulse)],
    ground: &Ground,
    channels: u8,
    tls: Option<&Path>,
    terms: &Terms,
) -> Result<Told> {
    if let Some(folder) = tls {
        make_key(folder)?;
    }
    let monitors: Vec<[PathBuf; 2]> =
        pairs.iter().map(|(source, target)| [source.monitor(), target.monitor()]).collect();
    let address = ground.far_address();
    let told: Vec<Result<Told>> = thread::scope(|scope| {
        let one = |monitors| scope.spawn(move || migrate_one(monitors, address, channels, tls, terms));
        let threads: Vec<_> = monitors.iter().map(one).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let mut all: Option<Told> = None;
    for one in told {
        let one = one?;
        all = Some(match all {
            Some(all) => all.beside(&one),
            None => one,
        });
    }
    all.context("no guests")
}

fn migrate_one(
    [source, target]: &[PathBuf; 2],
    address: IpAddr,
    channels: u8,
    tls: Option<&Path>,
    terms: &Terms,
) -> Result<Told> {
    let mut from = Qmp::connect(source, ANSWER)?;
    let mut to = Qmp::connect(target, ANSWER)?;
    for (qmp, end) in [(&mut to, "server"), (&mut from, "client")] {
        set(qmp, channels, tls.map(|folder| (folder, end)), terms)?;
    }
    to.execute("migrate-incoming", json!({"uri": format!("tcp:{address}:0")}))?;
    let told = to.execute("query-migrate", Value::Null)?;
    let port = told["socket-address"][0]["port"].as_str().context("the target's port")?;
    let began = Instant::now();
    from.execute("migrate", json!({"uri": format!("tcp:{address}:{port}")}))?;
    let until = began + terms.limit();
    loop {
        let told = from.execute("query-migrate", Value::Null)?;
        let is_late = Instant::now() >= until;
        match told["status"].as_str().unwrap_or_default() {
            "completed" => {
                wait_until_it_runs(&mut to, until)?;
                return Ok(outcome(&told, began.elapsed(), true));
            }
            "failed" | "cancelled" => bail!("QEMU says {told}"),
            _ if is_late => {
                let outcome = outcome(&told, began.elapsed(), false);
                cancel(&mut from)?;
                return Ok(outcome);
            }
            _ => look_again(until),
        }
    }
}

fn outcome(told: &Value, time: Duration, is_done: bool) -> Told {
    Told {
        seconds: time.as_secs_f64(),
        before_s: 0.0,
        bytes: told["ram"]["transferred"].as_u64().unwrap_or_default(),
        counted_ms: told["downtime"].as_u64().filter(|_| is_done),
        is_done,
        cpu_s: 0.0,
        foreseen_s: None,
    }
}

/// The source has sent all; the target may still be taking it in.
fn wait_until_it_runs(to: &mut Qmp, until: Instant) -> Result<()> {
    while to.status()? != "running" {
        ensure!(Instant::now() < until, "all is sent, and the guest does not run at the target");
        look_again(until);
    }
    Ok(())
}

fn cancel(qmp: &mut Qmp) -> Result<()> {
    qmp.execute("migrate_cancel", Value::Null)?;
    let until = Instant::now() + CANCEL;
    while Instant::now() < until {
        let told = qmp.execute("query-migrate", Value::Null)?;
        if told["status"] != "cancelling" && told["status"] != "active" {
            return Ok(());
        }
        look_again(until);
    }
    Ok(())
}

fn set(qmp: &mut Qmp, channels: u8, tls: Option<(&Path, &str)>, terms: &Terms) -> Result<()> {
    let mut parameters = json!({"max-bandwidth": NO_LIMIT, "downtime-limit": terms.downtime_ms});
    if channels > 1 {
        let capabilities = json!({"capabilities": [{"capability": "multifd", "state": true}]});
        qmp.execute("migrate-set-capabilities", capabilities)?;
        parameters["multifd-channels"] = json!(channels);
    }
    if let Some((folder, end)) = tls {
        let credentials = json!({"qom-type": "tls-creds-psk", "id": "tls0", "dir": folder, "endpoint": end});
        qmp.execute("object-add", credentials)?;
        parameters["tls-creds"] = json!("tls0");
    }
    qmp.execute("migrate-set-parameters", parameters)?;
    Ok(())
}

/// A key that both sides share: what is measured is the cipher, which is that of certificates too.
fn make_key(folder: &Path) -> Result<()> {
    use std::io::Read;
    std::fs::create_dir_all(folder)?;
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let key: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(std::fs::write(folder.join("keys.psk"), format!("qemu:{key}\n"))?)
}
