//! The near end of a paired relay: each connection becomes a channel of a link to an agent, which goes on
//! to the target. So even one TCP stream is carried by all connections of the link.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drover_link::{Channel, LinkErrorKind, Order, Session};
use drover_tcp as tcp;
use serde::Serialize;

use crate::carry::{Counts, Ended, carry, cut};
use crate::connecting::prepare_plain;
use crate::hop::Limit;
use crate::relay::Teller;
use crate::rule::{Policy, Verdict};
use crate::stats::{
    ConnectionStats, Refusal, Snapshot, SocketStats, Stage, Totals, Waiting, Waits, WayStats,
};

/// Connections at once: each takes two threads. An agent takes as many channels of one session.
pub const PAIRED_MAX: usize = 256;
/// How often to look for clients, and whether to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Rates are over at least so long.
const RATE_OVER: Duration = Duration::from_secs(1);

/// Why there is no session.
pub type DialError = Box<dyn std::error::Error + Send + Sync>;
/// Gives a session to the agent: the one there is, or a new one.
pub type Dial = dyn Fn() -> Result<Session, DialError> + Send + Sync;

/// A port that is listened on, and where the agent is to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairedLine {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// `HOST:PORT`, as the agent's host knows it.
    pub to: String,
}

#[derive(Serialize)]
struct Opening<'a> {
    service: &'static str,
    to: &'a str,
}

/// What the agent is told a channel is for.
pub fn opening(to: &str) -> Vec<u8> {
    // A struct of two texts always has a JSON.
    serde_json::to_vec(&Opening { service: "connect", to }).unwrap_or_default()
}

struct Live {
    client: SocketAddr,
    to: String,
    rule: Option<usize>,
    accepted_at: Instant,
    stream: TcpStream,
    counts: Counts,
    rate: Mutex<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    bytes: (u64, u64),
    rates: (u64, u64),
}

struct Shared {
    dial: Box<Dial>,
    session: Mutex<Option<Session>>,
    policy: Policy,
    limits: Vec<Option<(Limit, Limit)>>,
    connections_max: usize,
    started: Instant,
    ids: AtomicU64,
    live: Mutex<BTreeMap<u64, Arc<Live>>>,
    totals: Mutex<Totals>,
    last_error: Mutex<Option<String>>,
    is_stopping: AtomicBool,
}

/// A paired relay that runs. Dropped, it stops, and resets its connections.
pub struct PairedRelay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one step, so what a panic left is as good as before.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PairedRelay {
    /// Listens, and relays from now on. `dial` is asked at the first connection, and again after a session
    /// was lost. Of the policy, `to` networks count only where the target is written as an address.
    ///
    /// # Errors
    /// The address that cannot be listened on, and why.
    pub fn start(
        lines: &[PairedLine],
        policy: Policy,
        connections_max: usize,
        dial: Box<Dial>,
    ) -> Result<PairedRelay, (SocketAddr, io::Error)> {
        let started = Instant::now();
        let limit = |rate| (Limit::new(rate, started), Limit::new(rate, started));
        let limits = policy.rules.iter().map(|rule| rule.bytes_per_second.map(limit)).collect();
        let shared = Arc::new(Shared {
            dial,
            session: Mutex::default(),
            policy,
            limits,
            connections_max: connections_max.min(PAIRED_MAX),
            started,
            ids: AtomicU64::new(1),
            live: Mutex::default(),
            totals: Mutex::default(),
            last_error: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let mut relay = PairedRelay { shared, addresses: Vec::new(), threads: Vec::new() };
        lines.iter().try_for_each(|line| relay.listen(line).map_err(|error| (line.listen, error)))?;
        Ok(relay)
    }

    fn listen(&mut self, line: &PairedLine) -> io::Result<()> {
        let listener = TcpListener::bind(line.listen)?;
        listener.set_nonblocking(true)?;
        self.addresses.push(listener.local_addr()?);
        let (shared, to) = (self.shared.clone(), line.to.clone());
        let thread = std::thread::Builder::new().name("relay-accept".to_string());
        self.threads.push(thread.spawn(move || shared.accept(&listener, &to))?);
        Ok(())
    }

    /// What is listened on, in the order of the lines.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Why the latest connection found no agent, if one did not since this was asked last.
    pub fn take_error(&self) -> Option<String> {
        locked(&self.shared.last_error).take()
    }

    /// Tells how it stands, from any thread.
    pub fn teller(&self) -> Teller {
        let shared = self.shared.clone();
        Teller::new(move |connections| shared.snapshot(connections))
    }

    /// Accepts no more, waits for up to `patience` until the connections there are have ended, and resets
    /// the rest.
    pub fn stop(mut self, patience: Duration) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let until = Instant::now() + patience;
        while !locked(&self.shared.live).is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.end();
    }

    fn end(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked accepts no more, which is what is wanted.
            let _ = thread.join();
        }
        for live in locked(&self.shared.live).values() {
            cut(&live.stream, &live.counts);
        }
        if let Some(session) = locked(&self.shared.session).take() {
            session.close();
        }
    }
}

