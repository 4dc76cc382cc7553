use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drover_nbd::NbdUri;

use crate::{Dir, text};

/// A running server, ended when dropped.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
    _dir: Dir,
}

impl Server {
    pub fn uri(&self) -> NbdUri {
        NbdUri::unix(&self.socket, "")
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a program is installed; says so if not.
pub fn installed(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Starts nbdkit with these arguments (filters, plugin, parameters).
pub fn nbdkit(arguments: &[&str]) -> Server {
    let dir = Dir::new();
    let socket = dir.file("nbd.sock");
    let mut command = Command::new("nbdkit");
    command.args(["--exit-with-parent", "--foreground", "--unix", text(&socket)]).args(arguments);
    start(command, dir, socket)
}

/// Starts qemu-nbd with these arguments.
pub fn qemu_nbd(arguments: &[&str]) -> Server {
    let dir = Dir::new();
    let socket = dir.file("nbd.sock");
    let mut command = Command::new("qemu-nbd");
    command.args(["--socket", text(&socket)]).args(arguments);
    start(command, dir, socket)
}

fn start(mut command: Command, dir: Dir, socket: PathBuf) -> Server {
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut server = Server { child, socket, _dir: dir };
    let started = Instant::now();
    while !is_ready(&server.socket) {
        let ended = server.child.try_wait().unwrap();
        assert!(ended.is_none(), "{command:?} ended: {ended:?}");
        assert!(started.elapsed() < Duration::from_secs(20), "{command:?} never listened");
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// By the list of sockets: a trial connection would count as a client for `qemu-nbd --shared=1`.
fn is_ready(socket: &Path) -> bool {
    let Ok(list) = std::fs::read_to_string("/proc/net/unix") else {
        return socket.exists() && UnixStream::connect(socket).is_ok();
    };
    // Flags 00010000: it listens.
    list.lines().any(|line| line.ends_with(text(socket)) && line.contains(" 00010000 "))
}
