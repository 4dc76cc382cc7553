//! Disks that go with the guest: the target's QEMU offers its own over NBD, the source's mirrors into them.
//!
//! A mirror copies everything, then every write until it is ended. It is ended while the guest stands still, so both
//! sides hold the same bytes when the target takes over; never before, and never after.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drover_live::{Ability, Disk, MirrorState, Tls};
use serde_json::{Value, json};

use super::guest::{Guest, POLL};
use crate::error::{QemuError, QemuErrorKind};

/// Where the target's QEMU offers its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAt {
    /// A unix socket that both sides reach.
    Unix(PathBuf),
    /// An address of the target and a port.
    Tcp(String, u16),
}

impl NbdAt {
    fn json(&self) -> Value {
        match self {
            NbdAt::Unix(path) => json!({"type": "unix", "data": {"path": path}}),
            NbdAt::Tcp(host, port) => {
                json!({"type": "inet", "data": {"host": host, "port": port.to_string()}})
            }
        }
    }

    /// From here to there and back: for as long as it takes to be told that nobody listens there yet. Nothing where that is not told, or
    /// it is on this host.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        let NbdAt::Tcp(host, port) = self else { return None };
        let at = (host.as_str(), *port).to_socket_addrs().ok()?.next().filter(|at| !at.ip().is_loopback())?;
        let once = || {
            let began = Instant::now();
            match TcpStream::connect_timeout(&at, ROUND_TRIP_TIME_MAX) {
                Ok(_) => Some(began.elapsed()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(began.elapsed()),
                Err(_) => None,
            }
        };
        // The first may have to find the way.
        once().and_then(|first| Some(first.min(once()?)))
    }

    fn flat(&self) -> Value {
        match self {
            NbdAt::Unix(path) => json!({"type": "unix", "path": path}),
            NbdAt::Tcp(host, port) => json!({"type": "inet", "host": host, "port": port.to_string()}),
        }
    }
}

/// For which a round trip is waited for.
const ROUND_TRIP_TIME_MAX: Duration = Duration::from_secs(2);

/// A disk on both sides.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// What it is plugged into.
    pub name: String,
    pub source: Disk,
    pub target: Disk,
    number: usize,
}

impl Pair {
    pub fn new(number: usize, name: String, source: Disk, target: Disk) -> Pair {
        Pair { name, source, target, number }
    }

    fn export(&self) -> String {
        format!("drover-{}", self.number)
    }

    pub(super) fn job(&self) -> String {
        format!("{MIRROR}{}", self.number)
    }

    fn node(&self) -> String {
        format!("drover-nbd-{}", self.number)
    }
}

/// What the names of drover's mirrors begin with.
pub(super) const MIRROR: &str = "drover-mirror-";

impl Guest {
    /// Offers the disks for writing (target).
    pub(super) fn offer(&mut self, pairs: &[Pair], at: &NbdAt, tls: Option<&Tls>) -> Result<(), QemuError> {
        let mut server = json!({"addr": at.json()});
        if let Some(tls) = tls {
            server["tls-creds"] = json!(tls.credentials);
        }
        self.qmp.execute("nbd-server-start", server)?;
        for pair in pairs {
            let export = json!({"type": "nbd", "id": pair.export(), "name": pair.export(),
                "node-name": pair.target.node, "writable": true});
            self.qmp.execute("block-export-add", export)?;
        }
        Ok(())
    }

    /// Ends the offer (target); there may be none.
    pub(super) fn withdraw(&mut self) -> Result<(), QemuError> {
        self.order("nbd-server-stop")
    }

    /// Begins to mirror a disk (source), so many bytes a second where that is said.
    pub(super) fn mirror(
        &mut self,
        pair: &Pair,
        at: &NbdAt,
        ability: &Ability,
        tls: Option<&Tls>,
        speed: Option<u64>,
    ) -> Result<(), QemuError> {
        let mut node =
            json!({"driver": "nbd", "node-name": pair.node(), "export": pair.export(), "server": at.flat()});
        if let Some(tls) = tls {
            node["tls-creds"] = json!(tls.credentials);
            if !tls.hostname.is_empty() {
                node["tls-hostname"] = json!(tls.hostname);
            }
        }
        self.qmp.execute("blockdev-add", node)?;
        let mut job =
            json!({"job-id": pair.job(), "device": pair.source.node, "target": pair.node(), "sync": "full"});
        if let Some(speed) = speed {
            job["speed"] = json!(speed);
        }
        if ability.mirror_takes("auto-dismiss") {
            job["auto-dismiss"] = json!(true);
        }
        // A job of the same name that an earlier run left may have failed, which is nothing of this one.
        self.forget_job(&pair.job())?;
        self.qmp.execute("blockdev-mirror", job).map(drop)
    }