impl Drop for PairedRelay {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener, to: &str) {
        while !self.is_stopping.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, client)) => self.admit(stream, client, to),
                // Nobody there, no more files, or a client that has gone again.
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, client: SocketAddr, to: &str) {
        locked(&self.totals).accepted += 1;
        // From here on closing it is a reset.
        if stream.set_nonblocking(false).and_then(|()| prepare_plain(&stream)).is_err() {
            return self.refuse(Refusal::TargetUnreachable);
        }
        if locked(&self.live).len() >= self.connections_max {
            return self.refuse(Refusal::Limit);
        }
        let Ok(rule) = self.rule(client, to) else { return self.refuse(Refusal::Policy) };
        let Ok(copy) = stream.try_clone() else { return self.refuse(Refusal::Files) };
        let now = Instant::now();
        let live = Arc::new(Live {
            client,
            to: to.to_string(),
            rule,
            accepted_at: now,
            stream: copy,
            counts: Counts::default(),
            rate: Mutex::new(Sample { at: now, bytes: (0, 0), rates: (0, 0) }),
        });
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        locked(&self.live).insert(id, live.clone());
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("relay-paired".to_string());
        if thread.spawn(move || shared.carry(id, &live)).is_err() {
            locked(&self.live).remove(&id);
            self.refuse(Refusal::Files);
        }
    }

    /// The rule that lets a client pass, if it may.
    fn rule(&self, client: SocketAddr, to: &str) -> Result<Option<usize>, ()> {
        // The name of a host behind the agent means nothing here; rules for networks do not fit it.
        let port = to.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        let target = to.parse().unwrap_or(SocketAddr::new(crate::options::any_address(true), port));
        let decision = self.policy.decide(client.ip(), target);
        if decision.verdict == Verdict::Allow { Ok(decision.rule) } else { Err(()) }
    }

    fn refuse(&self, reason: Refusal) {
        locked(&self.totals).refuse(reason);
    }

    /// A session with the agent: the one there is, or one that is dialled now.
    fn session(&self) -> Result<Session, DialError> {
        let mut session = locked(&self.session);
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        let new = (self.dial)()?;
        *session = Some(new.clone());
        Ok(new)
    }

    fn channel(&self, to: &str) -> Result<Channel, DialError> {
        match self.session()?.open(Order::Stream, &opening(to)) {
            Err(error) if matches!(error.kind, LinkErrorKind::Closed | LinkErrorKind::Lost) => {
                *locked(&self.session) = None;
                Ok(self.session()?.open(Order::Stream, &opening(to))?)
            }
            result => Ok(result?),
        }
    }

    fn carry(&self, id: u64, live: &Live) {
        let ended = match self.channel(&live.to) {
            Ok(channel) => {
                locked(&self.totals).connected += 1;
                let limits = live.rule.and_then(|rule| self.limits[rule].as_ref());
                let limits = (limits.map(|(up, _)| up), limits.map(|(_, down)| down));
                carry(&live.stream, channel, &live.counts, limits)
            }
            Err(error) => {
                *locked(&self.last_error) = Some(error.to_string());
                self.refuse(Refusal::TargetUnreachable);
                locked(&self.live).remove(&id);
                return;
            }
        };
        let mut totals = locked(&self.totals);
        locked(&self.live).remove(&id);
        add(&mut totals, live);
        match ended {
            Ended::Closed => totals.closed += 1,
            Ended::Reset => totals.reset += 1,
        }
    }

    fn snapshot(&self, connections: usize) -> Snapshot {
        // Held to the end, so that no connection is counted twice or not at all.
        let totals = locked(&self.totals);
        let mut sums = totals.clone();
        let live = locked(&self.live);
        let now = Instant::now();
        let mut told: Vec<ConnectionStats> = live.iter().map(|(id, live)| stats(*id, live, now)).collect();
        live.values().for_each(|live| add(&mut sums, live));
        let count = live.len() as u64;
        drop((live, totals));
        told.sort_by_key(|it| (std::cmp::Reverse(it.bytes_per_second()), it.id));
        told.truncate(connections);
        Snapshot {
            age_us: micros(now - self.started),
            live: count,
            totals: sums,
            connections: told,
            ..Snapshot::default()
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn bytes(live: &Live) -> (u64, u64) {
    (live.counts.out.load(Ordering::Relaxed), live.counts.back.load(Ordering::Relaxed))
}

fn add(totals: &mut Totals, live: &Live) {
    let (up, down) = bytes(live);
    totals.up_bytes += up;
    totals.down_bytes += down;
}

fn rates(live: &Live, now: Instant) -> (u64, u64) {
    let mut sample = locked(&live.rate);
    let time = now.saturating_duration_since(sample.at);
    if time >= RATE_OVER {
        let (up, down) = bytes(live);
        let rate = |bytes: u64| (bytes as f64 / time.as_secs_f64()) as u64;
        let rates = (rate(up - sample.bytes.0), rate(down - sample.bytes.1));
        *sample = Sample { at: now, bytes: (up, down), rates };
    }
    sample.rates
}

fn stats(id: u64, live: &Live, now: Instant) -> ConnectionStats {
    let ((up, down), (up_rate, down_rate)) = (bytes(live), rates(live, now));
    // What a thread waits for is not known: it is in a call that blocks.
    let way = |bytes, bytes_per_second| WayStats {
        bytes,
        bytes_per_second,
        held_bytes: 0,
        waiting: Waiting::Moving,
        waits: Waits::default(),
    };
    let socket =
        || Some(SocketStats::new(tcp::congestion(&live.stream).ok()?, &tcp::info(&live.stream).ok()?));
    ConnectionStats {
        id,
        client: live.client,
        target: live.to.clone(),
        stage: Stage::Open,
        age_us: micros(now.saturating_duration_since(live.accepted_at)),
        rule: live.rule,
        up: way(up, up_rate),
        down: way(down, down_rate),
        client_socket: socket(),
        target_socket: None,
    }
}
