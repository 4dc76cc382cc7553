//! The control socket: asks a running relay, or an agent that carries connections for relays, how it stands.
//!
//! A Unix stream socket that only its owner reaches. Each line is a question, `{"connections":N}` with N
//! the number of connections wanted, and each answer is one line: a [`Snapshot`] in JSON.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::Snapshot;
use crate::teller::Teller;

/// A question is shorter.
const QUESTION_BYTES_MAX: u64 = 4 << 10;
/// Connections that an answer may hold.
pub const CONNECTIONS_TOLD_MAX: usize = 1_000;
/// An answer: less than 1 KiB for each connection.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Those who ask at one time.
const ASKERS_MAX: usize = 8;
/// A question or an answer takes no longer.
const TIME_MAX: Duration = Duration::from_secs(30);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    connections: usize,
}

/// Answers questions. Dropped, it stops and its socket goes.
pub struct ControlServer {
    path: PathBuf,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The folder of control sockets: `/run/drover` for root, else that of the service this is, as systemd names it, else in
/// the user's own runtime folder, else one of the user's own among the temporary files.
pub fn control_folder() -> PathBuf {
    control_folder_of(rustix::process::geteuid(), |name| std::env::var_os(name))
}

fn control_folder_of(user: rustix::process::Uid, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if user.is_root() {
        return PathBuf::from("/run/drover");
    }
    // Several with colons. What a service puts among the temporary files is often seen by itself alone (PrivateTmp=).
    let of_service = variable("RUNTIME_DIRECTORY").and_then(|them| std::env::split_paths(&them).next());
    match (of_service.filter(|folder| folder.is_absolute()), variable("XDG_RUNTIME_DIR")) {
        (Some(folder), _) => folder,
        (None, Some(folder)) => PathBuf::from(folder).join("drover"),
        (None, None) => std::env::temp_dir().join(format!("drover-{}", user.as_raw())),
    }
}

/// Refuses a folder in which somebody else could put another socket in the place of ours.
///
/// # Errors
/// If it cannot be looked at, or is another user's, or others may write to it (but for a sticky one, as `/tmp`).
fn check_folder(folder: &Path) -> io::Result<()> {
    let stat = std::fs::metadata(folder)?;
    let is_ours = |owner: u32| owner == rustix::process::geteuid().as_raw() || owner == 0;
    // Whoever made a link can make it lead elsewhere.
    let is_trusted = is_ours(stat.uid()) && is_ours(std::fs::symlink_metadata(folder)?.uid());
    let (is_open, is_sticky) = (stat.mode() & 0o022 != 0, stat.mode() & 0o1000 != 0);
    if is_trusted && (!is_open || is_sticky) {
        return Ok(());
    }
    let text = format!("other users may change what is in {}; name another place", folder.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// Whether a socket lies there at which nobody listens. Of a file that is no socket the kernel says the same.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    let refused = || UnixStream::connect(path).err().map(|error| error.kind());
    is_socket && refused() == Some(ErrorKind::ConnectionRefused)
}

/// Where the control socket of this process lies, as a relay's (`relay`) or an agent's (`agent`), unless it is said otherwise.
pub fn control_path(what: &str) -> PathBuf {
    control_folder().join(format!("{what}-{}.sock", std::process::id()))
}

/// Control sockets of those that live, relays (`relay`) or agents (`agent`), by their paths. Those that killed ones left are
/// removed.
///
/// # Errors
/// Those of reading the folder; one that is not there is empty, one that others may write to is refused.
pub fn living(folder: &Path, what: &str) -> io::Result<Vec<PathBuf>> {
    match check_folder(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    let mut living = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(what).and_then(|rest| rest.strip_prefix('-'));
        if !number.is_some_and(|rest| rest.ends_with(".sock")) {
            continue;
        }
        match is_abandoned(&path) {
            // Another who cleans up may have been faster.
            true => drop(std::fs::remove_file(&path)),
            false => living.push(path),
        }
    }
    living.sort();
    Ok(living)
}

impl ControlServer {
    /// Listens on this path. The folder is made if it is not there.
    ///
    /// # Errors
    /// Those of making the folder and the socket: somebody else's may lie there, or might.
    pub fn start(path: &Path, teller: Teller) -> io::Result<ControlServer> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            if !folder.exists() {
                DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
            }
            check_folder(folder)?;
            if folder == control_folder() {
                // What killed ones left there.
                ["relay", "agent"].iter().try_for_each(|what| living(folder, what).map(drop))?;
            }
        }
        if is_abandoned(path) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = is_stopping.clone();
        let thread = std::thread::Builder::new().name("relay-control".to_string());
        let thread = thread.spawn(move || serve(&listener, &teller, &stopping))?;
        Ok(ControlServer { path: path.to_path_buf(), is_stopping, thread: Some(thread) })
    }

