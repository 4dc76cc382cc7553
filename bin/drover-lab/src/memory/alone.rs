//! QEMU alone, with the settings that its users have to find by hand.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path as Folder, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_mover::StopSignal;
use drover_pulse::Pulse;
use drover_qemu::Qmp;
use serde_json::{Value, json};

use super::ours::Ours;
use super::run::{Terms, Told, look_again};
use super::tables::Path;
use crate::cli::By;

const ANSWER: Duration = Duration::from_secs(60);
/// QEMU's own cap is 128 MiB/s; this is none.
const NO_LIMIT: u64 = 100_000_000_000;
/// What is cancelled must have ended.
const CANCEL: Duration = Duration::from_secs(60);
/// All was sent at the limit: the target has this time to take it in and run.
const ARRIVAL: Duration = Duration::from_secs(10);
/// The first guest's; where RDMA waits QEMU does not tell, so ports are named.
const RDMA_PORT: u16 = 24_321;

/// One guest's move, and how it goes.
struct Move {
    source: PathBuf,
    target: PathBuf,
    /// Where the target waits; port 0 is a free one.
    uri: String,
    settings: Settings,
}

/// What is set at both ends.
#[derive(Clone)]
struct Settings {
    channels: u8,
    /// Folder of the key.
    tls: Option<PathBuf>,
    chunk: Option<u64>,
    terms: Terms,
}

/// Where the target of guest `number` waits for RDMA.
pub fn rdma_uri(ours: &Ours<'_>, number: usize) -> Result<String> {
    let address = ours.bench.host.rdma.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
    // There are few guests.
    let port = RDMA_PORT + u16::try_from(number)?;
    Ok(format!("rdma:{}", SocketAddr::new(*address, port)))
}

