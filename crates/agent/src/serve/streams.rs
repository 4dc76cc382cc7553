//! Streams to measure a link by.

use drover_link::Channel;

/// Bytes read or written at a time.
const PIECE_BYTES: usize = 256 << 10;

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

/// Sends so many bytes that no compression makes fewer.
pub(super) fn source(channel: Channel, bytes: u64) {
    let (sender, _receiver) = channel.split();
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
    // As above.
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
