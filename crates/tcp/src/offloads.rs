//! Which work a network interface takes off the processor.

use std::io::Result;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use crate::sys;

/// Whether they are switched on. Source of the numbers: Linux `linux/ethtool.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums of what comes are checked by the card.
    pub receive_checksums: bool,
    /// Checksums of what goes are made by the card.
    pub send_checksums: bool,
    /// The card cuts large pieces into segments (TSO).
    pub segmentation: bool,
    /// Segments that come are put together before the kernel looks at them (GRO).
    pub receive: bool,
}

const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGRO: u32 = 0x2b;

/// Those of an interface, by its name.
///
/// # Errors
/// What the kernel says, such as of an interface that is not there, or of one that tells none.
pub fn offloads(interface: &str) -> Result<Offloads> {
    // Any socket leads to the interface.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let is_on =
        |command| Ok::<_, std::io::Error>(sys::ethtool_value(socket.as_fd(), interface, command)? != 0);
    Ok(Offloads {
        receive_checksums: is_on(ETHTOOL_GRXCSUM)?,
        send_checksums: is_on(ETHTOOL_GTXCSUM)?,
        segmentation: is_on(ETHTOOL_GTSO)?,
        receive: is_on(ETHTOOL_GGRO)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_all_and_what_is_no_interface_has_none() {
        match offloads("lo") {
            Ok(it) => assert!(it.receive_checksums && it.send_checksums && it.segmentation, "{it:?}"),
            // Sandboxes that stand in for a kernel have no such question.
            Err(error) => println!("skipped: {error}"),
        }
        for name in ["", "no-such-card", "a name that is much too long for one", "l\0o"] {
            assert!(offloads(name).is_err(), "{name}");
        }
    }
}
