//! Socket addresses as C has them.

use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// Room for an address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Address {
    any: sockaddr,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl Address {
    /// Room that says nothing yet, and how much it is.
    pub fn empty() -> (Address, socklen_t) {
        let v6 = sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        };
        (Address { v6 }, size_of::<Address>() as socklen_t)
    }

    /// The address, and its length.
    pub fn of(address: SocketAddr) -> (Address, socklen_t) {
        match address {
            SocketAddr::V4(it) => {
                let v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: it.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(it.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // The rest of the room is defined, too.
                let mut address = Address::empty().0;
                address.v4 = v4;
                (address, size_of::<sockaddr_in>() as socklen_t)
            }
            SocketAddr::V6(it) => {
                let v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: it.port().to_be(),
                    sin6_flowinfo: it.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: it.ip().octets() },
                    sin6_scope_id: it.scope_id(),
                };
                (Address { v6 }, size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }

    pub fn as_ptr(&self) -> *const sockaddr {
        (&raw const *self).cast()
    }

    pub fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut *self).cast()
    }

    /// What it says, if it is an address of IP.
    pub fn told(&self) -> Option<SocketAddr> {
        // SAFETY: all variants begin with the family, and all of their fields are numbers, which have no invalid bytes. The whole union was
        // written when it was made.
        let (family, v4, v6) = unsafe { (c_int::from(self.any.sa_family), self.v4, self.v6) };
        match family {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// The family of an address.
pub fn family(address: SocketAddr) -> c_int {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_as_they_were_said() {
        for text in ["192.0.2.1:7843", "[2001:db8::1]:7843", "0.0.0.0:0", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::of(address).0.told(), Some(address), "{text}");
        }
        assert_eq!(Address::empty().0.told(), None);
    }
}
