//! Relays and agents that run, and bytes that go through them.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use drover_lab::Drover;
use serde_json::Value;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// A drover that tells events, and ends with the test.
pub struct Running {
    pub child: Child,
    pub first: Value,
    events: Receiver<Value>,
}

impl Running {
    pub fn start(host: &Drover, args: &[&str]) -> Running {
        let mut command = host.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let first = event(&mut out).unwrap_or_else(|| panic!("{args:?} did not start"));
        let (tell, events) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            while let Some(event) = event(&mut out) {
                // A test that wants to know no more has ended.
                let _ = tell.send(event);
            }
        });
        Running { child, first, events }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The next event of this name.
    pub fn wait_for(&self, name: &str) -> Value {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{name} never came"));
            if event["event"] == name {
                return event;
            }
        }
    }

    pub fn address(&self, at: usize) -> String {
        self.first["addresses"][at].as_str().unwrap().to_string()
    }
}

pub fn event(out: &mut BufReader<ChildStdout>) -> Option<Value> {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (!line.is_empty())
        .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in '{line}'")))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn connect(relay: &Running) -> TcpStream {
    patient(TcpStream::connect(relay.address(0)).unwrap())
}

/// A client, and its counterpart at the target.
pub fn pair(relay: &Running, target: &TcpListener) -> (TcpStream, TcpStream) {
    let near = connect(relay);
    (near, patient(target.accept().unwrap().0))
}

pub fn is_reset(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 8]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    content.truncate(bytes);
    content
}

pub fn send(stream: &TcpStream, content: Vec<u8>) -> JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        stream.write_all(&content).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    })
}

pub fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut content = Vec::new();
    stream.read_to_end(&mut content).unwrap();
    content
}

/// Sends both ways at once, and looks that all arrives and nothing else.
pub fn exchange((near, far): (TcpStream, TcpStream), seed: u64, bytes: usize) {
    let (up, down) = (noise(seed, bytes), noise(seed + 1, bytes / 2 + 3));
    let sending = [send(&near, up.clone()), send(&far, down.clone())];
    let reading = std::thread::spawn(move || read_all(&far));
    assert!(read_all(&near) == down, "what came back differs");
    assert!(reading.join().unwrap() == up, "what arrived differs");
    sending.into_iter().for_each(|it| it.join().unwrap());
}
