//! Frames over a socket as they are: for two ends in one process.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::core::Outgoing;
use crate::stripe::{Reading, Taking, Writing};

/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// Frames up to this size are gathered before they are written.
pub const GATHER_BYTES_MAX: usize = 16 << 10;

/// Gives the bytes of frames in pieces: what is small together, what is large by itself.
pub fn in_pieces(
    frames: &[Outgoing],
    scratch: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    scratch.clear();
    for frame in frames {
        scratch.extend(frame.header.encode());
        let payload = frame.payload.bytes();
        if payload.len() <= GATHER_BYTES_MAX {
            scratch.extend_from_slice(payload);
        }
        let is_large = payload.len() > GATHER_BYTES_MAX;
        if is_large || scratch.len() > GATHER_BYTES_MAX {
            emit(scratch)?;
            scratch.clear();
        }
        if is_large {
            emit(payload)?;
        }
    }
    if scratch.is_empty() { Ok(()) } else { emit(scratch) }
}

pub struct PlainReader {
    socket: UnixStream,
    buffer: Box<[u8]>,
}

pub struct PlainWriter {
    socket: UnixStream,
    scratch: Vec<u8>,
}

/// Both halves of a socket.
pub fn halves(socket: UnixStream) -> io::Result<(PlainReader, PlainWriter)> {
    let reader = PlainReader { socket: socket.try_clone()?, buffer: vec![0; READ_BYTES].into() };
    Ok((reader, PlainWriter { socket, scratch: Vec::new() }))
}

impl Reading for PlainReader {
    fn read(&mut self, taker: &mut dyn Taking) -> io::Result<usize> {
        let length = self.socket.read(&mut self.buffer)?;
        let taken = taker.take(&self.buffer[..length]);
        taken.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(length)
    }
}

impl Writing for PlainWriter {
    fn write(&mut self, frames: &[Outgoing]) -> io::Result<()> {
        let socket = &mut self.socket;
        in_pieces(frames, &mut self.scratch, |bytes| socket.write_all(bytes))
    }

    fn finish(&mut self) {
        // Whether the peer still is there makes no difference any more.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}