    /// Its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
        // A socket that stays is removed by whoever looks for relays next.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, teller: &Teller, is_stopping: &Arc<AtomicBool>) {
    let askers = Arc::new(AtomicUsize::new(0));
    while !is_stopping.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(LOOK);
            continue;
        };
        if askers.fetch_add(1, Ordering::Relaxed) >= ASKERS_MAX {
            askers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (teller, counted) = (teller.clone(), askers.clone());
        let thread = std::thread::Builder::new().name("relay-asker".to_string());
        let started = thread.spawn(move || {
            // One who asks and goes away wants no answer.
            let _ = answer_all(stream, &teller);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            askers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer_all(stream: UnixStream, teller: &Teller) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIME_MAX))?;
    stream.set_write_timeout(Some(TIME_MAX))?;
    let mut reader = BufReader::new(&stream);
    loop {
        let line = read_line(&mut reader, QUESTION_BYTES_MAX)?;
        if line.is_empty() {
            return Ok(());
        }
        let question: Question = serde_json::from_str(&line)?;
        let snapshot = teller.snapshot(question.connections.min(CONNECTIONS_TOLD_MAX));
        let mut answer = serde_json::to_vec(&snapshot)?;
        answer.push(b'\n');
        (&stream).write_all(&answer)?;
    }
}

/// A line; empty at the end.
fn read_line(reader: &mut impl BufRead, bytes_max: u64) -> io::Result<String> {
    let mut line = String::new();
    reader.take(bytes_max).read_line(&mut line)?;
    match line.is_empty() || line.ends_with('\n') {
        true => Ok(line),
        false => Err(io::Error::new(ErrorKind::InvalidData, "a line without an end, or too long")),
    }
}

/// One who asks a relay.
pub struct Asker {
    stream: BufReader<UnixStream>,
}

impl Asker {
    /// Connects to a relay's control socket.
    ///
    /// # Errors
    /// Those of connecting: none there, no permission.
    pub fn connect(path: &Path) -> io::Result<Asker> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        Ok(Asker { stream: BufReader::new(stream) })
    }

    /// How the relay stands, with this many of the fastest connections.
    ///
    /// # Errors
    /// `UnexpectedEof` if the relay has ended, and what the socket fails with.
    pub fn ask(&mut self, connections: usize) -> io::Result<Snapshot> {
        let mut question = serde_json::to_vec(&Question { connections })?;
        question.push(b'\n');
        self.stream.get_mut().write_all(&question)?;
        let line = read_line(&mut self.stream, ANSWER_BYTES_MAX)?;
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sockets_lie_where_others_of_the_host_see_them() {
        let folder = |user, set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|it| it.0 == name).map(|it| it.1.into());
            control_folder_of(rustix::process::Uid::from_raw(user), value)
        };
        let (service, session) =
            (("RUNTIME_DIRECTORY", "/run/drover:/run/more"), ("XDG_RUNTIME_DIR", "/run/user/7"));
        assert_eq!(folder(0, &[service, session]), Path::new("/run/drover"));
        assert_eq!(folder(7, &[service, session]), Path::new("/run/drover"));
        assert_eq!(folder(7, &[("RUNTIME_DIRECTORY", ""), session]), Path::new("/run/user/7/drover"));
        assert_eq!(folder(7, &[]), std::env::temp_dir().join("drover-7"));
    }

    #[test]
    fn only_sockets_at_which_nobody_listens_are_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("policy.txt"), "allow").unwrap();
        assert!(!is_abandoned(&at("policy.txt")) && !is_abandoned(&at("nothing")));
        let listener = UnixListener::bind(at("relay-1.sock")).unwrap();
        assert!(!is_abandoned(&at("relay-1.sock")));
        drop(listener);
        assert!(is_abandoned(&at("relay-1.sock")));
    }
}
