//! Streams to measure a link by.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use drover_link::{Channel, Sender};

/// Bytes read or written at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes that a peer may have made up for it at a time: a minute at 10 Gbit/s, rounded down.
pub const SOURCE_BYTES_MAX: u64 = 64 << 30;

/// Reads to the end and throws away.
pub(crate) fn sink(channel: Channel) {
    let (sender, mut receiver) = channel.split();
    let mut piece = vec![0; PIECE_BYTES];
    let mut all = 0u64;
    loop {
        match receiver.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => all += length as u64,
            Err(_) => return,
        }
    }
    // How much arrived; a peer that is gone does not want to know.
    let _ = sender.write_all(format!("{{\"bytes\":{all}}}").as_bytes()).and_then(|()| sender.finish());
}

/// Sends so many bytes that no compression makes fewer, and is over with its time whatever the peer does. Of more than
/// [`SOURCE_BYTES_MAX`] it sends none.
pub(super) fn source(stream: Channel, bytes: u64, within: Duration) {
    let (sender, _receiver) = stream.split();
    if bytes > SOURCE_BYTES_MAX {
        return sender.reset();
    }
    let (ended, end) = channel::<()>();
    thread::scope(|scope| {
        let sender = &sender;
        let made = move || {
            let _ended = ended;
            make_up(sender, bytes);
        };
        if thread::Builder::new().name("source".into()).spawn_scoped(scope, made).is_err() {
            return sender.reset();
        }
        // Nothing is ever told: the other end goes, or does not in time.
        if end.recv_timeout(within) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            sender.reset();
        }
    });
}

fn make_up(sender: &Sender, bytes: u64) {
    let mut noise = vec![0; PIECE_BYTES];
    blake3::Hasher::new().update(&crate::random::bytes::<32>()).finalize_xof().fill(&mut noise);
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(PIECE_BYTES as u64);
        if sender.write_all(&noise[..piece as usize]).is_err() {
            return;
        }
        left -= piece;
    }
    // A peer that is gone does not want to know.
    let _ = sender.finish();
}

/// Sends back what comes.
pub(super) fn echo(channel: Channel) {
    let (sender, mut receiver) = channel.split();
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(length) = receiver.read(&mut piece) {
        let sent = if length == 0 { sender.finish() } else { sender.write_all(&piece[..length]) };
        if length == 0 || sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_link::{Order, Receiver, Session};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Asks for that many bytes, and says when the other side has done with it. The sessions have to be kept.
    fn asked(bytes: u64, within: Duration) -> ((Session, Session), Receiver, std::sync::mpsc::Receiver<()>) {
        let (one, two) = Session::pair();
        let (_, receiver) = one.open(Order::Stream, b"").unwrap().split();
        let stream = two.accept().unwrap().channel;
        let (done, over) = channel();
        thread::spawn(move || {
            source(stream, bytes, within);
            // A test that failed does not listen.
            let _ = done.send(());
        });
        ((one, two), receiver, over)
    }

    /// Reads to the end: how many bytes, and whether it was a good end.
    fn read(receiver: &mut Receiver) -> (u64, bool) {
        let (mut piece, mut all) = (vec![0; PIECE_BYTES], 0);
        loop {
            match receiver.read(&mut piece) {
                Ok(0) => return (all, true),
                Ok(bytes) => all += bytes as u64,
                Err(_) => return (all, false),
            }
        }
    }

    #[test]
    fn what_is_made_up_comes_whole() {
        let (_sessions, mut receiver, over) = asked(5_000_000, PATIENCE);
        assert_eq!(read(&mut receiver), (5_000_000, true));
        over.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn a_peer_that_takes_nothing_is_not_made_up_for_for_ever() {
        let (_sessions, mut receiver, over) = asked(1 << 30, Duration::from_millis(50));
        over.recv_timeout(PATIENCE).unwrap();
        assert!(!read(&mut receiver).1);
    }

    #[test]
    fn too_much_is_not_even_begun() {
        let (_sessions, mut receiver, over) = asked(SOURCE_BYTES_MAX + 1, PATIENCE);
        assert_eq!(read(&mut receiver), (0, false));
        over.recv_timeout(PATIENCE).unwrap();
    }
}
