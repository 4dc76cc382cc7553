use std::collections::VecDeque;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use drover_disk::{
    Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, Request, check_span,
};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_types::{ByteSpan, Extent};
use tempfile::TempDir;

use crate::causes;
use crate::child::Server;
use crate::error::{VddkError, VddkErrorKind};
use crate::log::Log;
use crate::settings::{Settings, config, ready, socket};

/// VDDK's libraries take a moment to load, on a busy machine more.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Children that replace a lost one, until [`PROGRESS_BYTES`] were read again.
const RESTARTS_MAX: u32 = 5;
/// Reading so much shows that a child is well.
const PROGRESS_BYTES: u64 = 64 << 20;
/// Pauses before a host that had no room is asked again; they double.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(500);
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// A disk of a vSphere VM, read through VDDK.
///
/// One nbdkit serves it, over one connection: each further one would open the disk once more and take NFC memory
/// of the host once more. When nbdkit dies, when a read fails, or when one shows no sign of life, the child is
/// replaced, since VDDK does not mend its own connections.
pub struct VddkDisk {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    log: Arc<Log>,
    /// Before the child, so that its connections end first.
    nbd: NbdDisk,
    child: Mutex<Children>,
    /// Number of the child that runs, from 1.
    generation: AtomicU64,
    /// Number of the newest child that failed.
    sick: AtomicU64,
    /// Bytes read.
    read: AtomicU64,
    /// Why a child fell ill last.
    failure: Mutex<String>,
    /// Last: the child's files are in it.
    folder: TempDir,
}

struct Children {
    server: Server,
    restarts: u32,
    /// Bytes read when the child was replaced last.
    read_before: u64,
}

impl VddkDisk {
    /// Starts nbdkit and opens the disk. A host that has no room is asked again for `settings.patience`.
    ///
    /// # Errors
    /// With the cause as the logs tell it.
    pub fn open(settings: Settings) -> Result<VddkDisk, VddkError> {
        let until = Instant::now() + settings.patience;
        let mut pause = BUSY_PAUSE_MIN;
        loop {
            match VddkDisk::open_once(settings.clone()) {
                Err(error) if error.kind == VddkErrorKind::Busy && Instant::now() + pause <= until => {
                    thread::sleep(pause);
                    pause = (2 * pause).min(BUSY_PAUSE_MAX);
                }
                done => return done,
            }
        }
    }

    fn open_once(settings: Settings) -> Result<VddkDisk, VddkError> {
        let what = format!("open of {} through VDDK", settings.name);
        let failed = |error: io::Error| VddkError::new(VddkErrorKind::Failed, what.clone()).because(error);
        if let Some(text) = settings.misfit() {
            let why = format!("{what}: the {text} holds the end of a line");
            return Err(VddkError::new(VddkErrorKind::Failed, why));
        }
        let log = Log::new(settings.log.as_deref(), &settings.password).map_err(failed)?;
        let folder = private_folder().map_err(failed)?;
        let mut server = match start(&settings, folder.path(), &log) {
            Ok(Some(server)) => server,
            Ok(None) => return Err(told(&what, &log)),
            Err(error) => return Err(failed(error)),
        };
        let options = NbdOptions {
            timeout: settings.timeout,
            request_timeout: settings.timeout,
            identity: Some(settings.identity.clone()),
            single: true,
            ..NbdOptions::default()
        };
        let nbd = match NbdDisk::open_source(&NbdUri::unix(socket(folder.path()), ""), options) {
            Ok(nbd) => nbd,
            Err(error) => {
                server.stop();
                return Err(told(&what, &log).because(error));
            }
        };
        if nbd.size() != settings.size {
            let why = format!("{what}: it has {} bytes there, the disk has {}", nbd.size(), settings.size);
            return Err(VddkError::new(VddkErrorKind::Failed, why));
        }
        let child = Mutex::new(Children { server, restarts: 0, read_before: 0 });
        Ok(VddkDisk {
            shared: Arc::new(Shared {
                settings,
                log,
                nbd,
                child,
                generation: AtomicU64::new(1),
                sick: AtomicU64::new(0),
                read: AtomicU64::new(0),
                failure: Mutex::default(),
                folder,
            }),
        })
    }

    /// How often nbdkit was replaced since much was read.
    pub fn restarts(&self) -> u32 {
        self.shared.children().restarts
    }

    /// File that keeps what nbdkit and VDDK say.
    pub fn log(&self) -> Option<&PathBuf> {
        self.shared.settings.log.as_ref()
    }
}

/// A child that listens; none if it ended or does not come up, which the log then tells.
fn start(settings: &Settings, folder: &Path, log: &Arc<Log>) -> io::Result<Option<Server>> {
    let files = [(config(folder), settings.config_text(folder))];
    let mut arguments = settings.arguments(folder);
    if let Some(session) = &settings.session {
        let cookie = session.cookie()?;
        log.hide(&cookie);
        arguments.push(format!("cookie={}", cookie.reveal()).into());
    }
    let mut server = Server::start(arguments, folder, &files, &settings.password, log)?;
    if server.wait_for(&ready(folder), START_TIME_MAX) {
        return Ok(Some(server));
    }
    server.stop();
    Ok(None)
}

/// A folder that only this user can look into; short, as paths of sockets must be.
fn private_folder() -> io::Result<TempDir> {
    let all = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("drover-vddk-").permissions(all).tempdir()
}