/// Moves guests, all at once.
pub fn migrate(pairs: &[(Pulse, Pulse)], ours: &Ours<'_>, path: &Path) -> Result<Told> {
    let (channels, tls) = match path.way.by {
        By::Qemu { channels, tls } => (channels, tls.then(|| ours.folder.join("tls"))),
        By::Drover { .. } | By::Link | By::Chosen | By::Rdma { .. } => (1, None),
    };
    if let Some(folder) = &tls {
        make_key(folder)?;
    }
    let settings = Settings { channels, tls, chunk: path.chunk, terms: ours.bench.terms };
    let one = |(number, (source, target)): (usize, &(Pulse, Pulse))| {
        let uri = match path.way.is_rdma() {
            true => rdma_uri(ours, number)?,
            false => ours.ground.tcp_uri(),
        };
        Ok(Move { source: source.monitor(), target: target.monitor(), uri, settings: settings.clone() })
    };
    let moves = pairs.iter().enumerate().map(one).collect::<Result<Vec<Move>>>()?;
    let stop = &ours.bench.stop;
    let told: Vec<Result<Told>> = thread::scope(|scope| {
        let threads: Vec<_> = moves.iter().map(|one| scope.spawn(move || one.go(stop))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let told = told.into_iter().collect::<Result<Vec<Told>>>()?;
    told.into_iter().reduce(|all, one| all.beside(&one)).context("no guests")
}

impl Move {
    fn go(&self, stop: &StopSignal) -> Result<Told> {
        let mut from = Qmp::connect(&self.source, ANSWER)?;
        let mut to = Qmp::connect(&self.target, ANSWER)?;
        self.settings.set(&mut to, "server")?;
        self.settings.set(&mut from, "client")?;
        to.execute("migrate-incoming", json!({"uri": self.uri}))?;
        let uri = heard_at(&self.uri, &mut to)?;
        let began = Instant::now();
        from.execute("migrate", json!({"uri": uri}))?;
        let until = began + self.settings.terms.limit;
        loop {
            let told = from.execute("query-migrate", Value::Null)?;
            let is_late = Instant::now() >= until;
            match told["status"].as_str().unwrap_or_default() {
                "completed" => {
                    wait_until_it_runs(&mut to, until.max(Instant::now() + ARRIVAL), stop)?;
                    return Ok(outcome(&told, began.elapsed(), None));
                }
                "failed" | "cancelled" => bail!("QEMU says {}", why(&told)),
                _ if is_late => {
                    let late = late(&told, self.settings.terms.limit);
                    let outcome = outcome(&told, began.elapsed(), Some(late));
                    cancel(&mut from, stop)?;
                    return Ok(outcome);
                }
                _ => look_again(until, stop)?,
            }
        }
    }
}

/// What QEMU says of a move that failed.
fn why(told: &Value) -> String {
    told["error-desc"].as_str().map_or_else(|| told.to_string(), str::to_string)
}

/// Where the target listens, with its port.
fn heard_at(uri: &str, to: &mut Qmp) -> Result<String> {
    let Some(place) = uri.strip_suffix(":0") else { return Ok(uri.to_string()) };
    let told = to.execute("query-migrate", Value::Null)?;
    let port = told["socket-address"][0]["port"].as_str().context("the target's port")?;
    Ok(format!("{place}:{port}"))
}

/// Why it is not done, with what QEMU says.
fn late(told: &Value, limit: Duration) -> String {
    let ram = |what: &str| told["ram"][what].as_u64().unwrap_or_default();
    format!(
        "given up after {} s: {} MiB left, {} passes",
        limit.as_secs_f64(),
        ram("remaining") >> 20,
        ram("dirty-sync-count")
    )
}

fn outcome(told: &Value, time: Duration, late: Option<String>) -> Told {
    Told {
        seconds: time.as_secs_f64(),
        beside_s: 0.0,
        bytes: told["ram"]["transferred"].as_u64().unwrap_or_default(),
        counted_ms: told["downtime"].as_u64().filter(|_| late.is_none()),
        late,
        cpu_s: 0.0,
        foreseen_s: None,
        chosen: None,
    }
}

/// The source has sent all; the target may still be taking it in.
fn wait_until_it_runs(to: &mut Qmp, until: Instant, stop: &StopSignal) -> Result<()> {
    while to.status()? != "running" {
        ensure!(Instant::now() < until, "all is sent, and the guest does not run at the target");
        look_again(until, stop)?;
    }
    Ok(())
}

fn cancel(qmp: &mut Qmp, stop: &StopSignal) -> Result<()> {
    qmp.execute("migrate_cancel", Value::Null)?;
    let until = Instant::now() + CANCEL;
    while Instant::now() < until {
        let told = qmp.execute("query-migrate", Value::Null)?;
        if told["status"] != "cancelling" && told["status"] != "active" {
            return Ok(());
        }
        look_again(until, stop)?;
    }
    Ok(())
}

impl Settings {
    fn set(&self, qmp: &mut Qmp, end: &str) -> Result<()> {
        let downtime_ms = u64::try_from(self.terms.downtime.as_millis())?;
        let mut parameters = json!({"max-bandwidth": NO_LIMIT, "downtime-limit": downtime_ms});
        if self.channels > 1 {
            let capabilities = json!({"capabilities": [{"capability": "multifd", "state": true}]});
            qmp.execute("migrate-set-capabilities", capabilities)?;
            parameters["multifd-channels"] = json!(self.channels);
        }
        if let Some(folder) = &self.tls {
            let credentials =
                json!({"qom-type": "tls-creds-psk", "id": "tls0", "dir": folder, "endpoint": end});
            qmp.execute("object-add", credentials)?;
            parameters["tls-creds"] = json!("tls0");
        }
        if let Some(chunk) = self.chunk {
            parameters["x-rdma-chunk-size"] = json!(chunk);
        }
        qmp.execute("migrate-set-parameters", parameters)?;
        Ok(())
    }
}

/// A key that both sides share: what is measured is the cipher, which is that of certificates too.
fn make_key(folder: &Folder) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let key: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(std::fs::write(folder.join("keys.psk"), format!("qemu:{key}\n"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_at_the_limit_has_its_reason_and_no_downtime() {
        let told =
            json!({"ram": {"transferred": 9, "remaining": 5 << 20, "dirty-sync-count": 3}, "downtime": 7});
        let why = late(&told, Duration::from_secs(2));
        assert_eq!(why, "given up after 2 s: 5 MiB left, 3 passes");
        let given_up = outcome(&told, Duration::from_secs(2), Some(why));
        assert_eq!((given_up.bytes, given_up.counted_ms, given_up.late.is_some()), (9, None, true));
        let done = outcome(&told, Duration::from_secs(1), None);
        assert_eq!((done.counted_ms, done.late), (Some(7), None));
    }
}
