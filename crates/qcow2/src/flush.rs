//! The order in which an image reaches the file:
//!
//! ```text
//! 1  refcounts that grew, L2 tables that are new        nothing names them yet
//!    fdatasync                                          with the data written before
//! 2  refcount table, if it grew                         names the blocks of step 1
//!    fdatasync
//! 3  L2 tables, L1                                      name data, tables and clusters counted by then
//!    fdatasync                                          now the flush has happened
//! 4  refcounts that shrank, if any                      nothing names those clusters any more
//!    fdatasync
//! ```
//!
//! A crash in between leaves clusters that are counted and not used, never the other way round. Words
//! of tables are aligned, so a torn write leaves each of them old or new.

use std::sync::PoisonError;

use drover_disk::{DiskError, DiskOp};
use drover_types::ByteSpan;

use crate::image::{Image, at_guest};
use crate::table::Piece;

/// What a flush writes, as it was when the flush began.
struct Taken {
    refs: Vec<Piece>,
    new_l2: Vec<Piece>,
    reftable: Option<Piece>,
    l2: Vec<Piece>,
    l1: Option<Piece>,
    frees: Vec<ByteSpan>,
}

impl Image {
    /// Makes everything that was written before durable, and readable after a power cut.
    ///
    /// # Errors
    /// When that cannot be promised. The image must be opened again then; what earlier flushes saved is there.
    pub fn flush(&self) -> Result<(), DiskError> {
        let nowhere = ByteSpan::new(0, 0);
        self.check_failed(DiskOp::Flush, nowhere)?;
        let flushed = self.flush_tables().map_err(|error| at_guest(error, DiskOp::Flush, nowhere));
        if flushed.is_ok() {
            self.trim();
        }
        flushed
    }

    /// Flushes if the tables in memory grew beyond their bound.
    pub fn flush_if_due(&self) -> Result<(), DiskError> {
        let due = self.state().wants_flush();
        if due { self.flush() } else { Ok(()) }
    }

    pub fn flush_tables(&self) -> Result<(), DiskError> {
        let _one = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.take();
        let written = self.write_taken(taken);
        let mut state = self.state();
        match &written {
            Ok(()) => {
                state.flushing = false;
                state.shrink();
            }
            // The tables in memory stay: the file may not have them.
            Err(error) => self.keep_failure(error),
        }
        written
    }

    fn take(&self) -> Taken {
        let mut state = self.state();
        state.flushing = true;
        let (mut refs, old_refs) = state.refs.take_dirty();
        refs.extend(old_refs);
        let (new_l2, l2) = state.l2.take_dirty();
        Taken {
            refs,
            new_l2,
            reftable: state.reftable.take_dirty(),
            l2,
            l1: state.l1.take_dirty(),
            frees: std::mem::take(&mut state.frees),
        }
    }

    fn write_taken(&self, taken: Taken) -> Result<(), DiskError> {
        self.write_pieces(taken.refs.iter().chain(&taken.new_l2))?;
        self.host.flush()?;
        if let Some(reftable) = &taken.reftable {
            self.write_pieces([reftable])?;
            self.host.flush()?;
        }
        if !taken.l2.is_empty() || taken.l1.is_some() {
            self.write_pieces(taken.l2.iter().chain(&taken.l1))?;
            self.host.flush()?;
        }
        if taken.frees.is_empty() { Ok(()) } else { self.give_back(&taken.frees) }
    }

    fn write_pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a Piece>) -> Result<(), DiskError> {
        pieces.into_iter().try_for_each(|piece| self.host.write(piece.host, &piece.bytes))
    }

    /// Takes back the counts of what neither the tables in memory nor those in the file name.
    fn give_back(&self, frees: &[ByteSpan]) -> Result<(), DiskError> {
        let mut state = self.state();
        let mut free = Vec::new();
        for span in frees {
            free.extend(state.uncount_packed(&*self.host, *span)?);
        }
        let (refs, old_refs) = state.refs.take_dirty();
        drop(state);
        self.write_pieces(refs.iter().chain(&old_refs))?;
        self.host.flush()?;
        if self.options.punches() {
            let bits = self.header.geometry.cluster_bits;
            let bytes = self.header.geometry.cluster_bytes();
            free.iter().try_for_each(|cluster| self.host.zero(ByteSpan::new(cluster << bits, bytes)))?;
        }
        Ok(())
    }
}
