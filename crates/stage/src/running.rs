//! Relays and agents that run, and bytes that go through them.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use drover_lab::Drover;
use serde_json::Value;

use crate::streams::{self, PATIENCE, accept, connect_to, is_turned_away, patient};

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

pub fn connect(relay: &Running) -> TcpStream {
    connect_to(relay.address(0))
}

/// A client, and its counterpart at the target.
pub fn pair(relay: &Running, target: &TcpListener) -> (TcpStream, TcpStream) {
    let near = connect(relay);
    (near, accept(target))
}

/// A client that reaches the target, or is reset.
pub fn try_pair(relay: &Running, target: &TcpListener) -> Option<(TcpStream, TcpStream)> {
    // A reset may be faster than the connecting thread.
    let mut near = patient(TcpStream::connect(relay.address(0)).ok()?);
    target.set_nonblocking(true).unwrap();
    near.set_nonblocking(true).unwrap();
    let connected = loop {
        match (target.accept(), near.read(&mut [0; 8])) {
            (Ok((far, _)), _) => break Some(far),
            (Err(_), Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            (Err(_), _) => break None,
        }
    };
    target.set_nonblocking(false).unwrap();
    near.set_nonblocking(false).unwrap();
    connected.map(|far| {
        far.set_nonblocking(false).unwrap();
        (near, patient(far))
    })
}

pub fn turns_away(relay: &Running) -> bool {
    is_turned_away(relay.address(0))
}

/// Sends both ways at once, and looks that all arrives and nothing else.
pub fn exchange(ends: (TcpStream, TcpStream), seed: u64, bytes: usize) {
    streams::exchange(ends, seed, bytes, bytes / 2 + 3);
}
