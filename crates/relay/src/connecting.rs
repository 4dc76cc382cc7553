//! A connection whose target has not answered yet.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_tcp as tcp;
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::connection::{Connection, Meta, age_us};
use crate::direction::Direction;
use crate::hop::Limit;
use crate::stats::{ConnectionStats, Refusal, Stage, Waiting, Waits, WayStats};

/// What is the same for many connections: those of one listener and one rule.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Congestion control towards the target; the host's own if absent or not to be had.
    pub(crate) congestion: Option<String>,
    /// And towards the client.
    pub(crate) congestion_back: Option<String>,
    /// Rate limits up and down.
    pub(crate) limits: Option<(Arc<Limit>, Arc<Limit>)>,
    /// For each address of the target.
    pub(crate) connect_timeout: Duration,
    pub(crate) keepalive: tcp::Keepalive,
    /// For packets to the target.
    pub(crate) mark: Option<u32>,
}

/// A client that was accepted and may pass.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) meta: Meta,
    pub(crate) client: OwnedFd,
    pub(crate) settings: Arc<Settings>,
    /// Addresses of the target, to be tried in turn.
    pub(crate) addresses: Arc<[SocketAddr]>,
    /// Connect from this address, which may be another host's.
    pub(crate) bind: Option<SocketAddr>,
}

#[derive(Debug)]
pub(crate) struct Connecting {
    accepted: Accepted,
    socket: OwnedFd,
    /// Addresses tried.
    tried: usize,
    pub(crate) until: Instant,
    /// Urgent bytes have come from the client: the kernel says so once.
    pub(crate) is_urgent: bool,
}

/// What came of a try.
#[derive(Debug)]
pub(crate) enum Try {
    /// It is under way, by a new socket.
    Waits(Connecting),
    /// None of the addresses answered.
    Failed(Refusal),
}

/// Options that every socket has.
pub(crate) fn prepare_plain(socket: impl AsFd) -> io::Result<()> {
    // Senders have collected already; what they sent alone is meant to arrive alone.
    set_tcp_nodelay(&socket, true)?;
    tcp::keep_urgent_in_line(&socket)?;
    // However this process ends: what was cut off must not look like an end to the peers.
    tcp::reset_on_close(&socket)?;
    tcp::set_keepalive(&socket, tcp::Keepalive::default())
}

/// And those that are chosen.
pub(crate) fn prepare(socket: &OwnedFd, congestion: Option<&str>, settings: &Settings) -> io::Result<()> {
    prepare_plain(socket)?;
    tcp::set_keepalive(socket, settings.keepalive)?;
    if let Some(name) = congestion {
        // Whether it can be had was found out at the start; what a socket has is told with it.
        tcp::best_congestion(socket, name)?;
    }
    Ok(())
}

pub(crate) fn refusal(error: &io::Error) -> Refusal {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => Refusal::TargetRefused,
        Some(Errno::TIMEDOUT) => Refusal::TargetSilent,
        Some(Errno::MFILE | Errno::NFILE) => Refusal::Files,
        _ => Refusal::TargetUnreachable,
    }
}

fn start(accepted: &Accepted, address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    prepare(&socket, accepted.settings.congestion.as_deref(), &accepted.settings)?;
    if let Some(mark) = accepted.settings.mark {
        tcp::set_mark(&socket, mark)?;
    }
    if let Some(from) = accepted.bind {
        tcp::set_transparent(&socket)?;
        tcp::set_bind_address_no_port(&socket)?;
        bind(&socket, &from)?;
    }
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

impl Connecting {
    /// Tries the addresses one after another, until one at least does not fail at once.
    pub(crate) fn first(accepted: Accepted, now: Instant) -> Try {
        let settings = &accepted.settings;
        if prepare(&accepted.client, settings.congestion_back.as_deref(), settings).is_err() {
            return Try::Failed(Refusal::TargetUnreachable);
        }
        Connecting::try_from(accepted, 0, Refusal::TargetUnreachable, now)
    }

    fn try_from(mut accepted: Accepted, tried: usize, mut reason: Refusal, now: Instant) -> Try {
        for at in tried..accepted.addresses.len() {
            accepted.meta.target = accepted.addresses[at].to_string();
            match start(&accepted, accepted.addresses[at]) {
                Ok(socket) => {
                    let until = now + accepted.settings.connect_timeout;
                    let tried = at + 1;
                    return Try::Waits(Connecting { accepted, socket, tried, until, is_urgent: false });
                }
                Err(error) => reason = refusal(&error),
            }
        }
        // The client gets what a host gives that does not want to: a reset, as `prepare` has set it.
        Try::Failed(reason)
    }

    pub(crate) fn client(&self) -> &OwnedFd {
        &self.accepted.client
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the target answered: the error it failed with, if it did.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        match socket_error(&self.socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(refusal(&error.into())),
        }
    }

    /// Goes on with the next address.
    pub(crate) fn next(self, reason: Refusal, now: Instant) -> Try {
        Connecting::try_from(self.accepted, self.tried, reason, now)
    }

    /// The target is there.
    pub(crate) fn open(self, now: Instant) -> Connection {
        let limits = self.accepted.settings.limits.clone();
        let (up, down) = limits.map_or((None, None), |(up, down)| (Some(up), Some(down)));
        let (mut up, down) = (Direction::new(up, now), Direction::new(down, now));
        if self.is_urgent {
            up.copy_from_now_on();
        }
        Connection::new(self.accepted.meta, self.accepted.client, self.socket, up, down)
    }

    pub(crate) fn stats(&self, now: Instant) -> ConnectionStats {
        let meta = &self.accepted.meta;
        let idle = WayStats {
            bytes: 0,
            bytes_per_second: 0,
            held_bytes: 0,
            waiting: Waiting::Target,
            waits: Waits::default(),
        };
        ConnectionStats {
            id: meta.id,
            client: meta.client,
            peer: None,
            target: meta.target.clone(),
            is_linked: false,
            stage: Stage::Connecting,
            age_us: age_us(meta, now),
            rule: meta.rule,
            up: idle,
            down: idle,
            client_socket: None,
            target_socket: None,
        }
    }
}
