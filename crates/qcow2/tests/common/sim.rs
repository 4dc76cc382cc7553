//! A file that a power cut can strike at any operation. What was not flushed survives or not by the
//! sector, each on its own.

use std::io;
use std::sync::{Arc, Mutex};

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_qcow2::Host;
use drover_types::ByteSpan;

use super::Chance;

const SECTOR: usize = 512;

#[derive(Clone)]
enum Op {
    Write(usize, Vec<u8>),
    Zero(usize, usize),
    Length(usize),
}

#[derive(Default)]
struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<Op>,
    /// Operations until the power goes.
    fuse: Option<u64>,
    /// The file may not be longer.
    length_max: Option<u64>,
    operations: u64,
}

/// A simulated file; clones share it.
#[derive(Clone, Default)]
pub struct SimHost(Arc<Mutex<File>>);

impl SimHost {
    /// A file that holds these bytes durably.
    pub fn with(bytes: Vec<u8>) -> SimHost {
        let file = File { content: bytes.clone(), durable: bytes, ..File::default() };
        SimHost(Arc::new(Mutex::new(file)))
    }

    /// Has the power go at the nth operation from now.
    pub fn light_fuse(&self, operations: u64) {
        self.0.lock().unwrap().fuse = Some(operations);
    }

    pub fn limit_length(&self, bytes: Option<u64>) {
        self.0.lock().unwrap().length_max = bytes;
    }

    pub fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    pub fn content(&self) -> Vec<u8> {
        self.0.lock().unwrap().content.clone()
    }

    /// What the file holds after a power cut now.
    pub fn after_power_cut(&self, chance: &mut Chance) -> Vec<u8> {
        let file = self.0.lock().unwrap();
        let mut bytes = file.durable.clone();
        // Sometimes nearly all of it made it, sometimes nearly nothing.
        let keep = [2, 50, 98][chance.below(3) as usize];
        for op in &file.unflushed {
            match op {
                Op::Write(at, data) => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if chance.below(100) < keep {
                            put(&mut bytes, at + index * SECTOR, sector);
                        }
                    }
                }
                Op::Zero(at, length) => {
                    for start in (*at..at + length).step_by(4096) {
                        if chance.below(100) < keep {
                            put(&mut bytes, start, &vec![0; 4096.min(at + length - start)]);
                        }
                    }
                }
                Op::Length(length) => {
                    if chance.below(100) < keep {
                        bytes.resize(*length, 0);
                    }
                }
            }
        }
        bytes
    }

    fn act(&self, kind: DiskOp, op: Option<Op>) -> Result<(), DiskError> {
        let mut file = self.0.lock().unwrap();
        file.operations += 1;
        if file.fuse == Some(0) {
            return Err(failure(DiskErrorKind::Failed, kind, "the power is gone"));
        }
        let last = match &mut file.fuse {
            Some(left) => {
                *left -= 1;
                *left == 0
            }
            None => false,
        };
        let end = match &op {
            Some(Op::Write(at, bytes)) => at + bytes.len(),
            Some(Op::Length(length)) => *length,
            _ => 0,
        };
        if file.length_max.is_some_and(|max| end as u64 > max) {
            return Err(failure(DiskErrorKind::OutOfSpace, kind, "full"));
        }
        match op {
            Some(op) => {
                apply(&mut file.content, &op);
                file.unflushed.push(op);
            }
            // A flush that the power cut meets may or may not have happened: that is drawn later.
            None if !last => {
                file.durable = file.content.clone();
                file.unflushed.clear();
            }
            None => {}
        }
        if last { Err(failure(DiskErrorKind::Failed, kind, "the power went")) } else { Ok(()) }
    }
}

fn failure(kind: DiskErrorKind, op: DiskOp, text: &str) -> DiskError {
    DiskError::with_kind(kind, op, ByteSpan::new(0, 0), "sim", io::Error::other(text.to_string()))
}

fn apply(content: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, bytes) => put(content, *at, bytes),
        Op::Zero(at, length) => put(content, *at, &vec![0; *length]),
        Op::Length(length) => content.resize(*length, 0),
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Host for SimHost {
    fn name(&self) -> &str {
        "sim"
    }

    fn tag(&self) -> String {
        "sim".into()
    }

    fn modified(&self) -> String {
        String::new()
    }

    fn length(&self) -> Result<u64, DiskError> {
        Ok(self.0.lock().unwrap().content.len() as u64)
    }

    fn set_length(&self, length: u64) -> Result<(), DiskError> {
        // Growing far ahead would only cost memory here; refusing it is allowed.
        if length > self.length()? + (64 << 20) {
            return Err(failure(DiskErrorKind::OutOfSpace, DiskOp::Write, "no file that long"));
        }
        self.act(DiskOp::Write, Some(Op::Length(length as usize)))
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        let file = self.0.lock().unwrap();
        let start = offset as usize;
        match file.content.get(start..start + bytes.len()) {
            Some(content) => bytes.copy_from_slice(content),
            None => return Err(failure(DiskErrorKind::Corrupt, DiskOp::Read, "behind the end")),
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.act(DiskOp::Write, Some(Op::Write(offset as usize, bytes.to_vec())))
    }

    fn zero(&self, span: ByteSpan) -> Result<(), DiskError> {
        self.act(DiskOp::Zero, Some(Op::Zero(span.offset as usize, span.length as usize)))
    }

    fn allocate(&self, _: ByteSpan) -> Result<bool, DiskError> {
        Ok(true)
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.act(DiskOp::Flush, None)
    }
}
