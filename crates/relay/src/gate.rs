//! Decides of each client that was accepted whether it may pass, where it goes and how.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drover_tcp as tcp;

use crate::connecting::{Accepted, Settings, prepare};
use crate::connection::Meta;
use crate::hop::Limit;
use crate::options::{Destination, RelayOptions, any_address};
use crate::rule::{Decision, Policy, Rule, Verdict};
use crate::stats::Refusal;
use crate::uplink::Asked;

/// How a client that may pass goes on.
pub(crate) enum Admitted {
    /// From here.
    Here(Accepted),
    /// Over the link.
    Far(Asked),
}

pub(crate) struct Gate {
    policy: Policy,
    has_link: bool,
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
            has_link: options.via.is_some(),
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
    ) -> Result<Admitted, (OwnedFd, Refusal)> {
        let (addresses, bind) = match destination(&client, peer, to, listen) {
            Some(found) => found,
            None => return Err((client, Refusal::Loop)),
        };
        let Some(Passed { verdict, rule, addresses }) = self.passed(peer, to, &addresses) else {
            return Err((client, Refusal::Policy));
        };
        let target = match (to, addresses.first()) {
            (Destination::Far { to, .. }, _) => to.clone(),
            (_, Some(address)) => address.to_string(),
            (_, None) => return Err((client, Refusal::TargetUnreachable)),
        };
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let meta = Meta { id, client: peer, target, rule, accepted_at: Instant::now() };
        let settings = self.settings[rule.map_or(0, |rule| rule + 1)].clone();
        if self.has_link && verdict == Verdict::Allow {
            return match prepare(&client, settings.congestion_back.as_deref(), &settings) {
                Ok(()) => Ok(Admitted::Far(Asked { meta, client, settings })),
                Err(_) => Err((client, Refusal::TargetUnreachable)),
            };
        }
        Ok(Admitted::Here(Accepted { meta, client, settings, addresses, bind }))
    }

    /// The addresses that the policy lets this client go to, by the rule that lets it to the first of them.
    fn passed(&self, peer: SocketAddr, to: &Destination, addresses: &Arc<[SocketAddr]>) -> Option<Passed> {
        if self.policy.rules.is_empty() {
            return Some(Passed { verdict: Verdict::Allow, rule: None, addresses: addresses.clone() });
        }
        let decide = |address: &SocketAddr| self.policy.decide(peer.ip(), *address);
        if let (Destination::Far { to, .. }, []) = (to, &addresses[..]) {
            // The name of a host behind the agent means nothing here: only rules for any network fit it.
            let port = to.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
            let Decision { verdict, rule } = decide(&SocketAddr::new(any_address(true), port));
            return (verdict == Verdict::Allow).then(|| Passed {
                verdict,
                rule,
                addresses: addresses.clone(),
            });
        }
        let first = addresses.iter().map(decide).find(|it| it.verdict != Verdict::Deny)?;
        let same = addresses.iter().filter(|address| decide(address) == first);
        Some(Passed { verdict: first.verdict, rule: first.rule, addresses: same.copied().collect() })
    }
}

/// What the policy says of one who may pass.
struct Passed {
    verdict: Verdict,
    rule: Option<usize>,
    addresses: Arc<[SocketAddr]>,
}

/// Whether two addresses are the same one's: the kernel tells the scope of a link-local one here and not there.
fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    (a.ip().to_canonical(), a.port()) == (b.ip().to_canonical(), b.port())
}

type Found = (Arc<[SocketAddr]>, Option<SocketAddr>);

/// Where a client wants to go, and the address to come from; none if it means the relay itself.
fn destination(client: &OwnedFd, peer: SocketAddr, to: &Destination, listen: SocketAddr) -> Option<Found> {
    match to {
        Destination::Fixed { addresses } | Destination::Far { addresses, .. } => {
            Some((addresses.clone(), None))
        }
        Destination::Redirected => {
            let here = tcp::local_address(client).ok()?;
            let there = tcp::original_destination(client).ok()?;
            (!is_same(there, here)).then(|| ([there].into(), None))
        }
        Destination::Intercepted { keep_source } => {
            let there = tcp::local_address(client).ok()?;
            // Whoever names the relay's own port was not intercepted.
            let source = keep_source.then(|| SocketAddr::new(peer.ip(), 0));
            (there.port() != listen.port()).then(|| ([there].into(), source))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddrV6};

    use super::*;

    #[test]
    fn an_address_is_the_same_with_and_without_its_scope() {
        let local =
            |port, scope| SocketAddrV6::new("fe80::1".parse::<Ipv6Addr>().unwrap(), port, 0, scope).into();
        assert!(is_same(local(4000, 3), local(4000, 0)));
        assert!(is_same("[::ffff:10.0.0.1]:1".parse().unwrap(), "10.0.0.1:1".parse().unwrap()));
        assert!(!is_same(local(4000, 3), local(4001, 3)));
        assert!(!is_same(local(4000, 3), "[fe80::2]:4000".parse().unwrap()));
    }
}
