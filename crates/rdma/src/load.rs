//! Loads the library.

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::size_of;

use libc::c_int;

use super::Library;

const LIBRARY_C: &CStr = c"librdmacm.so.1";

unsafe extern "C" {
    /// Of `<stdlib.h>`: runs a function when the process exits, with its exit code, before what was there when it was told.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Loads it, and finds its functions.
pub fn load() -> Result<Library, String> {
    // SAFETY: the name ends with a zero. What the library runs when it is loaded is as safe as what the system's loader runs for
    // programs that link it; its path is chosen by the system, not by a peer.
    let handle = unsafe { libc::dlopen(LIBRARY_C.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(last_error());
    }
    // SAFETY: the function may run at any time: it ends the process. It takes no argument.
    if unsafe { on_exit(leave, std::ptr::null_mut()) } != 0 {
        return Err("there is no memory for what is to be done at the exit".to_string());
    }
    // SAFETY: the handle was given just above, and is never closed.
    unsafe { Library::of(handle) }
}

/// Ends the process before the library takes its devices down, as it does at the exit: threads that end connections may still be in it, and
/// would crash. The kernel takes what they have. Standard output was written by then: the standard library does that before C's `exit`.
extern "C" fn leave(code: c_int, _: *mut c_void) {
    // SAFETY: it ends the process, and touches nothing.
    unsafe { libc::_exit(code) }
}

impl Library {
    /// # Safety
    /// The handle is of this library, and stays open.
    unsafe fn of(handle: *mut c_void) -> Result<Library, String> {
        // SAFETY: the types are those of <rdma/rsocket.h> and <infiniband/verbs.h>, which have not changed within the library's version 1;
        // a name is found in the library or in those that it needs.
        unsafe {
            let fork_init: unsafe extern "C" fn() -> c_int = symbol(handle, c"ibv_fork_init")?;
            // Before anything is registered. On kernels before 5.12 a process that forks would else write to pages that the device reads no
            // more; later kernels need nothing, and it does nothing.
            let failed = fork_init();
            if failed != 0 {
                let why = io::Error::from_raw_os_error(failed);
                return Err(format!("it cannot be used by a program that starts others: {why}"));
            }
            Ok(Library {
                rsocket: symbol(handle, c"rsocket")?,
                rbind: symbol(handle, c"rbind")?,
                rlisten: symbol(handle, c"rlisten")?,
                raccept: symbol(handle, c"raccept")?,
                rconnect: symbol(handle, c"rconnect")?,
                rrecv: symbol(handle, c"rrecv")?,
                rsend: symbol(handle, c"rsend")?,
                rpoll: symbol(handle, c"rpoll")?,
                rshutdown: symbol(handle, c"rshutdown")?,
                rclose: symbol(handle, c"rclose")?,
                rgetsockname: symbol(handle, c"rgetsockname")?,
                rgetpeername: symbol(handle, c"rgetpeername")?,
                rsetsockopt: symbol(handle, c"rsetsockopt")?,
                rgetsockopt: symbol(handle, c"rgetsockopt")?,
                rfcntl: symbol(handle, c"rfcntl")?,
            })
        }
    }
}

/// A function of the library.
///
/// # Safety
/// The handle is open and stays so, and `F` is the type of a pointer to the function of that name.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is open, as the caller says, and the name ends with a zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(last_error());
    }
    // SAFETY: both have the same size, and the caller says that `F` points to such a function.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

/// What the loader says of its last failure.
fn last_error() -> String {
    // SAFETY: it gives a string that stays until this thread's next call of the loader, or nothing; it is copied at once.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    text.unwrap_or_else(|| "the loader does not say why".to_string())
}
