//! A connection over RDMA.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_short, c_void, pollfd, socklen_t};

use crate::address::{Address, family};
use crate::library::{Library, Unavailable, library};

/// What is asked for each of the two buffers of a connection; the library takes twice as much, all of it pinned.
pub const BUFFER_BYTES: usize = 128 << 10;

/// How long somebody waits for events in one go, who may have missed one: two threads that poll one rsocket can take each other's.
const LOOK: Duration = Duration::from_millis(100);

/// Connections that are being closed: each has a thread and its buffers until the peer's device answers, or is found to be gone.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// So many at most, of those that came to a listener: it accepts none while there are more.
const CLOSING_MAX: usize = 256;

/// Whether more are being closed than there may be.
pub fn is_crowded() -> bool {
    CLOSING.load(Ordering::Acquire) >= CLOSING_MAX
}

/// An rsocket, closed when it goes.
pub struct Handle {
    pub library: &'static Library,
    pub socket: c_int,
}

impl Handle {
    /// A socket that waits for nothing, with buffers of our size.
    pub fn new(address: SocketAddr) -> io::Result<Handle> {
        let library = library().map_err(|lacking| io::Error::new(ErrorKind::Unsupported, lacking))?;
        // SAFETY: it takes numbers only.
        let socket = unsafe { (library.rsocket)(family(address), libc::SOCK_STREAM, 0) };
        if socket < 0 {
            let why = io::Error::last_os_error().to_string();
            return Err(io::Error::new(ErrorKind::Unsupported, Unavailable::Device(why)));
        }
        let handle = Handle { library, socket };
        for buffer in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            handle.set(buffer, BUFFER_BYTES as c_int)?;
        }
        handle.set_blocking(false)?;
        Ok(handle)
    }

    /// A socket that the library gave.
    pub fn given(library: &'static Library, socket: c_int) -> Handle {
        Handle { library, socket }
    }

    pub fn set(&self, option: c_int, value: c_int) -> io::Result<()> {
        let length = size_of::<c_int>() as socklen_t;
        // SAFETY: the socket is open as long as this handle is, and the library reads one int, which lives until the call returns.
        let result = unsafe {
            (self.library.rsetsockopt)(
                self.socket,
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                length,
            )
        };
        done(result)
    }

    pub fn set_blocking(&self, is_blocking: bool) -> io::Result<()> {
        let flags = if is_blocking { 0 } else { libc::O_NONBLOCK };
        // SAFETY: the socket is open, and F_SETFL takes one int.
        done(unsafe { (self.library.rfcntl)(self.socket, libc::F_SETFL, flags) })
    }

    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let (address, length) = Address::of(address);
        // SAFETY: the socket is open, and the library reads `length` bytes of an address, which has them.
        done(unsafe { (self.library.rbind)(self.socket, address.as_ptr(), length) })
    }

    /// The error that a connection ended by or could not be made for, told once.
    fn error(&self) -> io::Result<()> {
        let (mut error, mut length): (c_int, socklen_t) = (0, size_of::<c_int>() as socklen_t);
        // SAFETY: the socket is open, and the library writes one int and its length, which both live until the call returns.
        let result = unsafe {
            (self.library.rgetsockopt)(
                self.socket,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut length,
            )
        };
        done(result)?;
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Waits until one of these events is there or the connection is over, and not longer than that; whether it is.
    pub fn wait(&self, events: c_short, within: Duration) -> io::Result<bool> {
        let mut one = pollfd { fd: self.socket, events, revents: 0 };
        let ms = c_int::try_from(within.as_millis().max(1)).unwrap_or(c_int::MAX);
        // SAFETY: the library reads and writes one pollfd, which lives until the call returns; the socket in it is open.
        let found = unsafe { (self.library.rpoll)(&raw mut one, 1, ms) };
        match found {
            0 => Ok(false),
            1.. => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
        }
    }

    fn connect(&self, target: SocketAddr, within: Duration) -> io::Result<()> {
        let until = Instant::now() + within;
        let (address, length) = Address::of(target);
        // SAFETY: the socket is open, and the library reads `length` bytes of an address, which has them.
        let begun = done(unsafe { (self.library.rconnect)(self.socket, address.as_ptr(), length) });
        match begun {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            begun => return begun,
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            if self.wait(libc::POLLOUT, left.min(LOOK))? {
                return self.error();
            }
        }
    }

    /// Ends both directions, and waits until the peer's device has what was sent, or cannot be reached.
    fn shut_down(&self) {
        // SAFETY: the socket is open, and other threads may be in it: the library ends their calls. What fails is over already.
        unsafe { (self.library.rshutdown)(self.socket, libc::SHUT_RDWR) };
    }

    /// An address that the library tells.
    pub fn address(
        &self,
        tell: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
    ) -> Option<SocketAddr> {
        let (mut address, mut length) = Address::empty();
        // SAFETY: the socket is open, and the library writes `length` bytes at most, for which there is room.
        let result = unsafe { tell(self.socket, address.as_mut_ptr(), &raw mut length) };
        if result == 0 { address.told() } else { None }
    }
}

