//! Servers that the copiers read from or write to.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::clone::copy::measure::remove;

/// A server that ends with this program.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
}

impl Server {
    pub fn nbdkit(socket: PathBuf, args: &[&str]) -> Result<Server> {
        remove(&socket)?;
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).args(args).stderr(Stdio::inherit());
        let mut server = Server { child: command.spawn()?, socket };
        let until = Instant::now() + Duration::from_secs(10);
        // The socket is there before nbdkit listens on it.
        while UnixStream::connect(&server.socket).is_err() {
            if Instant::now() > until || server.child.try_wait()?.is_some() {
                bail!("nbdkit did not start");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn uri(&self) -> String {
        uri(&self.socket)
    }
}

pub fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
