//! A client that says exactly what a test wants, right or wrong.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use drover_nbd::wire::{self, FIXED_NEWSTYLE, Fields, NO_ZEROES, answer, info, option};

use crate::Stage;

/// No test waits longer for a byte.
const WAIT: Duration = Duration::from_secs(120);

pub struct Raw {
    pub stream: UnixStream,
    pub extended: bool,
    cookie: u64,
}

/// A request's fields.
#[derive(Clone, Copy, Default)]
pub struct Ask {
    pub flags: u16,
    pub command: u16,
    pub offset: u64,
    pub length: u64,
}

/// A reply's outcome: an error of the server, or what came: data with offsets, holes, block status.
#[derive(Debug, Default, PartialEq)]
pub struct Reply {
    pub error: u32,
    pub message: String,
    pub data: Vec<(u64, Vec<u8>)>,
    pub holes: Vec<(u64, u32)>,
    pub status: Vec<(u32, Vec<(u64, u64)>)>,
}

impl Raw {
    /// Connects and says nothing.
    pub fn connect(stage: &Stage) -> Raw {
        let stream = UnixStream::connect(&stage.socket).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        Raw { stream, extended: false, cookie: 0 }
    }

    /// Connects and takes the greeting.
    pub fn greet(stage: &Stage) -> Raw {
        let mut raw = Raw::connect(stage);
        let greeting: [u8; 18] = raw.array();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        raw.send(&u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        raw
    }

    /// Goes all the way to transmission, with these contexts.
    pub fn go(stage: &Stage, contexts: &[&str]) -> Raw {
        let mut raw = Raw::greet(stage);
        raw.agree(option::STRUCTURED_REPLY);
        raw.set_contexts(contexts);
        raw.start();
        raw
    }

    pub fn go_extended(stage: &Stage, contexts: &[&str]) -> Raw {
        let mut raw = Raw::greet(stage);
        raw.agree(option::EXTENDED_HEADERS);
        raw.extended = true;
        raw.set_contexts(contexts);
        raw.start();
        raw
    }

    pub fn agree(&mut self, option: u32) {
        assert_eq!(self.option(option, &[]), [(answer::ACK, vec![])]);
    }

    pub fn start(&mut self) {
        let answers = self.option(option::GO, &wire::encode_go("", &[info::BLOCK_SIZE]));
        let last = answers.last().unwrap();
        assert_eq!(last.0, answer::ACK, "{}", String::from_utf8_lossy(&last.1));
    }

    /// Asks for contexts; gives the ids and names granted.
    pub fn set_contexts(&mut self, contexts: &[&str]) -> Vec<(u32, String)> {
        if contexts.is_empty() {
            return Vec::new();
        }
        let mut data = 0u32.to_be_bytes().to_vec();
        data.extend((contexts.len() as u32).to_be_bytes());
        for context in contexts {
            data.extend((context.len() as u32).to_be_bytes());
            data.extend(context.as_bytes());
        }
        let mut answers = self.option(option::SET_META_CONTEXT, &data);
        assert_eq!(answers.pop().unwrap().0, answer::ACK);
        let granted = |(kind, data): (u32, Vec<u8>)| {
            assert_eq!(kind, answer::META_CONTEXT);
            let mut fields = Fields(&data);
            (fields.u32().unwrap(), String::from_utf8(fields.0.to_vec()).unwrap())
        };
        answers.into_iter().map(granted).collect()
    }

    /// Sends an option and takes its answers, up to the one that ends it.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&wire::encode_option(option, data));
        let mut answers = Vec::new();
        loop {
            let head: [u8; 20] = self.array();
            let mut fields = Fields(&head);
            assert_eq!(fields.u64(), Some(wire::OPTION_REPLY_MAGIC));
            assert_eq!(fields.u32(), Some(option));
            let (kind, length) = (fields.u32().unwrap(), fields.u32().unwrap());
            let data = self.bytes(length as usize);
            answers.push((kind, data));
            if kind == answer::ACK || kind & answer::ERROR != 0 {
                return answers;
            }
        }
    }

