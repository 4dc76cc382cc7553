//! A proxy between the two ends, whose lines fail on order.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Carries connections to a target, in both directions.
pub struct Proxy {
    pub address: SocketAddr,
    pub state: Arc<State>,
}

#[derive(Default)]
pub struct State {
    /// Nothing is carried, and nothing new is let in; those who wait are not told.
    pub is_cut: AtomicBool,
    /// One bit of every so many bytes is flipped; zero for none.
    pub flip_every: AtomicU64,
    /// How many connections there were, and how many bits were flipped.
    pub connections: AtomicUsize,
    pub flips: AtomicUsize,
    sockets: Mutex<Vec<(TcpStream, Arc<AtomicBool>)>>,
    is_over: AtomicBool,
}

impl Proxy {
    pub fn new(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                shared.clone().carry_both(socket, target);
            }
        });
        Proxy { address, state }
    }

    /// Ends all connections that there are; whether there were any.
    pub fn kill_all(&self) -> bool {
        let sockets: Vec<_> = self.state.sockets.lock().unwrap().drain(..).collect();
        for (socket, _) in &sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        !sockets.is_empty()
    }

    /// From now on a connection takes bytes and carries none. Gives false if there is none.
    pub fn swallow_one(&self) -> bool {
        let sockets = self.state.sockets.lock().unwrap();
        sockets.first().map(|(_, swallows)| swallows.store(true, Ordering::SeqCst)).is_some()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        self.kill_all();
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn carry_both(self: Arc<State>, near: TcpStream, target: SocketAddr) {
        let swallows = Arc::new(AtomicBool::new(false));
        let Ok(far) = TcpStream::connect(target) else { return };
        let mut sockets = self.sockets.lock().unwrap();
        sockets.push((near.try_clone().unwrap(), swallows.clone()));
        sockets.push((far.try_clone().unwrap(), swallows.clone()));
        drop(sockets);
        for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
            let (state, swallows) = (self.clone(), swallows.clone());
            thread::spawn(move || state.carry(from, to, &swallows));
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool) {
        let (mut buffer, mut carried) = (vec![0; 64 << 10], 0);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            while self.is_cut.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            if swallows.load(Ordering::SeqCst) {
                continue;
            }
            let every = self.flip_every.load(Ordering::SeqCst);
            if every > 0 && (carried + length as u64) / every > carried / every {
                buffer[length / 2] ^= 4;
                self.flips.fetch_add(1, Ordering::SeqCst);
            }
            carried += length as u64;
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
