//! A socket by which a line in use takes orders: one line of text a connection, and an answer.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::WanError;
use crate::order::Order;
use crate::pump::Handle;

/// Where the sockets lie; only their owner may enter.
const FOLDER: &str = "/run/drover-wan";

const ORDER_BYTES_MAX: u64 = 4_096;

const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// How long either side waits for the other.
const PEER_TIME: Duration = Duration::from_secs(15);

/// Lines of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Takes orders until dropped.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Takes orders for a line at a new socket; removes those that killed lines have left.
    ///
    /// # Errors
    /// If there can be no socket.
    pub fn serve(handle: Handle) -> Result<Control, WanError> {
        Control::serve_in(Path::new(FOLDER), handle).map_err(WanError::of(format!("a socket in {FOLDER}")))
    }

    fn serve_in(folder: &Path, handle: Handle) -> io::Result<Control> {
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        // A socket that is there and does not listen yet would be taken for one that was left.
        let _lock = lock(folder)?;
        sweep(folder)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}.sock", std::process::id()));
        let listener = UnixListener::bind(&path)?;
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let work = move || listen(&listener, &handle, &is_over);
        let thread = std::thread::Builder::new().name("wan orders".into()).spawn(work)?;
        Ok(Control { path, ends, thread: Some(thread) })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the thread; if that fails it waits for nobody any more.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn listen(listener: &UnixListener, handle: &Handle, ends: &AtomicBool) {
    for peer in listener.incoming() {
        if ends.load(Ordering::SeqCst) {
            return;
        }
        // Who hangs up or says nothing hears nothing.
        let _ = peer.and_then(|peer| answer(&peer, handle));
    }
}

fn answer(peer: &UnixStream, handle: &Handle) -> io::Result<()> {
    peer.set_read_timeout(Some(PEER_TIME))?;
    peer.set_write_timeout(Some(PEER_TIME))?;
    let mut line = String::new();
    BufReader::new(peer.take(ORDER_BYTES_MAX)).read_line(&mut line)?;
    let mut peer = peer;
    writeln!(peer, "{}", obeyed(&line, handle).unwrap_or_else(|why| format!("error: {why}")))
}

fn obeyed(line: &str, handle: &Handle) -> Result<String, String> {
    match line.parse::<Order>().map_err(|error| error.to_string())? {
        Order::Status => handle.report().map(|report| report.to_string()).map_err(|error| error.to_string()),
        order => handle.order(order).map(|()| "ok".to_string()).map_err(|error| error.to_string()),
    }
}

/// Keeps others from sweeping, or from making a socket, as long as it is held.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::create(folder.join("lock"))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Removes the sockets at which nobody listens.
fn sweep(folder: &Path) -> io::Result<()> {
    for path in sockets(folder)? {
        if UnixStream::connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn sockets(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => {
            let paths = entries.flatten().map(|entry| entry.path());
            Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect())
        }
    }
}

/// Sockets of the lines that are in use on this machine.
///
/// # Errors
/// If the folder cannot be read.
pub fn running() -> Result<Vec<PathBuf>, WanError> {
    let folder = Path::new(FOLDER);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let found = lock(folder).and_then(|_lock| sweep(folder)).and_then(|()| sockets(folder));
    found.map_err(WanError::of(format!("looking into {FOLDER}")))
}

/// Gives a line an order and returns its answer.
///
/// # Errors
/// If nobody listens there, or the line did not understand.
pub fn tell(socket: &Path, order: &str) -> Result<String, WanError> {
    let asked = || -> io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PEER_TIME))?;
        writeln!(stream, "{}", order.replace('\n', " "))?;
        let mut text = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text.trim_end().to_string())
    };
    let text = asked().map_err(WanError::of(format!("asking {}", socket.display())))?;
    match text.strip_prefix("error: ") {
        Some(why) => Err(WanError::Misuse(why.to_string())),
        None => Ok(text),
    }
}