    /// Has each write of the guest wait for the target from now on (source).
    pub(super) fn mirror_in_step(&mut self, pairs: &[Pair]) -> Result<(), QemuError> {
        for pair in pairs {
            let change = json!({"id": pair.job(), "type": "mirror", "copy-mode": "write-blocking"});
            self.qmp.execute("block-job-change", change)?;
        }
        Ok(())
    }

    /// How far a mirror is.
    ///
    /// # Errors
    /// If there is none any more: it ended with an error, which is told as QEMU did.
    pub(super) fn mirror_state(&mut self, pair: &Pair) -> Result<MirrorState, QemuError> {
        let jobs = self.qmp.execute("query-block-jobs", Value::Null)?;
        let mut jobs = jobs.as_array().cloned().unwrap_or_default().into_iter();
        let Some(job) = jobs.find(|job| job["device"] == json!(pair.job())) else {
            self.jobs_ended_well(std::slice::from_ref(pair))?;
            let why = "its mirror ended by itself: the target refused a write, or the line broke";
            return Err(QemuError::new(QemuErrorKind::Failed, format!("disk {}", pair.name)).because(why));
        };
        let number = |key: &str| job[key].as_u64().unwrap_or_default();
        if job["io-status"].as_str().is_some_and(|status| status != "ok") {
            let why = format!("its mirror stopped: {}", job["io-status"]);
            return Err(QemuError::new(QemuErrorKind::Failed, format!("disk {}", pair.name)).because(why));
        }
        Ok(MirrorState {
            done_bytes: number("offset"),
            all_bytes: number("len"),
            is_ready: job["ready"] == true,
        })
    }

    /// Ends mirrors whose guest stands still, so that both sides hold the same; waits until they have ended well. Their nodes stay: to
    /// remove one takes a round trip for a last flush, for which the guest would stand ([`Guest::drop_nodes`]).
    pub(super) fn end_mirrors(&mut self, pairs: &[Pair], time_max: Duration) -> Result<(), QemuError> {
        for pair in pairs {
            if !self.mirror_state(pair)?.is_ready {
                let what = format!("disk {}", pair.name);
                return Err(QemuError::new(QemuErrorKind::Failed, what).because("its mirror is not ready"));
            }
            self.qmp.execute("block-job-cancel", json!({"device": pair.job()}))?;
        }
        self.wait_for_jobs(pairs, time_max)?;
        self.jobs_ended_well(pairs)
    }

    /// Ends mirrors at once, whatever they have copied; those that are not there are none.
    pub(super) fn drop_mirrors(&mut self, pairs: &[Pair], time_max: Duration) -> Result<(), QemuError> {
        for pair in pairs {
            // The job may never have begun, or have ended with an error: either way it is gone.
            let _ = self.qmp.execute("block-job-cancel", json!({"device": pair.job(), "force": true}));
        }
        let waited = self.wait_for_jobs(pairs, time_max);
        let dropped = self.drop_nodes(pairs);
        waited.and(dropped)
    }

    fn wait_for_jobs(&mut self, pairs: &[Pair], time_max: Duration) -> Result<(), QemuError> {
        let until = Instant::now() + time_max;
        loop {
            let jobs = self.qmp.execute("query-block-jobs", Value::Null)?;
            let is_ours = |job: &&Value| pairs.iter().any(|pair| job["device"] == json!(pair.job()));
            let Some(job) = jobs.as_array().and_then(|jobs| jobs.iter().find(is_ours)) else {
                return Ok(());
            };
            if Instant::now() >= until {
                let what = format!("end of the mirror {}", job["device"]);
                return Err(QemuError::new(QemuErrorKind::Timeout, what));
            }
            // The end of one is told.
            self.wait_for_news(POLL)?;
        }
    }

    /// Whether those that are gone did. A job tells how it ended in its last event only.
    fn jobs_ended_well(&mut self, pairs: &[Pair]) -> Result<(), QemuError> {
        let failed = &self.seen()?.failed_jobs;
        let of_pair = |pair: &Pair| failed.iter().find(|(job, _)| *job == pair.job()).map(|(_, error)| error);
        let Some((pair, error)) = pairs.iter().find_map(|pair| Some((pair, of_pair(pair)?))) else {
            return Ok(());
        };
        let what = format!("disk {}", pair.name);
        Err(QemuError::new(QemuErrorKind::of_words(error), what).because(error.clone()))
    }

    /// Removes what mirrors that have ended went by.
    pub(super) fn drop_nodes(&mut self, pairs: &[Pair]) -> Result<(), QemuError> {
        let nodes = self.qmp.execute("query-named-block-nodes", json!({"flat": true}))?;
        let is_there =
            |name: &str| nodes.as_array().into_iter().flatten().any(|node| node["node-name"] == name);
        for node in pairs.iter().map(Pair::node).filter(|node| is_there(node)) {
            self.qmp.execute("blockdev-del", json!({ "node-name": node }))?;
        }
        Ok(())
    }
}
