//! A line that can be cut: a proxy whose connections end when it is, and that lets nobody through meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

struct State {
    is_cut: AtomicBool,
    connections: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

/// A line to one address.
pub struct Line {
    /// Where it begins.
    pub address: String,
    state: Arc<State>,
}

impl Line {
    /// A line to there, that ends with the process.
    pub fn to(target: &str) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = State {
            is_cut: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            open: Mutex::default(),
        };
        let (state, target) = (Arc::new(state), target.to_string());
        let kept = state.clone();
        std::thread::spawn(move || listener.incoming().for_each(|near| kept.carry(near.unwrap(), &target)));
        Line { address, state }
    }

    /// Cuts it, or mends it. What was under way is lost.
    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::SeqCst);
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections that came so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl State {
    fn carry(&self, near: TcpStream, target: &str) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        // Dropped, it is closed: whoever comes while the line is cut finds nobody.
        if self.is_cut.load(Ordering::SeqCst) {
            return;
        }
        let Ok(far) = TcpStream::connect(target) else { return };
        for (from, to) in [(&near, &far), (&far, &near)] {
            open.push(from.try_clone().unwrap());
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || pump(from, to));
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
