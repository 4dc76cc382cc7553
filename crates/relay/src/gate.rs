//! Decides of each client that was accepted whether it may pass, where it goes and how.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drover_tcp as tcp;

use crate::connecting::{Accepted, Settings};
use crate::connection::Meta;
use crate::hop::Limit;
use crate::options::{Destination, RelayOptions};
use crate::rule::{Policy, Rule, Verdict};
use crate::stats::Refusal;

pub(crate) struct Gate {
    policy: Policy,
    /// For connections that no rule decides, then for each rule.
    settings: Vec<Arc<Settings>>,
    ids: AtomicU64,
}

impl Gate {
    /// `congestion` and `congestion_back` are names that this host has, or none to leave sockets alone.
    pub(crate) fn new(
        options: &RelayOptions,
        congestion: Option<&str>,
        congestion_back: Option<&str>,
        start: Instant,
    ) -> Gate {
        let settings = |rule: Option<&Rule>| {
            let named = rule.and_then(|rule| rule.congestion.as_deref());
            let rate = rule.and_then(|rule| rule.bytes_per_second);
            Arc::new(Settings {
                congestion: named.or(congestion).map(str::to_string),
                congestion_back: congestion_back.map(str::to_string),
                limits: rate
                    .map(|rate| (Arc::new(Limit::new(rate, start)), Arc::new(Limit::new(rate, start)))),
                connect_timeout: options.connect_timeout,
                keepalive: options.keepalive,
                mark: options.mark,
            })
        };
        let rules = options.policy.rules.iter().map(|rule| settings(Some(rule)));
        Gate {
            policy: options.policy.clone(),
            settings: std::iter::once(settings(None)).chain(rules).collect(),
            ids: AtomicU64::new(1),
        }
    }

    /// Lets a client pass, or says why not.
    pub(crate) fn admit(
        &self,
        client: OwnedFd,
        peer: SocketAddr,
        to: &Destination,
        listen: SocketAddr,
    ) -> Result<Accepted, (OwnedFd, Refusal)> {
        let (addresses, bind) = match destination(&client, peer, to, listen) {
            Some(found) => found,
            None => return Err((client, Refusal::Loop)),
        };
        let Some((addresses, rule)) = self.allowed(peer, &addresses) else {
            return Err((client, Refusal::Policy));
        };
        let meta = Meta {
            id: self.ids.fetch_add(1, Ordering::Relaxed),
            client: peer,
            target: addresses[0],
            rule,
            accepted_at: Instant::now(),
        };
        let settings = self.settings[rule.map_or(0, |rule| rule + 1)].clone();
        Ok(Accepted { meta, client, settings, addresses, bind })
    }

    /// The addresses that the policy lets this client go to, by the rule that lets it to the first of them.
    fn allowed(
        &self,
        peer: SocketAddr,
        addresses: &Arc<[SocketAddr]>,
    ) -> Option<(Arc<[SocketAddr]>, Option<usize>)> {
        if self.policy.rules.is_empty() {
            return Some((addresses.clone(), None));
        }
        let decide = |address: &SocketAddr| self.policy.decide(peer.ip(), *address);
        let first = addresses.iter().map(decide).find(|it| it.verdict == Verdict::Allow)?;
        let same = addresses.iter().filter(|address| decide(address) == first);
        Some((same.copied().collect(), first.rule))
    }
}

type Found = (Arc<[SocketAddr]>, Option<SocketAddr>);

/// Where a client wants to go, and the address to come from; none if it means the relay itself.
fn destination(client: &OwnedFd, peer: SocketAddr, to: &Destination, listen: SocketAddr) -> Option<Found> {
    match to {
        Destination::Fixed { addresses } => Some((addresses.clone(), None)),
        Destination::Redirected => {
            let here = tcp::local_address(client).ok()?;
            let there = tcp::original_destination(client).ok()?;
            (there != here).then(|| ([there].into(), None))
        }
        Destination::Intercepted { keep_source } => {
            let there = tcp::local_address(client).ok()?;
            // Whoever names the relay's own port was not intercepted.
            let source = keep_source.then(|| SocketAddr::new(peer.ip(), 0));
            (there.port() != listen.port()).then(|| ([there].into(), source))
        }
    }
}
