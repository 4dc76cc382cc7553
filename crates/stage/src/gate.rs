//! A server that stops in the middle: what it sends is carried up to a number of bytes, and the rest once it is let go on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Stands before a server, until the process ends.
pub struct Gate {
    /// Where clients come to.
    pub socket: PathBuf,
    state: Arc<State>,
}

struct State {
    /// Bytes that may still go to clients; all of them, once it is open.
    left: Mutex<Option<u64>>,
    opened: Condvar,
    connections: AtomicUsize,
}

impl Gate {
    pub fn to(server: &Path, socket: &Path, bytes: u64) -> Gate {
        let listener = UnixListener::bind(socket).unwrap();
        let state = Arc::new(State {
            left: Mutex::new(Some(bytes)),
            opened: Condvar::new(),
            connections: AtomicUsize::new(0),
        });
        let (server, shared) = (server.to_path_buf(), state.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                // Dropped, it is closed: the server has gone.
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || carry(from, to, |_| {}));
                let shared = shared.clone();
                std::thread::spawn(move || carry(server, client, |bytes| shared.pass(bytes)));
            }
        });
        Gate { socket: socket.to_path_buf(), state }
    }

    /// Lets through what is held, and all that comes.
    pub fn open(&self) {
        *self.state.left.lock().unwrap() = None;
        self.state.opened.notify_all();
    }

    /// Connections that came so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl State {
    /// Waits until these may go.
    fn pass(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap();
        while *left == Some(0) {
            left = self.opened.wait(left).unwrap();
        }
        *left = left.map(|left| left.saturating_sub(bytes as u64));
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, before: impl Fn(usize)) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        before(bytes);
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    // Its client or server may have gone already.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
