//! A scripted server, written apart from the client so that both do not share one mistake.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drover_nbd::{NbdDisk, NbdOptions, NbdUri};

use crate::Dir;

pub const READ_ONLY: u16 = 2;
pub const FLUSH: u16 = 4;
pub const FUA: u16 = 8;
pub const ZEROES: u16 = 64;
pub const MULTI: u16 = 256;

pub const ACK: u32 = 1;
pub const INFO: u32 = 3;
pub const UNSUPPORTED: u32 = 0x8000_0001;

/// Timeout of clients of a fake server that falls silent, and the time by which such servers count: long for a machine
/// under load, short for a test.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A listening socket; each connection is served by the script, which gets its number from 0.
pub struct Fake {
    dir: Dir,
}

impl Fake {
    pub fn start(script: impl Fn(Peer, usize) -> io::Result<()> + Send + Sync + 'static) -> Fake {
        let fake = Fake { dir: Dir::new() };
        let listener = UnixListener::bind(fake.socket()).unwrap();
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (script, stream) = (script.clone(), stream.unwrap());
                // An error means that the client went away, which is often the point.
                std::thread::spawn(move || script(Peer { stream }, number));
            }
        });
        fake
    }

    fn socket(&self) -> PathBuf {
        self.dir.file("fake.sock")
    }

    pub fn uri(&self) -> NbdUri {
        NbdUri::unix(self.socket(), "disk")
    }

    pub fn source(&self) -> NbdDisk {
        NbdDisk::open_source(&self.uri(), options()).unwrap()
    }

    pub fn source_that_falls_silent(&self) -> NbdDisk {
        NbdDisk::open_source(&self.uri(), hasty()).unwrap()
    }

    pub fn target(&self) -> NbdDisk {
        NbdDisk::open_target(&self.uri(), options()).unwrap()
    }
}

/// For servers that answer.
pub fn options() -> NbdOptions {
    NbdOptions { timeout: Duration::from_secs(120), ..NbdOptions::default() }
}

/// For servers that fall silent.
pub fn hasty() -> NbdOptions {
    NbdOptions { timeout: PATIENCE, ..NbdOptions::default() }
}

/// What the fake server offers.
#[derive(Clone, Copy)]
pub struct Offer {
    pub size: u64,
    pub flags: u16,
    pub structured: bool,
    pub extended: bool,
}

pub const OFFER: Offer =
    Offer { size: 1 << 20, flags: 1 | READ_ONLY | MULTI, structured: true, extended: false };

/// A request as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
    pub data: Vec<u8>,
}

/// The client, seen from the server.
pub struct Peer {
    pub stream: UnixStream,
}

