//! A line that can be cut: a proxy whose connections end when it is, and that lets nobody through meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct State {
    is_cut: AtomicBool,
    swallows: AtomicBool,
    connections: AtomicUsize,
    open: Mutex<Vec<UnixStream>>,
    /// Bytes that may still go there at full speed.
    fast_bytes: AtomicU64,
}

/// A line to one address.
pub struct Line {
    /// Where it begins.
    pub address: String,
    state: Arc<State>,
}

/// What a narrow line carries at once, and how often.
const NARROW_BYTES: usize = 16 << 10;
const NARROW_PAUSE: Duration = Duration::from_millis(30);

impl Line {
    /// A line to there, that ends with the process.
    pub fn to(target: &str) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, target) = (State::new(), target.to_string());
        let kept = state.clone();
        std::thread::spawn(move || {
            let dial = || TcpStream::connect(&target).ok().map(unix);
            listener.incoming().for_each(|near| kept.carry(unix(near.unwrap()), dial));
        });
        Line { address, state }
    }

    /// A line between two paths, that ends with the process.
    pub fn between(near: &Path, far: &Path) -> Line {
        let listener = UnixListener::bind(near).unwrap();
        let (state, far) = (State::new(), far.to_path_buf());
        let kept = state.clone();
        std::thread::spawn(move || {
            listener.incoming().for_each(|near| kept.carry(near.unwrap(), || UnixStream::connect(&far).ok()));
        });
        Line { address: near.display().to_string(), state }
    }

    /// Cuts it, or mends it. What was under way is lost.
    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::SeqCst);
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Carries so many bytes more at full speed to its far end, and then a trickle of half a megabyte a second.
    pub fn narrow_after(&self, bytes: u64) {
        self.state.fast_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Takes what comes from its near end from now on, and carries none of it: what is under way on a line that will be cut.
    pub fn swallow(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }

    /// Connections that came so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

/// The same socket: only the name of its kind differs.
fn unix(stream: TcpStream) -> UnixStream {
    UnixStream::from(OwnedFd::from(stream))
}

impl State {
    fn new() -> Arc<State> {
        Arc::new(State {
            is_cut: AtomicBool::new(false),
            swallows: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            open: Mutex::default(),
            fast_bytes: AtomicU64::new(u64::MAX),
        })
    }

    fn carry(self: &Arc<State>, near: UnixStream, dial: impl Fn() -> Option<UnixStream>) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        // Dropped, it is closed: whoever comes while the line is cut finds nobody.
        if self.is_cut.load(Ordering::SeqCst) {
            return;
        }
        let Some(far) = dial() else { return };
        for (from, to, pace) in [(&near, &far, Some(self.clone())), (&far, &near, None)] {
            open.push(from.try_clone().unwrap());
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || pump(from, to, pace.as_deref()));
        }
    }

    /// Waits until so many bytes may go.
    fn pace(&self, bytes: usize) {
        let take = |left: u64| Some(left.saturating_sub(bytes as u64));
        let had = self.fast_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap();
        if had == 0 {
            std::thread::sleep(NARROW_PAUSE);
        }
    }
}

fn pump(mut from: UnixStream, mut to: UnixStream, pace: Option<&State>) {
    let mut piece = vec![0; NARROW_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if pace.is_some_and(|state| state.swallows.load(Ordering::SeqCst)) {
            continue;
        }
        if let Some(state) = pace {
            state.pace(bytes);
        }
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