    /// Sends a request's head; gives its cookie.
    pub fn head(&mut self, ask: Ask) -> u64 {
        self.cookie += 1;
        let mut bytes = Vec::new();
        let magic = if self.extended { wire::EXTENDED_REQUEST_MAGIC } else { wire::REQUEST_MAGIC };
        bytes.extend(magic.to_be_bytes());
        bytes.extend(ask.flags.to_be_bytes());
        bytes.extend(ask.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(ask.offset.to_be_bytes());
        if self.extended {
            bytes.extend(ask.length.to_be_bytes());
        } else {
            bytes.extend((ask.length as u32).to_be_bytes());
        }
        self.send(&bytes);
        self.cookie
    }

    /// Sends a request and takes its reply.
    pub fn ask(&mut self, ask: Ask, data: &[u8]) -> Reply {
        let cookie = self.head(ask);
        self.send(data);
        let (found, reply) = self.reply(if ask.command == 0 { ask.length } else { 0 });
        assert_eq!(found, cookie);
        reply
    }

    pub fn read(&mut self, offset: u64, length: u64) -> Reply {
        self.ask(Ask { offset, length, ..Ask::default() }, &[])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Reply {
        let flags = if self.extended { wire::COMMAND_PAYLOAD } else { 0 };
        self.ask(Ask { flags, command: 1, offset, length: data.len() as u64 }, data)
    }

    /// The next reply and its cookie; `length` is the request's, for simple replies to reads.
    pub fn reply(&mut self, length: u64) -> (u64, Reply) {
        let mut reply = Reply::default();
        loop {
            let magic = u32::from_be_bytes(self.array());
            if magic == wire::SIMPLE_REPLY_MAGIC {
                reply.error = u32::from_be_bytes(self.array());
                let cookie = u64::from_be_bytes(self.array());
                if reply.error == 0 && length > 0 {
                    reply.data.push((0, self.bytes(length as usize)));
                }
                return (cookie, reply);
            }
            assert_eq!(magic, if self.extended { wire::EXTENDED_CHUNK_MAGIC } else { wire::CHUNK_MAGIC });
            let flags = u16::from_be_bytes(self.array());
            let kind = u16::from_be_bytes(self.array());
            let cookie = u64::from_be_bytes(self.array());
            let length = if self.extended {
                let _offset: [u8; 8] = self.array();
                u64::from_be_bytes(self.array())
            } else {
                u32::from_be_bytes(self.array()).into()
            };
            let payload = self.bytes(length as usize);
            reply.take(kind, &payload);
            if flags & 1 != 0 {
                return (cookie, reply);
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        self.bytes(N).try_into().unwrap()
    }

    /// Whether the server ends the connection, whatever it says before.
    pub fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

impl Reply {
    fn take(&mut self, kind: u16, payload: &[u8]) {
        let mut fields = Fields(payload);
        match kind {
            0 => assert!(payload.is_empty()),
            1 => self.data.push((fields.u64().unwrap(), fields.0.to_vec())),
            2 => self.holes.push((fields.u64().unwrap(), fields.u32().unwrap())),
            5 => {
                let context = fields.u32().unwrap();
                let runs = std::iter::from_fn(|| Some((fields.u32()?.into(), fields.u32()?.into())));
                self.status.push((context, runs.collect()));
            }
            6 => {
                let (context, count) = (fields.u32().unwrap(), fields.u32().unwrap());
                let runs: Vec<_> = std::iter::from_fn(|| Some((fields.u64()?, fields.u64()?))).collect();
                assert_eq!(runs.len(), count as usize);
                self.status.push((context, runs));
            }
            0x8001 => {
                (self.error, self.message) = wire::decode_error(payload).unwrap();
            }
            other => panic!("a chunk of type {other:#x}"),
        }
    }

    /// The bytes of a read from `offset` on.
    pub fn content(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut content = vec![0xaa; length as usize];
        for (at, data) in &self.data {
            let start = (at - offset) as usize;
            content[start..start + data.len()].copy_from_slice(data);
        }
        for (at, length) in &self.holes {
            let start = (at - offset) as usize;
            content[start..start + *length as usize].fill(0);
        }
        content
    }
}
