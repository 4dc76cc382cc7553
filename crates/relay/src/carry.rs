//! Carries a TCP connection over a channel of a link, both ways.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use drover_link::{Channel, Receiver, Sender};
use drover_tcp as tcp;

use crate::bucket::Grant;
use crate::hop::Limit;

/// Taken from a socket at a time: as much as the largest frames of a link.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes that went each way, and whether somebody has cut the connection off.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) is_cut: AtomicBool,
    /// From the socket into the channel.
    pub(crate) out: AtomicU64,
    /// From the channel to the socket.
    pub(crate) back: AtomicU64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both ways were through.
    Closed,
    /// Somebody reset it, or the link was lost.
    Reset,
}

struct Carried<'a> {
    stream: &'a TcpStream,
    counts: &'a Counts,
}

/// Carries both ways until both are through, or one side has reset: then the other side is reset.
pub(crate) fn carry(
    stream: &TcpStream,
    channel: Channel,
    counts: &Counts,
    limits: (Option<&Limit>, Option<&Limit>),
) -> Ended {
    let carried = &Carried { stream, counts };
    let (sender, receiver) = channel.split();
    let is_through = std::thread::scope(|scope| {
        let back = std::thread::Builder::new().name("relay-back".to_string());
        let for_back = sender.clone();
        let back = match back.spawn_scoped(scope, move || carried.back(receiver, &for_back, limits.1)) {
            Ok(back) => back,
            Err(_) => {
                sender.reset();
                return false;
            }
        };
        let out = carried.out(&sender, limits.0);
        // A panic is an end like any other failure: not a clean one.
        back.join().unwrap_or(false) && out
    });
    // From here on closing is an end; before, and in any other case, it is a reset.
    let is_through = is_through && !counts.is_cut.load(Ordering::Acquire);
    if is_through && tcp::end_on_close(stream).is_ok() { Ended::Closed } else { Ended::Reset }
}

/// Waits until so many bytes may go.
fn wait_for(limit: Option<&Limit>, bytes: usize) {
    let (Some(limit), mut left) = (limit, bytes as u64) else { return };
    while left > 0 {
        match limit.take(left) {
            Grant::Bytes(given) => left -= given,
            Grant::Wait(time) => {
                std::thread::sleep(limit.instant(time).saturating_duration_since(Instant::now()));
            }
        }
    }
}

impl Carried<'_> {
    /// From the socket into the channel; whether all went through.
    fn out(&self, sender: &Sender, limit: Option<&Limit>) -> bool {
        let done = self.try_out(sender, limit);
        if done.is_err() {
            self.give_up(sender);
        }
        done.is_ok()
    }

    fn try_out(&self, sender: &Sender, limit: Option<&Limit>) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut stream = self.stream;
        loop {
            let bytes = read(&mut stream, &mut piece)?;
            if self.counts.is_cut.load(Ordering::Acquire) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if bytes == 0 {
                return sender.finish().map_err(io::Error::other);
            }
            wait_for(limit, bytes);
            sender.write_all(&piece[..bytes]).map_err(io::Error::other)?;
            self.counts.out.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// From the channel to the socket; whether all went through.
    fn back(&self, mut receiver: Receiver, sender: &Sender, limit: Option<&Limit>) -> bool {
        let done = self.try_back(&mut receiver, limit);
        if done.is_err() {
            self.give_up(sender);
        }
        done.is_ok()
    }

    fn try_back(&self, receiver: &mut Receiver, limit: Option<&Limit>) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut stream = self.stream;
        loop {
            let bytes = receiver.read(&mut piece).map_err(io::Error::other)?;
            if bytes == 0 {
                return match stream.shutdown(Shutdown::Write) {
                    // It has gone by itself: whoever waits for its bytes will notice.
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                    result => result,
                };
            }
            wait_for(limit, bytes);
            stream.write_all(&piece[..bytes])?;
            self.counts.back.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Ends both ways. The socket is woken up by closing it for reading, which its peer does not see; the
    /// reset comes when it is closed.
    fn give_up(&self, sender: &Sender) {
        sender.reset();
        cut(self.stream, self.counts);
    }
}

/// Has a connection that is carried end with a reset.
pub(crate) fn cut(stream: &TcpStream, counts: &Counts) {
    counts.is_cut.store(true, Ordering::Release);
    // On a socket that is closed already nobody waits.
    let _ = stream.shutdown(Shutdown::Read);
}

fn read(stream: &mut &TcpStream, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
