//! TUN devices that take and give super-packets.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::sys;

const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;

/// Packets the device keeps while nobody reads. Super-packets each, so a scheduling pause drops none.
pub const QUEUE_PACKETS: u32 = 10_000;

/// A device of the namespace that the thread which opened it was in. It goes when this goes.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes the device `name`, down and without addresses.
    pub fn open(name: &str) -> io::Result<Tun> {
        let non_blocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(non_blocking).open("/dev/net/tun")?;
        sys::attach(&file, name, IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)?;
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
        // UDP super-packets are known from Linux 6.2 on; before, each datagram comes by itself.
        sys::set_offloads(&file, tcp | TUN_F_USO4 | TUN_F_USO6).or_else(|_| sys::set_offloads(&file, tcp))?;
        Ok(Tun { file })
    }

    /// Reads a frame; `None` if there is none now.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(frame) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a frame given in two parts.
    pub fn write(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        (&self.file).write_vectored(&[IoSlice::new(head), IoSlice::new(payload)]).map(drop)
    }

    /// Throws away what waits to be read.
    pub fn drain(&self) -> io::Result<()> {
        let mut frame = vec![0; crate::line::packet::FRAME_BYTES_MAX];
        while self.read(&mut frame)?.is_some() {}
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
