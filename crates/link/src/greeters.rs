//! Connections that have not greeted yet. Anyone can make them, so there is a bound, and those who take their
//! time make way: a peer greets within some round trips, one that wants to keep others out does not.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::socket::Socket;

/// Connections that have not greeted yet, at most. When one more comes, the oldest ends if it has had its time; else the oldest of the
/// address with the most of them. Addresses of one IPv6 network (/64) are one host's.
pub const GREETING_MAX: usize = 128;

/// In which a peer greets on any line.
const SOON: Duration = Duration::from_secs(3);

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
    since: Instant,
    socket: Socket,
}

/// The place of one of them; free again when this goes, however that comes about.
#[derive(Debug)]
pub struct Place {
    inner: Arc<Mutex<Inner>>,
    id: u64,
}

impl Greeters {
    /// A place for a connection, unless there is none at all.
    pub fn enter(&self, socket: &Socket, from: IpAddr) -> Option<Place> {
        let socket = socket.try_clone().ok()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.threads >= THREADS_MAX {
            return None;
        }
        let id = inner.next;
        inner.next += 1;
        inner.threads += 1;
        inner.waiting.push_back(Greeter { id, from: host_of(from), since: Instant::now(), socket });
        if inner.waiting.len() > GREETING_MAX {
            inner.end_one();
        }
        Some(Place { inner: self.inner.clone(), id })
    }
}

impl Inner {
    fn end_one(&mut self) {
        if self.waiting.front().is_some_and(|it| it.since.elapsed() > SOON) {
            return self.waiting.pop_front().into_iter().for_each(end);
        }
        let mut counts = HashMap::<IpAddr, usize>::new();
        self.waiting.iter().for_each(|it| *counts.entry(it.from).or_default() += 1);
        let Some(most) = counts.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from) else {
            return;
        };
        let oldest = self.waiting.iter().position(|it| it.from == most);
        oldest.and_then(|at| self.waiting.remove(at)).into_iter().for_each(end);
    }
}

fn end(greeter: Greeter) {
    greeter.socket.end();
}

/// Whose address it is: of IPv6 one host has a whole network.
fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
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
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn set_nonblocking(socket: &Socket) {
        let Socket::Tcp(socket) = socket else { unreachable!("they are of TCP") };
        socket.set_nonblocking(true).unwrap();
    }

    #[test]
    fn one_of_the_greediest_makes_way_and_threads_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = || Socket::Tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let (greeters, mut honest) = (Greeters::default(), socket());
        let mut places = vec![greeters.enter(&honest, address(1)).unwrap()];
        let mut greedy: Vec<_> = (0..GREETING_MAX).map(|_| socket()).collect();
        places.extend(greedy.iter().map(|it| greeters.enter(it, address(2)).unwrap()));
        assert_eq!(greedy[0].read(&mut [0]).unwrap(), 0, "the oldest of those was ended");
        for kept in [&mut honest, &mut greedy[1]] {
            set_nonblocking(kept);
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

    #[test]
    fn those_who_had_their_time_and_networks_make_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // More than may wait to be accepted.
        std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        let socket = || Socket::Tcp(TcpStream::connect(address).unwrap());
        let of_network = |last: usize| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last as u16]);
        let honest = IpAddr::from([192, 0, 2, 1]);
        // One host with an address for each connection, against one that dials twice.
        let greeters = Greeters::default();
        let mut greedy: Vec<_> = (0..GREETING_MAX - 1).map(|_| socket()).collect();
        let mut places: Vec<_> =
            greedy.iter().enumerate().map(|(at, it)| greeters.enter(it, of_network(at)).unwrap()).collect();
        let mut kept = [socket(), socket()];
        places.extend(kept.iter().map(|it| greeters.enter(it, honest).unwrap()));
        assert_eq!(greedy[0].read(&mut [0]).unwrap(), 0);
        // Hosts of their own, who are slow.
        let greeters = Greeters::default();
        let one_of = |last: usize| IpAddr::from([198, 51, 100, last as u8]);
        let mut slow: Vec<_> = (0..GREETING_MAX - 1).map(|_| socket()).collect();
        places.extend(slow.iter().enumerate().map(|(at, it)| greeters.enter(it, one_of(at)).unwrap()));
        let long_ago = Instant::now().checked_sub(SOON * 2).unwrap();
        greeters.inner.lock().unwrap().waiting.iter_mut().for_each(|it| it.since = long_ago);
        let mut others = [socket(), socket()];
        places.extend(others.iter().map(|it| greeters.enter(it, honest).unwrap()));
        assert_eq!(slow[0].read(&mut [0]).unwrap(), 0);
        for socket in kept.iter_mut().chain(&mut others) {
            set_nonblocking(socket);
            assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }
}