/// A thread for what may wait for a peer that is not there.
fn apart(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (library, socket) = (self.library, self.socket);
        let close = move || {
            // SAFETY: the socket was open until now, and nobody has it any more: each user holds the handle.
            unsafe { (library.rclose)(socket) };
            CLOSING.fetch_sub(1, Ordering::AcqRel);
        };
        CLOSING.fetch_add(1, Ordering::AcqRel);
        // Without a thread whoever let go of it waits.
        if apart("rdma-close", close).is_err() {
            close();
        }
    }
}

pub fn done(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A connection. Clones are the same one; one may read while another writes.
///
/// Without time limits reading and writing wait in the library, which wakes them when the connection ends.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    addresses: Option<(SocketAddr, SocketAddr)>,
    is_ended: AtomicBool,
    /// In milliseconds; 0 for none.
    read_within: AtomicU64,
    write_within: AtomicU64,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RDMA connection, {:?}", self.inner.addresses)
    }
}

impl Stream {
    /// Connects.
    ///
    /// # Errors
    /// `Unsupported` if this host lacks library or device ([`crate::check`]); what the library says if no device leads there or nobody
    /// listens there; `TimedOut`.
    pub fn connect(source: Option<IpAddr>, target: SocketAddr, within: Duration) -> io::Result<Stream> {
        let handle = Handle::new(target)?;
        if let Some(source) = source {
            handle.bind(SocketAddr::new(source, 0))?;
        }
        handle.connect(target, within)?;
        Ok(Stream::of(handle))
    }

    pub(crate) fn of(handle: Handle) -> Stream {
        let local = handle.address(handle.library.rgetsockname);
        let addresses = local.zip(handle.address(handle.library.rgetpeername));
        let no_limit = || AtomicU64::new(0);
        let is_ended = AtomicBool::new(false);
        Stream {
            inner: Arc::new(Inner {
                handle,
                addresses,
                is_ended,
                read_within: no_limit(),
                write_within: no_limit(),
            }),
        }
    }

    /// The address here, and the one there.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.inner.addresses
    }

    /// How long reading may take.
    pub fn set_read_timeout(&self, within: Duration) {
        self.inner.read_within.store(ms(within), Ordering::Relaxed);
    }

    /// How long writing may take.
    pub fn set_write_timeout(&self, within: Duration) {
        self.inner.write_within.store(ms(within), Ordering::Relaxed);
    }

    /// From now on reading and writing have no time limits.
    ///
    /// # Errors
    /// Those of the library.
    pub fn set_unlimited(&self) -> io::Result<()> {
        self.inner.read_within.store(0, Ordering::Relaxed);
        self.inner.write_within.store(0, Ordering::Relaxed);
        self.inner.handle.set_blocking(true)
    }

    /// Ends it: who reads or writes is woken. Does not wait.
    pub fn end(&self) {
        if self.inner.is_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        // The library may wait for a peer that is gone. Without a thread this does, too.
        let inner = self.inner.clone();
        if apart("rdma-end", move || inner.handle.shut_down()).is_err() {
            self.inner.handle.shut_down();
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis().max(1)).unwrap_or(u64::MAX)
}

impl Inner {
    /// Carries out a call, again and again while it had to wait and there is time.
    fn within(
        &self,
        events: c_short,
        within: &AtomicU64,
        mut call: impl FnMut() -> isize,
    ) -> io::Result<usize> {
        let within = Some(within.load(Ordering::Relaxed)).filter(|ms| *ms > 0).map(Duration::from_millis);
        let until = within.map(|time| Instant::now() + time);
        loop {
            if self.is_ended.load(Ordering::Acquire) {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            let result = call();
            if let Ok(bytes) = usize::try_from(result) {
                return Ok(bytes);
            }
            match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::WouldBlock => {}
                error => return Err(error),
            }
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.handle.wait(events, left.min(LOOK))?;
        }
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        // Not more than the buffer holds that the peer's device writes to: how much came is the peer's word, which the library believes.
        let length = bytes.len().min(BUFFER_BYTES);
        let (library, socket) = (self.handle.library, self.handle.socket);
        let read = self.within(libc::POLLIN, &self.read_within, || {
            // SAFETY: the socket is open, and the library writes `length` bytes at most to a buffer that has them; it keeps no pointer.
            unsafe { (library.rrecv)(socket, bytes.as_mut_ptr().cast::<c_void>(), length, 0) }
        })?;
        if read == 0 && length > 0 {
            // A connection that broke ends as one does that was closed; the library tells why if it is asked.
            self.handle.error()?;
        }
        Ok(read)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (library, socket) = (self.handle.library, self.handle.socket);
        self.within(libc::POLLOUT, &self.write_within, || {
            // SAFETY: the socket is open, and the library reads bytes of this buffer only, and copies them before it returns.
            unsafe { (library.rsend)(socket, bytes.as_ptr().cast::<c_void>(), bytes.len(), 0) }
        })
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.inner.read(bytes)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
