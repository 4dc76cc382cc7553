//! The threads that turn what is pending into messages: hashing and packing happen here, on several cores.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::{LinkError, LinkErrorKind, Sender};
use drover_pack::{Codec, Packer};
use drover_types::ByteSpan;

use super::disk::Inner;
use super::pending::{Job, What};
use crate::error::Refusal;
use crate::message::{Head, Kind, PieceHash, READ_PLAIN, all_pieces, hash_of, pieces};

/// Sends until the disk is closed or has failed.
pub(super) fn send_all(inner: &Inner) {
    let mut packer = match Packer::new() {
        Ok(packer) => packer,
        Err(error) => {
            return inner.fail(Refusal::new(DiskErrorKind::Failed, format!("compression: {error}")));
        }
    };
    while let Some(Next { sender, job, idle }) = next(inner) {
        match send(inner, &sender, &mut packer, &job, idle) {
            // The receiving thread sees the end of the channel too, and has it sent again.
            Ok(()) => {}
            Err(error) if error.kind == LinkErrorKind::Misuse => {
                inner.fail(Refusal::new(DiskErrorKind::Misuse, error.to_string()));
            }
            Err(_) => {}
        }
    }
}

/// A message to send, and the way it goes.
struct Next {
    sender: Sender,
    job: Job,
    /// How long there was nothing to send while lanes waited for answers: then the line, or what is behind it, is the
    /// limit.
    idle: Duration,
}

/// Waits for the next message. It is taken together with its way, so that what was meant for an earlier connection
/// never goes through a later one.
fn next(inner: &Inner) -> Option<Next> {
    let mut state = inner.lock();
    let mut idle = Duration::ZERO;
    loop {
        if state.closed || state.pending.failed().is_some() {
            return None;
        }
        if let Some(sender) = state.sender.clone()
            && let Some(job) = state.pending.next(inner.now())
        {
            return Some(Next { sender, job, idle });
        }
        let wake = state.sender.as_ref().and_then(|_| state.pending.next_wake());
        let (since, counts) = (Instant::now(), state.blocked > 0 && state.sender.is_some());
        state = inner.wait(state, wake);
        idle += since.elapsed() * u32::from(counts);
    }
}

fn send(
    inner: &Inner,
    sender: &Sender,
    packer: &mut Packer,
    job: &Job,
    idle: Duration,
) -> Result<(), LinkError> {
    match &job.what {
        What::Write(bytes) => write(inner, sender, packer, (job, bytes), idle),
        What::Zero => plain(inner, sender, job, Kind::Zero),
        What::Read { plain } => {
            let detail = if *plain { READ_PLAIN } else { 0 };
            put(inner, sender, &Head { detail, ..Head::plain(Kind::Read, job.id, job.span) }, &[]).map(|_| ())
        }
        What::Hash => plain(inner, sender, job, Kind::Hash),
        What::Flush => plain(inner, sender, job, Kind::Flush),
        What::Extents => plain(inner, sender, job, Kind::Extents),
        What::Identity => plain(inner, sender, job, Kind::Identity),
        What::Close => {
            plain(inner, sender, job, Kind::Close)?;
            sender.finish()
        }
    }
}

fn plain(inner: &Inner, sender: &Sender, job: &Job, kind: Kind) -> Result<(), LinkError> {
    put(inner, sender, &Head::plain(kind, job.id, job.span), &[]).map(|_| ())
}

fn write(
    inner: &Inner,
    sender: &Sender,
    packer: &mut Packer,
    (job, bytes): (&Job, &[u8]),
    idle: Duration,
) -> Result<(), LinkError> {
    let hashes = hashes_of(job.span, bytes);
    let head = Head { hashes, ..Head::plain(Kind::Write, job.id, job.span) };
    if job.rest.is_none() && inner.offers().next() {
        put(inner, sender, &Head { kind: Kind::Offer, ..head }, &[])?;
        return Ok(());
    }
    let head = Head { mask: job.rest.unwrap_or(all_pieces(job.span)), ..head };
    let body = meant(&head, bytes);
    let packed = if job.plain { None } else { pack(inner, packer, &body) };
    let (codec, sent) = packed.unwrap_or((Codec::Plain, &body));
    let Some(waited) = put(inner, sender, &Head { detail: codec.number(), ..head }, sent)? else {
        return Ok(());
    };
    inner.chooser().sent(body.len() as u64, sent.len() as u64, waited + idle, inner.now());
    inner.counters.wrote(body.len() as u64, sent.len() as u64);
    Ok(())
}

/// Packs by the codec that pays best at the moment, and now and then a sample by another.
fn pack<'a>(inner: &Inner, packer: &'a mut Packer, body: &[u8]) -> Option<(Codec, &'a [u8])> {
    let choice = inner.chooser().choose(inner.now())?;
    let (lesson, packed) = choice.carry_out(packer, body, || inner.now());
    inner.chooser().learn(lesson, |sampled| sampled.took);
    packed
}

fn hashes_of(span: ByteSpan, bytes: &[u8]) -> Vec<PieceHash> {
    let slice = |piece: ByteSpan| {
        let start = (piece.offset - span.offset) as usize;
        &bytes[start..start + piece.length as usize]
    };
    pieces(span).map(|piece| hash_of(slice(piece))).collect()
}

/// The bytes of the pieces that are meant.
fn meant<'a>(head: &Head, bytes: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
    if head.mask == all_pieces(head.span) {
        return bytes.into();
    }
    let mut body = Vec::with_capacity(head.meant_bytes());
    for (piece, _) in head.meant() {
        let start = (piece.offset - head.span.offset) as usize;
        body.extend_from_slice(&bytes[start..start + piece.length as usize]);
    }
    body.into()
}

/// Hands a message to the link and says how long that took; `None` if the run was asked to stop before it could be sent.
fn put(inner: &Inner, sender: &Sender, head: &Head, body: &[u8]) -> Result<Option<Duration>, LinkError> {
    let started = Instant::now();
    let is_wanted = || !(head.kind.writes() && inner.is_withdrawn.load(SeqCst));
    let is_sent = sender.send_if(&head.encode(), body, is_wanted)?;
    let waited = started.elapsed();
    inner.counters.waited(waited);
    if !is_sent {
        inner.unsent(head.id);
    }
    Ok(is_sent.then_some(waited))
}
