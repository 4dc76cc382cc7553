//! Connections that have not greeted yet. Anyone can make them, so there is a bound, and those who take their
//! time make way: a peer greets within some round trips, one that wants to keep others out does not.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that have not greeted yet, at most. When one more comes, the oldest of the address with the
/// most of them ends.
pub const GREETING_MAX: usize = 128;

/// Threads that greet, at most: with those whose connection was ended and that have not noticed yet. More
/// connections are sent away at once.
const THREADS_MAX: usize = 2 * GREETING_MAX;

/// Those who are greeting.
#[derive(Debug, Default)]
pub struct Greeters {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// Oldest first.
    waiting: VecDeque<Greeter>,
    threads: usize,
}

#[derive(Debug)]
struct Greeter {
    id: u64,
    from: IpAddr,
    socket: TcpStream,
}

/// The place of one of them; free again when this goes, however that comes about.
#[derive(Debug)]
pub struct Place {
    inner: Arc<Mutex<Inner>>,
    id: u64,
}

impl Greeters {
    /// A place for a connection, unless there is none at all.
    pub fn enter(&self, socket: &TcpStream, from: IpAddr) -> Option<Place> {
        let socket = socket.try_clone().ok()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.threads >= THREADS_MAX {
            return None;
        }
        let id = inner.next;
        inner.next += 1;
        inner.threads += 1;
        inner.waiting.push_back(Greeter { id, from, socket });
        if inner.waiting.len() > GREETING_MAX {
            inner.end_one();
        }
        Some(Place { inner: self.inner.clone(), id })
    }
}

impl Inner {
    fn end_one(&mut self) {
        let mut counts = HashMap::<IpAddr, usize>::new();
        self.waiting.iter().for_each(|it| *counts.entry(it.from).or_default() += 1);
        let Some(most) = counts.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from) else {
            return;
        };
        let oldest = self.waiting.iter().position(|it| it.from == most);
        if let Some(greeter) = oldest.and_then(|at| self.waiting.remove(at)) {
            // It may have ended already.
            let _ = greeter.socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.threads -= 1;
        inner.waiting.retain(|it| it.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_of_the_greediest_makes_way_and_threads_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let (greeters, mut honest) = (Greeters::default(), socket());
        let mut places = vec![greeters.enter(&honest, address(1)).unwrap()];
        let mut greedy: Vec<_> = (0..GREETING_MAX).map(|_| socket()).collect();
        places.extend(greedy.iter().map(|it| greeters.enter(it, address(2)).unwrap()));
        assert_eq!(greedy[0].read(&mut [0]).unwrap(), 0, "the oldest of those was ended");
        for kept in [&mut honest, &mut greedy[1]] {
            kept.set_nonblocking(true).unwrap();
            assert_eq!(kept.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
        while let Some(place) = greeters.enter(&honest, address(3)) {
            places.push(place);
        }
        assert_eq!(places.len(), THREADS_MAX);
        places.clear();
        assert!(greeters.enter(&honest, address(3)).is_some());
        let inner = greeters.inner.lock().unwrap();
        assert_eq!((inner.threads, inner.waiting.len()), (0, 0), "that place was dropped at once");
    }
}
