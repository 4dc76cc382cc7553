//! The library, and whether this host has a device.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::sync::OnceLock;

use libc::{c_int, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

/// The library that is loaded.
pub const LIBRARY: &str = "librdmacm.so.1";

#[cfg(not(target_feature = "crt-static"))]
#[path = "load.rs"]
mod load;

/// What a host lacks for RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The library cannot be loaded, or is another; why.
    Library(String),
    /// The library finds no device; what it says.
    Device(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Library(why) => write!(f, "{LIBRARY} cannot be used: {why}"),
            Unavailable::Device(why) => {
                write!(f, "this host has no RDMA device that {LIBRARY} can use: {why}")
            }
        }
    }
}

impl std::error::Error for Unavailable {}

/// The functions of `<rdma/rsocket.h>`.
pub struct Library {
    pub rsocket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    pub rbind: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    pub rlisten: unsafe extern "C" fn(c_int, c_int) -> c_int,
    pub raccept: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub rconnect: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    pub rrecv: unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub rsend: unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub rpoll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int,
    pub rshutdown: unsafe extern "C" fn(c_int, c_int) -> c_int,
    pub rclose: unsafe extern "C" fn(c_int) -> c_int,
    pub rgetsockname: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub rgetpeername: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub rsetsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub rgetsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub rfcntl: unsafe extern "C" fn(c_int, c_int, ...) -> c_int,
}

/// Whether this host can use RDMA: the library is there, and finds a device now.
///
/// # Errors
/// What is missing.
pub fn check() -> Result<(), Unavailable> {
    let library = library()?;
    // SAFETY: it takes numbers only.
    let socket = unsafe { (library.rsocket)(libc::AF_INET, libc::SOCK_STREAM, 0) };
    if socket < 0 {
        return Err(Unavailable::Device(io::Error::last_os_error().to_string()));
    }
    // SAFETY: the socket was made just above, and nobody else knows it. Closing one that was never connected waits for nobody.
    unsafe { (library.rclose)(socket) };
    Ok(())
}

/// The library. It is loaded once, and stays.
pub fn library() -> Result<&'static Library, Unavailable> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(load::load);
    loaded.as_ref().map_err(|why| Unavailable::Library(why.clone()))
}

/// A static program loads nothing: it would need libraries of the very C library that it was built with.
#[cfg(target_feature = "crt-static")]
mod load {
    pub fn load() -> Result<super::Library, String> {
        Err("this program is linked statically, and loads no libraries".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_lacks_is_named() {
        // Whatever this host has: where it lacks something, the library is named.
        if let Err(lacking) = check() {
            assert!(lacking.to_string().contains(LIBRARY), "{lacking}");
        }
        let lacking = Unavailable::Device("No such device (os error 19)".into());
        assert_eq!(
            lacking.to_string(),
            "this host has no RDMA device that librdmacm.so.1 can use: No such device (os error 19)"
        );
    }
}
