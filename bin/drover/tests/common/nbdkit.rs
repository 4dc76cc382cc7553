use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::process::{freeze, thaw, wait_until};

/// An nbdkit that ends with the test.
pub struct Nbdkit {
    child: Child,
    socket: PathBuf,
}

impl Nbdkit {
    /// `None`, after a printed line, where nbdkit is not installed.
    pub fn start(folder: &Path, args: &[&str]) -> Option<Nbdkit> {
        let socket = folder.join("nbd.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).args(args).stdout(Stdio::null());
        let Ok(child) = command.spawn() else {
            println!("skipped: nbdkit is not installed");
            return None;
        };
        wait_until("nbdkit starts", Duration::from_secs(10), || socket.exists());
        Some(Nbdkit { child, socket })
    }

    /// One that serves a file slowly, so that a copy from it with one request of 1 MiB in flight at a time
    /// (`SLOWLY`) takes this long for each MiB.
    pub fn slow(folder: &Path, file: &Path, delay_ms: u32) -> Option<Nbdkit> {
        let delay = format!("delay-read={delay_ms}ms");
        Nbdkit::start(folder, &["-r", "--filter=delay", "file", file.to_str().unwrap(), &delay])
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
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

/// What makes `drover copy` ask for one MiB after the other.
pub const SLOWLY: [&str; 6] = ["--request", "1MiB", "--lanes", "1", "--depth", "1"];
