//! TLS with a pre-shared key.
//!
//! rustls knows no keys shared beforehand, and a second TLS library in one program would be one more
//! to watch for holes, for a way of guarding that few use. So a child does it: `nbdkit nbd` speaks TLS
//! to the server and plain NBD to us, on a socket in a folder that only this user may enter. That
//! costs one more copy of the bytes.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use drover_stream::printable;

use crate::uri::{Address, NbdUri, UriTls};

/// From the child's start until it listens.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// From asking it to end until it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(2);

/// What of the child's words goes into an error.
const WORDS_BYTES_MAX: usize = 400;

/// The child, ended when dropped.
#[derive(Debug)]
pub struct PskProxy {
    child: Child,
    folder: Folder,
}

/// A folder of our own, gone when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl PskProxy {
    /// Starts the child for the server and export of `uri`.
    pub fn start(uri: &NbdUri, tls: &UriTls, key: &Path) -> io::Result<PskProxy> {
        // nbdkit would find that out at the first connection, in words about GnuTLS.
        fs::File::open(key)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", key.display())))?;
        let folder = Folder::new()?;
        let words = fs::File::create(folder.words())?;
        let mut command = drover_child::command("nbdkit", drover_child::Kind::Plain);
        command.args(["--foreground", "--unix"]).arg(folder.socket());
        command.arg("--pidfile").arg(folder.ready());
        // It ends when we do, however we end. Its --exit-with-parent would fire already when the thread
        // ends that started it.
        let ours = std::process::id();
        command.args(["--filter=exitwhen", "nbd", &format!("exit-when-process-exits={ours}")]);
        command.args(parameters(uri, tls, key)).stdin(Stdio::null());
        command.stdout(words.try_clone()?).stderr(words);
        // A group of its own: Ctrl-C on the terminal is ours to handle.
        let child = command.process_group(0).spawn().map_err(|error| {
            let text = "TLS with a pre-shared key needs the program nbdkit with its nbd plugin";
            io::Error::new(error.kind(), format!("{text}: {error}"))
        })?;
        let mut proxy = PskProxy { child, folder };
        proxy.wait_until_it_listens()?;
        Ok(proxy)
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.folder.socket())
    }

    /// What the child said last, fit to be shown.
    pub fn words(&self) -> String {
        let words = fs::read(self.folder.words()).unwrap_or_default();
        let words =
            String::from_utf8_lossy(&words[words.len().saturating_sub(WORDS_BYTES_MAX)..]).into_owned();
        let lines: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        printable(&lines[lines.len().saturating_sub(2)..].join("; "))
    }

    fn wait_until_it_listens(&mut self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            // Written once it listens. A trial connection would be one more at the server.
            if self.folder.ready().exists() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("nbdkit ended with {status}: {}", self.words())));
            }
            if started.elapsed() > START_TIME_MAX {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nbdkit does not start to listen"));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The key itself stays in its file: a command line is seen by everybody.
fn parameters(uri: &NbdUri, tls: &UriTls, key: &Path) -> Vec<std::ffi::OsString> {
    let mut parameters = Vec::new();
    let mut add = |name: &str, value: &std::ffi::OsStr| {
        let mut parameter = std::ffi::OsString::from(format!("{name}="));
        parameter.push(value);
        parameters.push(parameter);
    };
    match &uri.address {
        Address::Tcp(host, port) => {
            add("hostname", host.as_ref());
            add("port", port.to_string().as_ref());
        }
        Address::Unix(path) => add("socket", path.as_ref()),
    }
    add("export", uri.export.as_ref());
    add("tls", "require".as_ref());
    add("tls-psk", key.as_ref());
    if let Some(user) = &tls.username {
        add("tls-username", user.as_ref());
    }
    parameters
}

impl Drop for PskProxy {
    fn drop(&mut self) {
        // It keeps nothing back: what it acknowledged to us the server had acknowledged to it. A polite
        // end is for the server's log.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && started.elapsed() < STOP_TIME_MAX {
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Folder {
    fn new() -> io::Result<Folder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A name that is taken belongs to another: never use what is there already.
        for _ in 0..64 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("drover-nbd-psk-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result.map(|()| Folder(path)),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name is free for a folder of our own"))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    fn ready(&self) -> PathBuf {
        self.0.join("pid")
    }

    fn words(&self) -> PathBuf {
        self.0.join("words")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
