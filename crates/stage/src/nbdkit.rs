use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::gate::Gate;
use crate::process::{PATIENCE, freeze, thaw, wait_until};

/// An nbdkit that ends with the test.
pub struct Nbdkit {
    child: Child,
    socket: PathBuf,
    gate: Option<Gate>,
}

impl Nbdkit {
    /// `None`, after a printed line, where nbdkit is not installed.
    pub fn start(folder: &Path, args: &[&str]) -> Option<Nbdkit> {
        let socket = folder.join("nbd.sock");
        let child = start_at(&socket, args)?;
        Some(Nbdkit { child, socket, gate: None })
    }

    /// One that serves a file slowly, so that a copy from it with one request of 1 MiB in flight at a time
    /// (`SLOWLY`) takes this long for each MiB, and that serves so many bytes only until it is let go on. However fast
    /// or slow the machine is, such a copy is not over before; where it took more than a second, it has recorded blocks.
    pub fn held(folder: &Path, file: &Path, delay_ms: u32, bytes: u64) -> Option<Nbdkit> {
        let delay = format!("delay-read={delay_ms}ms");
        let mut server =
            Nbdkit::start(folder, &["-r", "--filter=delay", "file", file.to_str().unwrap(), &delay])?;
        server.gate = Some(Gate::to(&server.socket, &folder.join("gate.sock"), bytes));
        Some(server)
    }

    /// One that takes a file to be written, and does not answer until it is let go on.
    pub fn held_target(folder: &Path, file: &Path) -> Option<Nbdkit> {
        let mut server = Nbdkit::start(folder, &["file", file.to_str().unwrap()])?;
        server.gate = Some(Gate::to(&server.socket, &folder.join("gate.sock"), 0));
        Some(server)
    }

    /// Serves the rest, too.
    pub fn go_on(&self) {
        self.gate.iter().for_each(Gate::open);
    }

    /// Connections that came so far to one that was held.
    pub fn connections(&self) -> usize {
        self.gate.as_ref().map_or(0, Gate::connections)
    }

    pub fn uri(&self) -> String {
        let socket = self.gate.as_ref().map_or(&self.socket, |gate| &gate.socket);
        format!("nbd+unix:///?socket={}", socket.display())
    }

    /// Stops it: it holds its sockets and does nothing.
    pub fn freeze(&self) {
        freeze(&self.child);
    }

    pub fn thaw(&self) {
        thaw(&self.child);
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one, and waits until it takes connections: a socket is there some moments before it does.
pub fn start_at(socket: &Path, args: &[&str]) -> Option<Child> {
    let ready = socket.with_extension("pid");
    for left in [socket, &ready] {
        let _ = std::fs::remove_file(left);
    }
    let mut command = Command::new("nbdkit");
    command.args(["-f", "--exit-with-parent", "-U"]).arg(socket).arg("-P").arg(&ready);
    let Ok(mut child) = command.args(args).stdout(Stdio::null()).spawn() else {
        println!("skipped: nbdkit is not installed");
        return None;
    };
    wait_until("nbdkit starts", PATIENCE, || {
        assert!(child.try_wait().unwrap().is_none(), "nbdkit ended: {args:?}");
        ready.exists()
    });
    Some(child)
}

/// What makes `drover copy` ask for one MiB after the other.
pub const SLOWLY: [&str; 6] = ["--request", "1MiB", "--lanes", "1", "--depth", "1"];
