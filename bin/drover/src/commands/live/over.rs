//! A move over the link to another site: what QEMU connects to here, and what that leads to there.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_link::Session;
use drover_live::Side;
use drover_qemu::live::{Carried, Carrier, Guest, NbdAt};
use drover_relay::{Door, Doors, Probed, Refusal, Via, probe};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::memory::RDMA;
use super::nbd_at;
use crate::cli::{DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};
use crate::sites;

/// Sockets here that lead to a site.
pub struct Over {
    link: Arc<Link>,
    /// Where the target waits for memory, as its QEMU takes it.
    pub memory: String,
    /// Where the target offers its disks.
    pub disks: NbdAt,
    folder: TempDir,
    asking: Asking,
}

/// What is asked of the site's agent before a move, and how.
struct Asking {
    session: Session,
    /// Places that the target's QEMU is to listen at.
    wanted: Vec<String>,
    /// They lie beside the target's monitor.
    is_own: bool,
}

struct Link {
    site: String,
    doors: Doors,
    /// What the agent is asked to connect to for the target's monitor.
    monitor: String,
}

impl Carrier for Link {
    fn site(&self) -> &str {
        &self.site
    }

    fn round_trip(&self) -> Duration {
        Duration::from_micros(self.doors.link().rtt_us)
    }

    fn is_up(&self) -> bool {
        self.doors.link().state == "up"
    }

    fn is_waited_for(&self) -> bool {
        self.doors.link().state == "reconnecting"
    }

    fn has_nobody(&self) -> bool {
        // A QEMU that ends by itself removes its socket: then there is nothing to connect to.
        let is_nobody =
            |reason: &Refusal| matches!(reason, Refusal::TargetRefused | Refusal::TargetUnreachable);
        let refused = self.doors.take_refused();
        refused.iter().any(|one| one.target == self.monitor && is_nobody(&one.reason))
    }
}

/// Names of the sockets here.
const MONITOR: &str = "monitor";
const MEMORY: &str = "memory";
const DISKS: &str = "disks";

impl Over {
    /// Sees whether the site is there, and makes the sockets. QEMU is not touched.
    pub fn open(args: &LiveArgs, site: &str) -> Result<Over, Failure> {
        let (memory, disks) = places(args)?;
        let dial = Arc::new(sites::dialler(args.state.as_deref(), site, None, &[], None)?);
        let memory_to = address_of(&memory)?;
        let mut wanted = vec![memory_to.clone()];
        wanted.extend((args.disks == DisksArg::Mirror).then(|| nbd_text(&disks)));
        let session = dial().map_err(|refusal| away(site, &refusal.to_string()))?;
        let asking = Asking { session, wanted, is_own: args.uri.is_none() && args.nbd.is_none() };
        let folder = tempfile::Builder::new().prefix("drover-live-").tempdir();
        let folder = folder.map_err(|error| internal("folder for sockets", &error))?;
        let door = |name: &str, to: String| Door { path: folder.path().join(name), to };
        let monitor = format!("unix:{}", args.to.display());
        let doors = [door(MONITOR, monitor.clone()), door(MEMORY, memory_to), door(DISKS, nbd_text(&disks))];
        let packs = !args.no_link_compression;
        let via = Via { site: site.to_string(), dial: Arc::new(move || Ok(dial()?)), packs };
        let opened = Doors::open(via, &doors).map_err(|error| internal("sockets of the link", &error))?;
        give_to_qemu(&args.source, folder.path(), &doors);
        let link = Arc::new(Link { site: site.to_string(), doors: opened, monitor });
        Ok(Over { link, memory, disks, folder, asking })
    }

    /// Asks the site whether all that the move needs may be connected to. The agent connects to see it, which a QEMU that
    /// listens there would take for its move: so only a target that does not listen yet is asked about.
    pub fn ask(&self, target: &mut Guest) -> Result<(), Failure> {
        let Asking { session, wanted, is_own } = &self.asking;
        let waits = target.waits_deferred();
        let waits = waits.map_err(|error| Failure::new(Exit::Target, error.chain()))?;
        let asked = match waits {
            true => wanted.iter().try_for_each(|to| free(self.site(), to, *is_own, probe(session, to))),
            false => Ok(()),
        };
        session.close();
        asked
    }