impl Peer {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Keeps the line open and says nothing, until the client goes or long enough has passed.
    pub fn hold(&mut self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(PATIENCE * 3))?;
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn data(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Greets with these handshake flags and takes the client's.
    pub fn greet(&mut self, flags: u16) -> io::Result<u32> {
        self.send(b"NBDMAGICIHAVEOPT")?;
        self.send(flags.to_be_bytes())?;
        self.u32()
    }

    /// Number and data of the next option.
    pub fn option(&mut self) -> io::Result<(u32, Vec<u8>)> {
        assert_eq!(&self.take::<8>()?, b"IHAVEOPT");
        let option = self.u32()?;
        let length = self.u32()?;
        Ok((option, self.data(length)?))
    }

    pub fn answer(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        self.send(0x0003_e889_0455_65a9u64.to_be_bytes())?;
        self.send(option.to_be_bytes())?;
        self.send(kind.to_be_bytes())?;
        self.send((data.len() as u32).to_be_bytes())?;
        self.send(data)
    }

    pub fn export_info(&mut self, option: u32, offer: Offer) -> io::Result<()> {
        let mut data = vec![0, 0];
        data.extend(offer.size.to_be_bytes());
        data.extend(offer.flags.to_be_bytes());
        self.answer(option, INFO, &data)
    }

    /// The whole handshake of a modern server.
    pub fn handshake(&mut self, offer: Offer) -> io::Result<()> {
        self.greet(3)?;
        loop {
            match self.option()? {
                (7, _) => {
                    self.export_info(7, offer)?;
                    return self.answer(7, ACK, &[]);
                }
                (11, _) if offer.extended => self.answer(11, ACK, &[])?,
                (8, _) if offer.structured => self.answer(8, ACK, &[])?,
                (10, _) if offer.structured || offer.extended => {
                    let mut context = 42u32.to_be_bytes().to_vec();
                    context.extend(b"base:allocation");
                    self.answer(10, 4, &context)?;
                    self.answer(10, ACK, &[])?;
                }
                (option, _) => self.answer(option, UNSUPPORTED, &[])?,
            }
        }
    }

    pub fn request(&mut self) -> io::Result<Asked> {
        assert_eq!(self.u32()?, 0x2560_9513);
        let (flags, command) = (u16::from_be_bytes(self.take()?), u16::from_be_bytes(self.take()?));
        let (cookie, offset) = (u64::from_be_bytes(self.take()?), u64::from_be_bytes(self.take()?));
        let length = self.u32()?;
        let data = if command == 1 { self.data(length)? } else { Vec::new() };
        let length = length.into();
        Ok(Asked { flags, command, cookie, offset, length, data })
    }

    pub fn extended_request(&mut self) -> io::Result<Asked> {
        assert_eq!(self.u32()?, 0x21e4_1c71);
        let (flags, command) = (u16::from_be_bytes(self.take()?), u16::from_be_bytes(self.take()?));
        let (cookie, offset) = (u64::from_be_bytes(self.take()?), u64::from_be_bytes(self.take()?));
        let length = u64::from_be_bytes(self.take()?);
        assert_eq!(flags & 32 != 0, command == 1, "what has a payload says so");
        let data = if command == 1 { self.data(length as u32)? } else { Vec::new() };
        Ok(Asked { flags, command, cookie, offset, length, data })
    }

    pub fn extended_chunk(&mut self, done: bool, kind: u16, asked: &Asked, payload: &[u8]) -> io::Result<()> {
        self.extended_head(done, kind, asked, payload.len() as u64)?;
        self.send(payload)
    }

    pub fn extended_head(&mut self, done: bool, kind: u16, asked: &Asked, length: u64) -> io::Result<()> {
        let mut bytes = 0x6e8a_278cu32.to_be_bytes().to_vec();
        bytes.extend(u16::from(done).to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(asked.cookie.to_be_bytes());
        bytes.extend(asked.offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        self.send(bytes)
    }

    pub fn simple(&mut self, error: u32, cookie: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = 0x6744_6698u32.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(data);
        self.send(bytes)
    }

    pub fn chunk(&mut self, done: bool, kind: u16, cookie: u64, payload: &[u8]) -> io::Result<()> {
        self.chunk_head(done, kind, cookie, payload.len() as u32)?;
        self.send(payload)
    }

    pub fn chunk_head(&mut self, done: bool, kind: u16, cookie: u64, length: u32) -> io::Result<()> {
        let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
        bytes.extend(u16::from(done).to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        self.send(bytes)
    }

    pub fn data_chunk(&mut self, done: bool, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        self.chunk(done, 1, cookie, &[&offset.to_be_bytes(), data].concat())
    }

    pub fn hole_chunk(&mut self, done: bool, cookie: u64, offset: u64, length: u32) -> io::Result<()> {
        self.chunk(done, 2, cookie, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat())
    }

    /// Serves an honest disk, on which each byte is `byte`, until the client goes; gives what was asked.
    pub fn serve(&mut self, byte: u8) -> io::Result<Vec<Asked>> {
        let mut asked = Vec::new();
        loop {
            let request = self.request()?;
            match request.command {
                0 => self.data_chunk(
                    true,
                    request.cookie,
                    request.offset,
                    &vec![byte; request.length as usize],
                )?,
                2 => return Ok(asked),
                _ => self.simple(0, request.cookie, &[])?,
            }
            asked.push(request);
        }
    }
}
