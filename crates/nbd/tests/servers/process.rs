use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use drover_nbd::NbdUri;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Dir, text};

/// Generous: only what never comes runs into it.
const PATIENCE: Duration = Duration::from_secs(120);

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

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the server: it holds its sockets and does nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // The signal takes a moment to reach each thread.
        let started = Instant::now();
        while !self.is_frozen() {
            assert!(started.elapsed() < PATIENCE, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_frozen(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.map(|task| task.unwrap().path().join("stat")).all(|stat| {
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        })
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts nbdkit again on the same socket, after [`Server::kill`].
    pub fn nbdkit_again(&mut self, arguments: &[&str]) {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = nbdkit_at(&self.socket);
        self.child = command.args(arguments).stdin(Stdio::null()).spawn().unwrap();
        wait_until_ready(self, &command);
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
    let mut command = nbdkit_at(&socket);
    command.args(arguments);
    start(command, dir, socket)
}

fn nbdkit_at(socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--exit-with-parent", "--foreground", "--unix", text(socket)]);
    command
}

/// A running nbd-server, which makes itself a daemon; ended when dropped.
pub struct NbdServer {
    dir: Dir,
    daemon: Pid,
}

impl NbdServer {
    /// Serves one file as `web`.
    pub fn start(file: &Path, more: &str) -> NbdServer {
        let dir = Dir::new();
        let (config, socket, pid) = (dir.file("config"), dir.file("nbd.sock"), dir.file("pid"));
        // It listens on TCP, too: at an address of its own, where nobody can take the port before it does.
        static NUMBER: AtomicU8 = AtomicU8::new(0);
        let (number, own) = (NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
        let address = format!("127.{}.{}.{}", 100 + number % 100, own >> 8 & 255, own & 255);
        let generic = format!("[generic]\nallowlist = true\nlistenaddr = {address}\nport = 10809\n");
        let export = format!("unixsock = {}\n[web]\nexportname = {}\n{more}\n", text(&socket), text(file));
        std::fs::write(&config, generic + &export).unwrap();
        let mut command = Command::new("nbd-server");
        command.args(["-C", text(&config), "-p", text(&pid)]).stdin(Stdio::null());
        assert!(command.status().unwrap().success());
        let started = Instant::now();
        loop {
            let number = std::fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok());
            if let Some(daemon) = number.and_then(Pid::from_raw).filter(|_| is_ready(&socket)) {
                return NbdServer { dir, daemon };
            }
            assert!(started.elapsed() < PATIENCE, "{command:?} never listened");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn uri(&self) -> NbdUri {
        NbdUri::unix(self.dir.file("nbd.sock"), "web")
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = kill_process(self.daemon, Signal::TERM);
    }
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
    wait_until_ready(&mut server, &command);
    server
}

fn wait_until_ready(server: &mut Server, command: &Command) {
    let started = Instant::now();
    while !is_ready(&server.socket) {
        let ended = server.child.try_wait().unwrap();
        assert!(ended.is_none(), "{command:?} ended: {ended:?}");
        assert!(started.elapsed() < PATIENCE, "{command:?} never listened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// By the list of sockets: a trial connection would count as a client for `qemu-nbd --shared=1`.
fn is_ready(socket: &Path) -> bool {
    let Ok(list) = std::fs::read_to_string("/proc/net/unix") else {
        return socket.exists() && UnixStream::connect(socket).is_ok();
    };
    // Flags 00010000: it listens.
    list.lines().any(|line| line.ends_with(text(socket)) && line.contains(" 00010000 "))
}
