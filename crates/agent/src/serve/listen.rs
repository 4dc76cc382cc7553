//! A port of this host that is listened at for a moment, so that a peer can measure the way past the link: what QEMU would
//! send by. What comes is read and thrown away.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::Channel;

use super::refused;
use super::seats::Seat;
use crate::direct::{CONNECTIONS_MAX, LISTEN_TIME_MAX, PORT_MIN, PORTS_MAX};
use crate::error::Refusal;
use crate::opening::{Answer, Listen, Listened, Listening};
use crate::site::encode;

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;
/// Connections of strangers at a time, beside those of the peer.
const STRANGERS_MAX: usize = 8;
/// In which a connection shows its token.
const TOKEN_WITHIN: Duration = Duration::from_secs(3);
/// For which connections are waited for that the peer's last word has overtaken.
const OVERTAKEN_MAX: Duration = Duration::from_secs(2);
/// Between two looks whether somebody came, or it is over.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two looks of a connection on which nothing comes.
const QUIET: Duration = Duration::from_millis(100);
/// Bytes read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Listens where a peer wants, with a seat for it, until its channel ends, all connections have, or it is time.
pub(super) fn serve(channel: Channel, wanted: &Listen, seat: Result<Seat<'_>, Refusal>) {
    let (sender, receiver) = channel.split();
    let opened = seat.and_then(|seat| Ok((seat, bind(wanted)?)));
    let (seat, (listener, listening)) = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            // A peer that is gone needs no answer.
            let answer = encode(&Answer::<Listening>::Refused((&refusal).into()));
            let _ = answer.map(|body| sender.send(&[], &body).and_then(|()| sender.finish()));
            return;
        }
    };
    let hall = Hall {
        until: Instant::now() + LISTEN_TIME_MAX,
        wanted: usize::from(wanted.connections),
        has_ended: AtomicBool::new(false),
        token: listening.token.clone().into_bytes(),
        known: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        // Beside the rest: a peer that gives no credit is answered only when that is over.
        let answers = || {
            let answer = encode(&Answer::Ok(listening));
            let is_told = answer.is_ok_and(|answer| sender.send(&[], &answer).is_ok());
            if is_told {
                // Its last word, or that it is gone: both are the end.
                let _ = receiver.receive();
            }
            hall.has_ended.store(true, Ordering::Relaxed);
        };
        if Builder::new().name("listen-end".into()).spawn_scoped(scope, answers).is_err() {
            hall.has_ended.store(true, Ordering::Relaxed);
        }
        hall.take_all(&listener);
        // The place is free before the peer knows.
        drop((listener, seat));
        while !hall.has_ended() && !hall.is_late() {
            thread::sleep(PAUSE);
        }
        let connections = u16::try_from(hall.known()).unwrap_or(u16::MAX);
        let listened = encode(&Answer::Ok(Listened { connections }));
        match listened {
            // A peer that is gone needs no word.
            Ok(body) if hall.has_ended() => drop(sender.send(&[], &body).and_then(|()| sender.finish())),
            // Who waits for its last word waits no more.
            Ok(_) | Err(_) => sender.reset(),
        }
    });
}

/// What is listened for, and for how long.
struct Hall {
    until: Instant,
    /// So many connections of the peer.
    wanted: usize,
    /// The peer said its last word, or is gone.
    has_ended: AtomicBool,
    token: Vec<u8>,
    /// Connections that showed it.
    known: AtomicUsize,
}