fn told(what: &str, log: &Log) -> VddkError {
    let lines = log.tail();
    VddkError::told(what, &log.words(), causes::of_lines(lines.iter().map(String::as_str)))
}

impl Shared {
    fn children(&self) -> MutexGuard<'_, Children> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees that a child is well and gives its number.
    fn revive(&self) -> Result<u64, DiskError> {
        let mut children = self.children();
        let generation = self.generation.load(SeqCst);
        if self.sick.load(SeqCst) < generation && !children.server.has_ended() {
            return Ok(generation);
        }
        let read = self.read.load(SeqCst);
        if read - children.read_before >= PROGRESS_BYTES {
            children.restarts = 0;
        }
        children.read_before = read;
        if children.restarts >= RESTARTS_MAX {
            let text = format!("nbdkit was replaced {RESTARTS_MAX} times and fails again; {}", self.words());
            return Err(self.error(DiskErrorKind::Failed, DiskOp::Open, ByteSpan::new(0, 0), text));
        }
        children.restarts += 1;
        children.server.stop_soon();
        self.log.add(&format!("drover: nbdkit is replaced, {} of {RESTARTS_MAX}", children.restarts));
        let failed =
            |why: String| self.error(DiskErrorKind::Transient, DiskOp::Open, ByteSpan::new(0, 0), why);
        match start(&self.settings, self.folder.path(), &self.log) {
            Ok(Some(server)) => children.server = server,
            Ok(None) => return Err(failed(format!("nbdkit did not start again; {}", self.words()))),
            Err(error) => return Err(failed(format!("nbdkit did not start again: {error}"))),
        }
        Ok(self.generation.fetch_add(1, SeqCst) + 1)
    }

    /// What the logs say, for an error.
    fn words(&self) -> String {
        let lines = self.log.tail();
        let cause = causes::of_lines(lines.iter().map(String::as_str));
        let meaning =
            cause.map(|cause| format!("{} (try: {}); ", cause.title, cause.advice)).unwrap_or_default();
        format!("{meaning}nbdkit says: {}", self.log.words())
    }

    fn error(&self, kind: DiskErrorKind, op: DiskOp, span: ByteSpan, text: String) -> DiskError {
        DiskError::with_kind(kind, op, span, &self.settings.name, io::Error::other(text))
    }

    /// An error of the connection in our words: it may pass with another child, as long as there are any.
    fn explain(&self, error: DiskError) -> DiskError {
        let kind = match error.kind {
            DiskErrorKind::Failed
            | DiskErrorKind::Transient
            | DiskErrorKind::Gone
            | DiskErrorKind::Denied => DiskErrorKind::Transient,
            kind => kind,
        };
        self.error(kind, error.op, error.span, format!("{}; {}", error.source, self.words()))
    }
}

impl Disk for VddkDisk {
    fn name(&self) -> &str {
        &self.shared.settings.name
    }

    fn size(&self) -> u64 {
        self.shared.settings.size
    }

    fn identity(&self) -> String {
        self.shared.settings.identity.clone()
    }

    fn limits(&self) -> Limits {
        let limits = self.shared.nbd.limits();
        let bytes_max = limits.bytes_max.min(self.shared.settings.request_bytes);
        Limits { bytes_max, bytes_preferred: limits.bytes_preferred.min(bytes_max), ..limits }
    }

    fn features(&self) -> Features {
        self.shared.nbd.features()
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        let generation = self.shared.revive()?;
        self.shared.nbd.extents(span).map_err(|error| {
            // A host that does not tell its areas may still be read.
            if error.kind == DiskErrorKind::Transient {
                self.shared.sick.fetch_max(generation, SeqCst);
            }
            self.shared.explain(error)
        })
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        let generation = self.shared.revive()?;
        match self.shared.nbd.open_lane() {
            Ok(inner) => {
                let shared = self.shared.clone();
                Ok(Box::new(VddkLane { inner, shared, generation, refused: VecDeque::new() }))
            }
            Err(error) => {
                self.shared.sick.fetch_max(generation, SeqCst);
                Err(self.shared.explain(error))
            }
        }
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

/// A lane that counts as broken when its child fell ill, also on another lane.
struct VddkLane {
    inner: Box<dyn Lane>,
    shared: Arc<Shared>,
    generation: u64,
    /// Requests that came after that.
    refused: VecDeque<Completion>,
}

impl Lane for VddkLane {
    fn submit(&mut self, request: Request) {
        if !self.is_broken() {
            return self.inner.submit(request);
        }
        let Request { id, span, work } = request;
        let text = format!("nbdkit is being replaced: {}", self.shared.failure());
        let result = Err(self.shared.error(DiskErrorKind::Transient, DiskOp::Read, span, text));
        self.refused.push_back(Completion { id, span, work, result });
    }

    fn complete(&mut self) -> Option<Completion> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let mut completion = self.inner.complete()?;
        completion.result = match completion.result {
            Ok(()) => {
                self.shared.read.fetch_add(completion.span.length, SeqCst);
                Ok(())
            }
            Err(error) => {
                let is_ours = matches!(error.kind, DiskErrorKind::Misuse | DiskErrorKind::Unsupported);
                let error = self.shared.explain(error);
                if !is_ours {
                    *self.shared.failure() = error.source.to_string();
                    self.shared.sick.fetch_max(self.generation, SeqCst);
                }
                Err(error)
            }
        };
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }

    fn is_broken(&self) -> bool {
        self.inner.is_broken() || self.shared.sick.load(SeqCst) >= self.generation
    }
}