    /// Connects to the target's monitor.
    pub fn connect(&self) -> Result<Guest, Failure> {
        Guest::connect(&self.path(MONITOR), Side::Target).map_err(|error| {
            let site = self.site();
            match self.link.doors.take_refused().pop() {
                Some(refused) => {
                    Failure::new(Exit::Plan, format!("{site}: monitor {}: {}", refused.target, refused.why))
                }
                None => {
                    Failure::new(Exit::Target, format!("monitor of the target at {site}: {}", error.chain()))
                        .advise("QEMU serves one client per monitor: see that nobody else is connected there; a run that was killed holds it for up to 15 minutes, or until the agent there is restarted")
                }
            }
        })
    }

    /// What a move over it is told.
    pub fn carried(&self) -> Carried {
        let memory = format!("unix:{}", self.path(MEMORY).display());
        Carried { by: self.link.clone(), memory, disks: NbdAt::Unix(self.path(DISKS)) }
    }

    /// What the site is called.
    pub fn site(&self) -> &str {
        &self.link.site
    }

    /// What went over it, for reports.
    pub fn told(&self) -> Value {
        let told = self.link.doors.link();
        json!({
            "site": told.site, "connections": told.connections, "rtt_us": told.rtt_us,
            "up_bytes": told.up_bytes, "down_bytes": told.down_bytes, "bytes_again": told.bytes_again,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Where the target waits for memory and offers its disks: beside its monitor, if nothing else was said.
fn places(args: &LiveArgs) -> Result<(String, NbdAt), Failure> {
    if !args.to.is_absolute() {
        let text = format!("--to {}: with --via it is a path at the site, from / on", args.to.display());
        return Err(Failure::new(Exit::Usage, text));
    }
    if args.uri.as_ref().is_some_and(|uri| uri.starts_with(RDMA)) {
        let what = "RDMA goes from host to host, not over a link: leave --via out, or go by unix:";
        return Err(Failure::new(Exit::Usage, what));
    }
    let beside = |what: &str| format!("unix:{}.{what}", args.to.display());
    let memory = args.uri.clone().unwrap_or_else(|| beside(MEMORY));
    let disks = nbd_at(&args.nbd.clone().unwrap_or_else(|| beside(DISKS)))?;
    Ok((memory, disks))
}

/// What the agent is asked to connect to for memory.
fn address_of(uri: &str) -> Result<String, Failure> {
    match uri.strip_prefix("tcp:") {
        Some(address) if address.ends_with(":0") => Err(Failure::new(
            Exit::Usage,
            format!("--uri {uri}: with --via a port is to be named, not chosen there"),
        )),
        Some(address) => Ok(address.to_string()),
        None => Ok(uri.to_string()),
    }
}

fn nbd_text(at: &NbdAt) -> String {
    match at {
        NbdAt::Unix(path) => format!("unix:{}", path.display()),
        NbdAt::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        NbdAt::Tcp(host, port) => format!("{host}:{port}"),
    }
}

/// Nobody may be there yet, and it must be allowed to connect.
fn free(
    site: &str,
    to: &str,
    is_own: bool,
    probed: Result<Probed, drover_link::LinkError>,
) -> Result<(), Failure> {
    match probed {
        Ok(Probed::Free) => Ok(()),
        Ok(Probed::Taken) if is_own => Ok(()),
        Ok(Probed::Taken) => {
            Err(Failure::new(Exit::Plan, format!("{site}: somebody listens at {to} already"))
                .advise("end it, or choose another place with --uri and --nbd"))
        }
        Ok(Probed::Refused(_, why)) => Err(Failure::new(Exit::Plan, format!("{site}: {to}: {why}"))),
        Err(error) => Err(away(site, &error.to_string())),
    }
}

fn away(site: &str, why: &str) -> Failure {
    Failure::new(Exit::Connection, format!("agent of {site}: {why}"))
        .advise("see `drover agent list`, and whether the agent runs there")
}

fn internal(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("{what}: {error}"))
}

/// QEMU may run as another user, who must reach the sockets; nobody else does. Where that cannot be, QEMU says so.
fn give_to_qemu(monitor: &Path, folder: &Path, doors: &[Door]) {
    let Ok(owner) = std::fs::metadata(monitor).map(|file| file.uid()) else { return };
    for path in doors.iter().map(|door| door.path.as_path()).chain([folder]) {
        let _ = chown(path, Some(owner), None);
    }
}