impl Hall {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Takes the peer's connections, and waits for their end. Its last word may overtake them.
    fn take_all(&self, listener: &TcpListener) {
        thread::scope(|scope| {
            let mut taken: Vec<ScopedJoinHandle<'_, ()>> = Vec::new();
            let mut ended = None;
            while !self.is_late() {
                taken.retain(|thread| !thread.is_finished());
                let are_there = self.known() >= self.wanted;
                let is_waited_for = |ended: &Instant| ended.elapsed() < OVERTAKEN_MAX;
                ended = ended.or_else(|| self.has_ended().then(Instant::now));
                match ended {
                    Some(ended) if are_there || !is_waited_for(&ended) => break,
                    None if are_there && taken.is_empty() => break,
                    Some(_) | None => {}
                }
                match listener.accept() {
                    Ok((stream, _)) if taken.len() < self.wanted + STRANGERS_MAX => {
                        let take = Builder::new().name("listen".into());
                        // Where no thread is to be had, the connection ends.
                        taken.extend(take.spawn_scoped(scope, move || self.take(stream)));
                    }
                    Ok(_) => {}
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        });
    }

    /// Reads what comes, if it begins with the token.
    fn take(&self, mut stream: TcpStream) {
        let is_ready = stream.set_nonblocking(false).is_ok() && stream.set_read_timeout(Some(QUIET)).is_ok();
        if !is_ready || !self.is_shown(&mut stream) {
            return;
        }
        self.known.fetch_add(1, Ordering::Relaxed);
        let mut piece = vec![0; PIECE_BYTES];
        while !self.has_ended() && self.read(&mut stream, &mut piece).is_some() {}
    }

    fn is_shown(&self, stream: &mut TcpStream) -> bool {
        let until = Instant::now() + TOKEN_WITHIN;
        let mut shown = vec![0; self.token.len()];
        let mut at = 0;
        while at < shown.len() && Instant::now() < until && self.known() < self.wanted {
            match self.read(stream, &mut shown[at..]) {
                Some(bytes) => at += bytes,
                None => return false,
            }
        }
        // By their digests, so that the time it takes tells nothing.
        at == shown.len() && blake3::hash(&shown) == blake3::hash(&self.token)
    }

    /// What has come, which may be nothing for a while; nothing at all at the end.
    fn read(&self, stream: &mut TcpStream, piece: &mut [u8]) -> Option<usize> {
        if self.is_late() {
            return None;
        }
        match stream.read(piece) {
            Ok(0) => None,
            Ok(bytes) => Some(bytes),
            Err(error) => is_quiet(&error).then_some(0),
        }
    }
}

fn is_quiet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A listener at one of the ports that are wanted.
fn bind(wanted: &Listen) -> Result<(TcpListener, Listening), Refusal> {
    let Listen { host, ports: [first, last], connections } = wanted;
    let misuse = |why: String| Err(refused(DiskErrorKind::Misuse, why));
    let is_range = (*first == 0 && *last == 0) || (*first >= PORT_MIN && first <= last);
    if !is_range || last - first >= PORTS_MAX {
        return misuse(format!(
            "ports {first} to {last}: want {PORT_MIN} and more, {PORTS_MAX} of them at most"
        ));
    }
    if *connections == 0 || usize::from(*connections) > CONNECTIONS_MAX {
        return misuse(format!("{connections} connections: want 1 to {CONNECTIONS_MAX}"));
    }
    let failed = |what: String, error: &io::Error| {
        let what = match error.kind() {
            ErrorKind::AddrNotAvailable => {
                format!("{what}: no address of that host: name the one at which its QEMU can listen")
            }
            _ => format!("{what}: {error}"),
        };
        refused(DiskErrorKind::Failed, what)
    };
    let addresses = (host.as_str(), *first).to_socket_addrs();
    let addresses: Vec<SocketAddr> =
        addresses.map_err(|error| failed(host.clone(), &error))?.take(ADDRESSES_MAX).collect();
    if addresses.iter().any(|address| address.ip().to_canonical().is_unspecified()) {
        return misuse(format!("{host} is every address of this host: name the one that guests come by"));
    }
    let mut why = refused(DiskErrorKind::Failed, format!("{host} has no address"));
    for port in *first..=*last {
        for address in &addresses {
            let at = SocketAddr::new(address.ip(), port);
            let bound = TcpListener::bind(at).and_then(|listener| {
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                Ok((listener, port))
            });
            match bound {
                Ok((listener, port)) => {
                    let token = crate::random::hex(16);
                    return Ok((listener, Listening { port, token }));
                }
                Err(error) => why = failed(format!("listening at {at}"), &error),
            }
        }
    }
    Err(why)
}
