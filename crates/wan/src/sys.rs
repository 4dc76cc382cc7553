//! The wall around what the kernel takes only unsafely: five calls.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Longest name of an interface, with the zero behind it.
const NAME_BYTES: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);

/// `struct ifreq` of `include/uapi/linux/if.h`: a name, and a union of 24 bytes of which the flags are the first two.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// Makes `device`, an open `/dev/net/tun`, the interface `name` of the network namespace it was opened in.
pub fn attach(device: &File, name: &str, flags: u16) -> io::Result<()> {
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags, rest: [0; 22] };
    if name.len() >= NAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "name of an interface is too long"));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq` of 40 bytes, which `request` is in layout and size; it is
    // owned by the call, and what the kernel writes back (name, flags) is valid for these fields.
    unsafe { ioctl(device, Setter::<TUNSETIFF, InterfaceRequest>::new(request)) }.map_err(io::Error::from)
}

/// Tells the device which offloads its reader understands.
pub fn set_offloads(device: &File, offloads: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value and no pointer.
    unsafe { ioctl(device, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads as usize)) }
        .map_err(io::Error::from)
}

/// Moves the calling thread into a new network namespace.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: only unsharing the table of files would make descriptors of other threads mean something else; NEWNET alone
    // changes no memory and no descriptor.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// Of each period, what a thread that runs first may take: what others have of it must be less than a packet may be late.
const FIRST_NS: u64 = 900_000;
const FIRST_PERIOD_NS: u64 = 1_000_000;

/// `include/uapi/linux/sched.h`
const SCHED_DEADLINE: u32 = 6;

/// Has the calling thread run before all others, but for a tenth of each millisecond; where that is refused, before all that are
/// not real-time.
///
/// Since Linux 6.12 others may take up to 50 ms of a second from a thread that is only real-time (the fair server), in one go.
pub fn run_first() -> io::Result<()> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    wish.size = size_of::<libc::sched_attr>() as u32;
    wish.sched_policy = SCHED_DEADLINE;
    wish.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    (wish.sched_runtime, wish.sched_deadline, wish.sched_period) =
        (FIRST_NS, FIRST_PERIOD_NS, FIRST_PERIOD_NS);
    // SAFETY: thread 0 is the calling one; the structure is read, for the size that it says, during the call only.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) } == 0 {
        return Ok(());
    }
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: as above.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
