//! Why there is no line.

use std::io;

/// A line that cannot be laid, or broke.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// The user may not, or the kernel cannot.
    #[error("{what}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// `ip` refused.
    #[error("ip (of iproute2) in the {side} namespace: {said}")]
    Ip {
        /// Near or far.
        side: &'static str,
        /// What it said.
        said: String,
    },
    /// What was asked makes no sense.
    #[error("{0}")]
    Misuse(String),
    /// The emulator is not there any more.
    #[error("the emulator has ended")]
    Ended,
}

impl WanError {
    /// Turns an I/O error into one that says what was being done.
    pub(crate) fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> WanError {
        let what = what.into();
        move |source| WanError::System { what, source }
    }

    /// What to try.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            WanError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run it as root: it makes network namespaces and TUN devices")
            }
            WanError::System { what, .. } if what.contains("/dev/net/tun") => {
                Some("load the module (modprobe tun), or give the container /dev/net/tun")
            }
            WanError::Ip { said, .. } if said.contains("congctl") || said.contains("No such file") => {
                Some("see /proc/sys/net/ipv4/tcp_available_congestion_control; modprobe tcp_bbr may help")
            }
            WanError::System { .. } | WanError::Ip { .. } | WanError::Misuse(_) | WanError::Ended => None,
        }
    }
}
