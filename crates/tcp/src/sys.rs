//! The unsafe part: getsockopt, setsockopt, ioctl, fcntl and mallopt.

use std::io::{Error, ErrorKind, Result};
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_ulong, socklen_t};

/// Level and name of a socket option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) level: c_int,
    pub(crate) option: c_int,
}

impl Name {
    pub(crate) const fn new(level: c_int, option: c_int) -> Name {
        Name { level, option }
    }
}

/// Sets an option whose value is an int.
pub(crate) fn set_int(socket: BorrowedFd<'_>, name: Name, value: c_int) -> Result<()> {
    set(socket, name, &value.to_ne_bytes())
}

/// Sets an option to these bytes.
pub(crate) fn set(socket: BorrowedFd<'_>, name: Name, value: &[u8]) -> Result<()> {
    let length = socklen_t::try_from(value.len()).map_err(Error::other)?;
    // SAFETY: the kernel reads `length` bytes from `value`, which lives until the call returns and is
    // that long; it keeps no pointer. The descriptor is open, because it is borrowed.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), name.level, name.option, value.as_ptr().cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Reads an option whose value is an int.
pub(crate) fn get_int(socket: BorrowedFd<'_>, name: Name) -> Result<c_int> {
    let mut bytes = [0; size_of::<c_int>()];
    match get(socket, name, &mut bytes)? {
        length if length == bytes.len() => Ok(c_int::from_ne_bytes(bytes)),
        length => Err(Error::other(format!("a socket option of {length} bytes instead of {}", bytes.len()))),
    }
}

/// Reads an option into `value`; gives how many of its bytes the kernel filled.
pub(crate) fn get(socket: BorrowedFd<'_>, name: Name, value: &mut [u8]) -> Result<usize> {
    let mut length = socklen_t::try_from(value.len()).map_err(Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that long, and the new
    // length to `length`; both live until the call returns. Any bytes are valid `u8`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            name.level,
            name.option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok((length as usize).min(value.len())) } else { Err(Error::last_os_error()) }
}

/// Asks a terminal-style question whose answer is an int.
pub(crate) fn ioctl_int(socket: BorrowedFd<'_>, request: c_ulong) -> Result<c_int> {
    let mut value: c_int = 0;
    // SAFETY: callers pass requests that write one int (SIOCOUTQ); `value` is one and lives until the
    // call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut value) };
    if result >= 0 { Ok(value) } else { Err(Error::last_os_error()) }
}

/// What a driver is asked, and its answer. Source: `struct ethtool_value` of Linux `linux/ethtool.h`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Source: Linux `linux/sockios.h`.
const SIOCETHTOOL: c_ulong = 0x8946;

/// Asks the driver of a network interface a question whose answer is a number. Any socket will do.
pub(crate) fn ethtool_value(socket: BorrowedFd<'_>, interface: &str, command: u32) -> Result<u32> {
    let mut value = EthtoolValue { command, data: 0 };
    // SAFETY: `ifreq` is numbers, arrays of them and one pointer, for all of which zero bytes are valid values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = interface.as_bytes();
    // A zero byte stays behind it.
    if bytes.is_empty() || bytes.len() >= request.ifr_name.len() || bytes.contains(&0) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("'{interface}' is no name of an interface")));
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: callers pass commands (ETHTOOL_G...) with which the kernel reads `request`, and reads and writes the eight bytes of
    // `value` that it points to; both live until the call returns, and no pointer is kept. The descriptor is open, because it is
    // borrowed.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result >= 0 { Ok(value.data) } else { Err(Error::last_os_error()) }
}

/// Has a file do something whose argument is an int.
pub(crate) fn fcntl_int(file: BorrowedFd<'_>, command: c_int, value: c_int) -> Result<()> {
    // SAFETY: callers pass commands whose argument is an int (F_SETSIG, F_SETLEASE), so the kernel follows no pointer.
    // The descriptor is open, because it is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
    if result >= 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Bounds the heaps of the C library's allocator, where it has such a bound.
pub(crate) fn set_heaps_max(count: c_int) {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and follows no pointer. It changes a setting of the allocator under its own lock;
    // where it refuses, the setting stays as it was.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, count);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = count;
}
