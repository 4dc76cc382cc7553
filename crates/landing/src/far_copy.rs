//! A copy at another host, for a rehearsal on this one: its agent reads the images, and QEMU's overlays lie on what is served here.
//!
//! ```text
//! image ── agent ── link ── this process ── unix socket (NBD) ── overlay ── QEMU
//! ```
//!
//! Nothing on this way writes: the agent opens the images to be read and refuses writes, and the server here takes none.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_agent::AgentDisk;
use drover_disk::{Disk, DiskErrorKind};
use drover_engine::{Cause, ProviderError, chain};
use drover_nbd_server::{Export, Listen, Server, ServerOptions};
use drover_plan::PlannedVm;
use tempfile::TempDir;

use crate::door;
use crate::there::There;

/// A guest may wait so long for its disks: drivers of Linux and Windows reset a disk that answers nothing for 30 s, and then a
/// check tells nothing of the copy.
const AWAY_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);

/// Images of a VM at another host, served on this one to be read.
pub struct FarCopy {
    // Fields drop in this order: the server goes before what it serves.
    server: Server,
    disks: Vec<Arc<AgentDisk>>,
    there: Arc<There>,
    /// Holds the server's socket, as long as somebody may come.
    door: Option<TempDir>,
}

impl FarCopy {
    /// Opens the images and serves them.
    pub(super) fn open(there: &Arc<There>, vm: &PlannedVm) -> Result<FarCopy, ProviderError> {
        let failed = |error: io::Error| {
            let what = format!("serving the disks of {} for its rehearsal", vm.target_name);
            ProviderError::new(Cause::Internal, what).because(error)
        };
        let away_max = there.retry_for().min(AWAY_MAX);
        let disks = there.open_copy(vm, away_max)?;
        let export = |(index, disk): (usize, &Arc<AgentDisk>)| Export::new(&index.to_string(), disk.clone());
        let exports = disks.iter().enumerate().map(export).collect();
        let door = door::open(door::REHEARSAL).map_err(failed)?;
        let listen = Listen::Unix(door.path().join(door::SOCKET));
        let options = ServerOptions::for_disks(disks.len());
        let server = Server::start(exports, &listen, options).map_err(failed)?;
        give_up_when_away(there, &disks, away_max).map_err(failed)?;
        Ok(FarCopy { server, disks, there: there.clone(), door: Some(door) })
    }

    /// Where the images are served, in the order of the disks.
    pub fn uris(&self) -> Vec<String> {
        (0..self.disks.len()).map(|index| self.server.uri(&index.to_string())).collect()
    }

    /// The images.
    pub fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.iter().map(|disk| disk.clone() as _).collect()
    }

    /// Nobody else connects from now on, and a drover that is killed leaves no socket.
    pub fn close_door(&mut self) {
        self.door.take();
    }

    /// Whether the host is away at the moment.
    pub fn is_away(&self) -> bool {
        !self.there.is_up()
    }

    /// Why the images cannot be read any more, once they cannot.
    pub fn lost(&self) -> Option<String> {
        let refusal = self.disks.iter().find_map(|disk| disk.failure())?;
        Some(format!("its disks at {} could not be read any more: {refusal}", self.there.name()))
    }

    /// What tells that somebody wrote to the images since they were opened.
    pub fn changed(&self) -> Option<String> {
        let mut errors = self.disks.iter().filter_map(|disk| disk.check_same().err());
        errors.find(|error| error.kind == DiskErrorKind::Failed).map(|error| chain(&error))
    }
}

impl Drop for FarCopy {
    fn drop(&mut self) {
        // QEMU has ended, and nobody waits for what it asked of a host that is away.
        if self.is_away() {
            self.disks.iter().for_each(|disk| disk.give_up("its rehearsal is over"));
        }
    }
}

/// Gives disks up once their host was away for so long: a guest waits for them, and so does whoever asks the guest.
fn give_up_when_away(there: &Arc<There>, disks: &[Arc<AgentDisk>], away_max: Duration) -> io::Result<()> {
    let there = there.clone();
    let disks: Vec<Weak<AgentDisk>> = disks.iter().map(Arc::downgrade).collect();
    let watcher = move || {
        let mut up = Instant::now();
        while disks.iter().any(|disk| disk.strong_count() > 0) {
            if there.is_up() {
                up = Instant::now();
            }
            if up.elapsed() >= away_max {
                let why = format!("no connection to its agent for {} s", away_max.as_secs());
                return disks.iter().filter_map(Weak::upgrade).for_each(|disk| disk.give_up(&why));
            }
            std::thread::sleep(LOOK);
        }
    };
    Builder::new().name("watch-rehearsal".into()).spawn(watcher).map(drop)
}
