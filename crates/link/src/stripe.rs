//! A connection of a session: one thread reads, one writes.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar};
use std::thread;

use drover_wire::{Decoder, Frame, WireError};

use crate::core::{Outgoing, Pull, Seen, StripeId};
use crate::payload::Pool;
use crate::shared::Shared;
use crate::stats::StripeStats;

/// Bytes of frames that a connection takes at a time. What it has taken waits for it alone, so a slow one
/// should not have much; a fast one should not have to ask too often.
const BATCH_BYTES: usize = 256 << 10;

/// Takes what a connection brings.
pub trait Taking {
    /// Takes bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), WireError>;

    /// Where the next bytes are to be in the end, if so many are, at least. What is put there counts with [`Taking::filled`].
    fn room(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// So many were put into [`Taking::room`].
    fn filled(&mut self, bytes: usize) -> Result<(), WireError>;
}

/// The half of a connection that reads.
pub trait Reading: Send + 'static {
    /// Waits for bytes and gives them in order. Zero: the peer will send no more.
    fn read(&mut self, taker: &mut dyn Taking) -> io::Result<usize>;
}

/// The half of a connection that writes.
pub trait Writing: Send + 'static {
    /// Writes frames; waits while the connection has no room.
    fn write(&mut self, frames: &[Outgoing]) -> io::Result<()>;

    /// Says that no more will be written.
    fn finish(&mut self);
}

/// The connection itself, apart from its halves.
pub trait Line: Send + Sync + 'static {
    /// Ends it: both halves fail at once.
    fn kill(&self);

    /// Adds what the kernel knows.
    fn fill(&self, stats: &mut StripeStats);

    /// What the kernel saw of it, for the pace of all of them; `None` if it is not TCP.
    fn seen(&self, _: StripeId) -> Option<Seen> {
        None
    }

    /// Has it send no faster than so many bytes a second.
    fn hold_to(&self, _: Option<u64>) {}

    /// Whether RDMA carries it.
    fn is_rdma(&self) -> bool {
        false
    }

    /// Both addresses.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        None
    }
}

/// A connection in the session's table.
pub struct Stripe {
    pub line: Box<dyn Line>,
    pub work: Arc<Condvar>,
}

/// Adds a connection to a session and starts its threads. Does nothing but kill it when the session is over.
pub fn start(
    shared: &Arc<Shared>,
    line: Box<dyn Line>,
    reader: impl Reading,
    writer: impl Writing,
) -> io::Result<()> {
    let work = Arc::new(Condvar::new());
    let Some(id) = shared.add_stripe(Stripe { line, work: work.clone() }) else { return Ok(()) };
    let writing = shared.clone();
    let name = format!("link-write-{id}");
    let started = thread::Builder::new().name(name).spawn(move || write(&writing, id, writer, &work));
    let reading = shared.clone();
    let name = format!("link-read-{id}");
    let started =
        started.and_then(|_| thread::Builder::new().name(name).spawn(move || read(&reading, id, reader)));
    if let Err(error) = &started {
        shared.stripe_gone(id, &format!("no thread for it: {error}"));
    }
    started.map(drop)
}

/// Frames as they come.
struct Frames<'a> {
    decoder: Decoder,
    whole: Vec<Frame>,
    pool: &'a Pool,
}

impl Taking for Frames<'_> {
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), WireError> {
        while let Some(frame) = self.decoder.take_into(&mut bytes, |bytes| self.pool.take_filled(bytes))? {
            self.whole.push(frame);
        }
        Ok(())
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.decoder.room(bytes)
    }

    fn filled(&mut self, bytes: usize) -> Result<(), WireError> {
        self.whole.extend(self.decoder.filled(bytes)?);
        Ok(())
    }
}

fn read(shared: &Shared, id: StripeId, mut reader: impl Reading) {
    let _guard = Guard { shared, id };
    let mut frames = Frames { decoder: Decoder::default(), whole: Vec::new(), pool: &shared.pool };
    let why = loop {
        let read = reader.read(&mut frames);
        // Frames before damaged ones were sound, and count.
        let length = *read.as_ref().unwrap_or(&0);
        if length > 0 || !frames.whole.is_empty() {
            shared.with(|inner, now| {
                inner.core.heard(id, length, now);
                frames.whole.drain(..).for_each(|frame| inner.core.arrive(id, frame, now));
            });
        }
        match read {
            Ok(0) if frames.decoder.is_within_a_frame() => break "it ended within a frame".to_string(),
            Ok(0) => break String::new(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break error.to_string(),
        }
    };
    shared.stripe_gone(id, &why);
}

fn write(shared: &Shared, id: StripeId, mut writer: impl Writing, work: &Condvar) {
    let _guard = Guard { shared, id };
    let mut frames = Vec::new();
    loop {
        match shared.pull(id, BATCH_BYTES, work, &mut frames) {
            Pull::Frames => {}
            Pull::Idle => continue,
            Pull::Gone => break writer.finish(),
        }
        shared.spend(frames.iter().map(|frame| frame.payload.bytes().len() as u64).sum());
        if let Err(error) = writer.write(&frames) {
            return shared.stripe_gone(id, &error.to_string());
        }
        // Buffers go back before it waits for more.
        frames.clear();
    }
}

/// Ends a connection whose thread panics: a defect there must not leave frames with it for ever.
struct Guard<'a> {
    shared: &'a Shared,
    id: StripeId,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.stripe_gone(self.id, "its thread ended by a defect");
        }
    }
}
