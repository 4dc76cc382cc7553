use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::SftpOptions;
use crate::uri::SshUri;
use crate::wire;
use drover_child::Kind;

/// How much of what ssh says on standard error is kept: its end.
const SAID_BYTES_MAX: usize = 2048;

/// How often, 10 ms apart, to look whether all that ssh said has been read.
const LISTEN_ATTEMPTS_MAX: u32 = 30;

/// A child `ssh` and the SFTP server at its other end.
pub struct Session {
    /// None where fuzzing plays the server.
    child: Option<Child>,
    input: Option<File>,
    output: File,
    said: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
    timeout: Duration,
}

/// The head of a packet.
pub struct Head {
    pub kind: u8,
    /// The id, or in VERSION the version.
    pub id: u32,
    /// Bytes that follow.
    pub length: u32,
}

impl Session {
    /// Starts ssh and agrees on the version.
    pub fn start(uri: &SshUri, options: &SftpOptions) -> io::Result<Session> {
        let mut command = drover_child::command(&options.program, Kind::Ssh);
        // A server that stops to answer is noticed by ssh itself; a question would wait for nobody.
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]);
        command.args(["-o", "ConnectTimeout=30", "-T", "-x", "-a"]);
        if let Some(port) = uri.port {
            command.arg("-p").arg(port.to_string());
        }
        if let Some(user) = &uri.user {
            command.arg("-l").arg(user);
        }
        command.args(["-s", "--", &uri.host, "sftp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for drover, which then stops cleanly.
        let mut child = command.process_group(0).spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("{} cannot be started: {error}", options.program.display()))
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(stderr)) = pipes else {
            return Err(io::Error::other("ssh has no pipes"));
        };
        let said = Arc::new(Mutex::new(Vec::new()));
        let listening = said.clone();
        let listener = Builder::new().spawn(move || listen(stderr, &listening)).inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        let file = |end: OwnedFd| File::from(end);
        let mut session = Session {
            child: Some(child),
            input: Some(file(input.into())),
            output: file(output.into()),
            said,
            listener: Some(listener),
            timeout: options.timeout,
        };
        session.greet()?;
        Ok(session)
    }

    /// A session over these ends, without ssh.
    pub fn over(input: File, output: File, timeout: Duration) -> Session {
        Session { child: None, input: Some(input), output, said: Arc::default(), listener: None, timeout }
    }

    /// Agrees on the version.
    pub fn greet(&mut self) -> io::Result<()> {
        self.send(&wire::init())?;
        let head = self.head()?;
        self.body(&head)?;
        match (head.kind, head.id) {
            (wire::VERSION, version) if version >= wire::VERSION_3 => Ok(()),
            (wire::VERSION, version) => {
                Err(bad(format!("the server speaks SFTP {version}, drover speaks 3")))
            }
            (kind, _) => Err(bad(format!("the server answers the greeting with a packet of type {kind}"))),
        }
    }

    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let Some(input) = &mut self.input else { return Err(self.ended()) };
        match input.write_all(packet) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self.ended()),
            result => result,
        }
    }

    /// The head of the next packet.
    pub fn head(&mut self) -> io::Result<Head> {
        let mut bytes = [0; 9];
        self.fill(&mut bytes)?;
        let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|index| bytes[at + index]));
        let length = number(0);
        if !(5..=wire::PACKET_BYTES_MAX).contains(&length) {
            let text = format!(
                "a packet of {length} bytes: what answers is no SFTP server, or a greeting of the \
                remote shell comes before it"
            );
            return Err(bad(text));
        }
        Ok(Head { kind: bytes[4], id: number(5), length: length - 5 })
    }

    /// What follows a head.
    pub fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut body = vec![0; head.length as usize];
        self.fill(&mut body)?;
        Ok(body)
    }

    /// Fills `bytes`, or fails when the server is silent for too long.
    pub fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            self.wait()?;
            match self.output.read(&mut bytes[filled..]) {
                Ok(0) => return Err(self.ended()),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let until = Instant::now() + self.timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("no answer for {} s", self.timeout.as_secs_f64());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.output, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn end_child(&mut self) {
        self.input = None;
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Why the other end is gone, in ssh's own words where it said any.
    fn ended(&mut self) -> io::Error {
        self.end_child();
        // Its standard error is closed now, unless a child of its own holds it.
        for _ in 0..LISTEN_ATTEMPTS_MAX {
            if self.listener.as_ref().is_none_or(|listener| listener.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = String::from_utf8_lossy(&said);
        let last: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let words = last[last.len().saturating_sub(3)..].join("; ").escape_debug().to_string();
        let kind = match () {
            () if words.contains("Permission denied") || words.contains("verification failed") => {
                io::ErrorKind::PermissionDenied
            }
            () => io::ErrorKind::ConnectionReset,
        };
        let what = if words.is_empty() { "ssh ended".to_string() } else { format!("ssh ended: {words}") };
        io::Error::new(kind, what)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_child();
        // Not joined: a child of ssh (a ControlMaster) may hold its standard error open for hours.
        drop(self.listener.take());
    }
}

fn listen(mut from: impl Read + AsFd, said: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(&bytes[..length]);
        let excess = said.len().saturating_sub(SAID_BYTES_MAX);
        said.drain(..excess);
    }
}

pub fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
