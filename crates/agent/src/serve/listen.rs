//! A port of this host that is listened at for a moment, so that a peer can measure the way past the link: what QEMU would
//! send by. What comes is read and thrown away.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::Channel;

use super::refused;
use super::seats::Seat;
use crate::direct::{CONNECTIONS_MAX, LISTEN_TIME_MAX, PORTS_MAX};
use crate::error::Refusal;
use crate::opening::{Answer, Listen, Listening};
use crate::site::encode;

/// Ports below are not everybody's to listen at.
const PORT_MIN: u16 = 1024;
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;
/// In which a connection shows its token.
const TOKEN_WITHIN: Duration = Duration::from_secs(3);
/// Between two looks whether somebody came, or it is over.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two looks of a connection on which nothing comes.
const QUIET: Duration = Duration::from_millis(200);
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
    let token = listening.token.clone().into_bytes();
    let Ok(answer) = encode(&Answer::Ok(listening)) else { return sender.reset() };
    if sender.send(&[], &answer).is_err() {
        return;
    }
    let end = End { until: Instant::now() + LISTEN_TIME_MAX, is_told: AtomicBool::new(false) };
    thread::scope(|scope| {
        let waits = || {
            // Its last word, or that it is gone: both are the end.
            let _ = receiver.receive();
            end.is_told.store(true, Ordering::Relaxed);
        };
        // Without a thread it ends with its time.
        let _ = Builder::new().name("listen-end".into()).spawn_scoped(scope, waits);
        let mut left = usize::from(wanted.connections);
        let mut taken = Vec::new();
        while !end.is_there() && (left > 0 || !taken.iter().all(thread::ScopedJoinHandle::is_finished)) {
            match listener.accept() {
                Ok((stream, _)) if left > 0 => {
                    let (end, token) = (&end, &token);
                    let take = move || end.take(stream, token);
                    if let Ok(thread) = Builder::new().name("listen".into()).spawn_scoped(scope, take) {
                        taken.push(thread);
                        left -= 1;
                    }
                }
                // More than were told of are none of the peer's.
                Ok(_) => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
        end.is_told.store(true, Ordering::Relaxed);
        // What a thread ended in is its own affair.
        taken.into_iter().for_each(|thread| drop(thread.join()));
        drop((listener, seat));
        // The peer knows by it that there may be another. Who waits for its last word waits no more.
        sender.reset();
    });
}

/// When it is over.
struct End {
    until: Instant,
    is_told: AtomicBool,
}

impl End {
    fn is_there(&self) -> bool {
        self.is_told.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// Reads what comes, if it begins with the token.
    fn take(&self, mut stream: TcpStream, token: &[u8]) {
        let mut shown = vec![0; token.len()];
        let is_shown = stream.set_nonblocking(false).is_ok()
            && stream.set_read_timeout(Some(TOKEN_WITHIN)).is_ok()
            && stream.read_exact(&mut shown).is_ok()
            && blake3::hash(&shown) == blake3::hash(token);
        if !is_shown || stream.set_read_timeout(Some(QUIET)).is_err() {
            return;
        }
        let mut piece = vec![0; PIECE_BYTES];
        while !self.is_there() {
            match stream.read(&mut piece) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_quiet(&error) => {}
                Err(_) => return,
            }
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
    let failed = |what: String, error: io::Error| refused(DiskErrorKind::Failed, format!("{what}: {error}"));
    let addresses = (host.as_str(), *first).to_socket_addrs();
    let addresses: Vec<SocketAddr> =
        addresses.map_err(|error| failed(host.clone(), error))?.take(ADDRESSES_MAX).collect();
    if addresses.iter().any(|address| address.ip().is_unspecified()) {
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
                Err(error) => why = failed(format!("listening at {at}"), error),
            }
        }
    }
    Err(why)
}
