//! A relay that runs: its threads, and what it tells.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drover_tcp as tcp;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::book::{Book, Refused};
use crate::circle::{circle, is_here};
use crate::entrance::{Entrance, Listener, Shared, chooses_port, spare_file};
use crate::gate::Gate;
use crate::options::{Congestion, Line, RelayOptions};
use crate::pipes::{Budget, PIPE_BYTES};
use crate::stats::{LinkStats, Snapshot};
use crate::teller::{Teller, gathered};
use crate::uplink::Uplink;
use crate::worker::{Inbox, Job, start_all};

/// Files that a relay uses besides connections and pipes.
const FILES_APART: usize = 64;
/// Files that an agent may need besides the connections that it carries: links (1,024 connections), disks, images.
const FILES_OF_AGENT: usize = 2_048;
/// How often to look whether the last connection has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Why a relay does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("listening on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The congestion control cannot be chosen.
    #[error("congestion control '{name}' (this kernel has: {available})")]
    Congestion {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What would come in there would come in there again, and so on.
    #[error("what comes to {listen} would come back to it: {to} is the relay itself")]
    Circle {
        /// What is listened on.
        listen: SocketAddr,
        /// Where that leads.
        to: SocketAddr,
    },
    /// Anything else that the kernel refuses.
    #[error("starting the relay")]
    Kernel(#[from] io::Error),
}

/// A relay that runs. Dropped, it stops, and resets its connections.
pub struct Relay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    notes: Vec<String>,
    congestion: String,
    budget: Arc<Budget>,
    started: Instant,
    entrance: Option<JoinHandle<io::Result<()>>>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

impl Relay {
    /// Listens, and relays from now on.
    ///
    /// # Errors
    /// [`StartError`]; nothing listens then.
    pub fn start(options: &RelayOptions) -> Result<Relay, StartError> {
        // An address of this host's own need not lead to the relay: rules of the kernel's may send it on, as where a
        // Kubernetes node has the addresses of its services.
        if let Some((listen, to)) = circle(&options.lines, |_| false) {
            return Err(StartError::Circle { listen, to });
        }
        let mut notes = Vec::new();
        if let Some((listen, to)) = circle(&options.lines, is_here) {
            notes.push(format!(
                "{}, unless a rule of the kernel's sends {to} on",
                StartError::Circle { listen, to }
            ));
        }
        let connections_max = files_for(options, &mut notes);
        let (forth, congestion) = choose(&options.congestion, &mut notes)?;
        let (back, _) = choose(&options.congestion_back, &mut Vec::new())?;
        for rule in &options.policy.rules {
            rule.congestion.as_deref().map(probe).transpose()?;
        }
        let listeners = listen_on(options, &mut notes)?;
        let started = Instant::now();
        let gate = Gate::new(options, forth.as_deref(), back.as_deref(), started);
        let budget = Budget::new(options.pipes_bytes_max);
        let inboxes = (0..options.workers.max(1)).map(|_| Inbox::new()).collect::<io::Result<Vec<_>>>()?;
        let book: Arc<Book> = Arc::default();
        let uplink = options.via.clone().map(|via| Uplink::new(via, inboxes.clone(), book.clone()));
        let is_stopping = AtomicBool::new(false);
        let shared = Arc::new(Shared { inboxes, connections_max, is_stopping, book, uplink });
        let mut relay = Relay {
            addresses: listeners.iter().map(|listener| listener.address).collect(),
            shared: shared.clone(),
            notes,
            congestion,
            budget,
            started,
            entrance: None,
            workers: Vec::new(),
        };
        relay.start_threads(Entrance { listeners, gate, shared, spare: spare_file() })?;
        relay.shared.uplink.iter().for_each(|uplink| uplink.begin());
        Ok(relay)
    }

    fn start_threads(&mut self, entrance: Entrance) -> io::Result<()> {
        let needs = (&self.budget, &self.shared.book);
        start_all(&self.shared.inboxes, "relay", needs, &mut self.workers)?;
        let thread = std::thread::Builder::new().name("relay-accept".to_string());
        self.entrance = Some(thread.spawn(move || entrance.run())?);
        Ok(())
    }

    /// What is listened on, in the order of the options' lines.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What a person should know: limits that are lower than was asked for, ports that others may take later.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The congestion control towards targets, as a socket told it.
    pub fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Connections at once.
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max
    }

    /// Whether a thread has ended by itself: a defect, or the kernel gives no events.
    pub fn has_failed(&self) -> bool {
        self.workers.iter().chain(&self.entrance).any(JoinHandle::is_finished)
    }

    /// Connections that came to nothing since this was asked last, with the reason in words: those that were to
    /// go over a link. No more than 64 are kept; all are counted.
    pub fn take_refused(&self) -> Vec<Refused> {
        self.shared.book.take_told()
    }

    /// How the link stands, if there is to be one.
    pub fn link(&self) -> Option<LinkStats> {
        self.shared.uplink.as_ref().map(|uplink| uplink.stats())
    }

    /// How it stands, with this many of the fastest connections.
    pub fn snapshot(&self, connections: usize) -> Snapshot {
        self.teller().snapshot(connections)
    }

    /// Tells how the relay stands, from any thread, for as long as it runs.
    pub fn teller(&self) -> Teller {
        let (shared, budget, started) = (self.shared.clone(), self.budget.clone(), self.started);
        Teller::new(move |connections| {
            let told = gathered(&shared.inboxes, connections, started, shared.book.totals());
            let (pipe_bytes, pipes) = budget.used();
            let link = shared.uplink.as_ref().map(|uplink| uplink.stats());
            // Asked last: what a worker has counted as ended lives no more.
            let live = shared.live() as u64;
            Snapshot { live, pipes: pipes as u64, pipe_bytes: pipe_bytes as u64, link, ..told }
        })
    }

    /// Accepts no more, waits for up to `patience` until the connections there are have ended, resets
    /// the rest and ends.
    ///
    /// # Errors
    /// What ended a thread early.
    pub fn stop(mut self, patience: Duration) -> io::Result<()> {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let until = Instant::now() + patience;
        while self.shared.live() > 0 && Instant::now() < until && !self.workers_have_failed() {
            std::thread::sleep(LOOK);
        }
        self.end()
    }

    fn workers_have_failed(&self) -> bool {
        self.workers.iter().any(JoinHandle::is_finished)
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.uplink.iter().for_each(|uplink| uplink.stop());
        self.shared.inboxes.iter().for_each(|inbox| inbox.put(Job::Stop));
        let threads: Vec<_> = self.entrance.take().into_iter().chain(self.workers.drain(..)).collect();
        let panicked = |_| Err(io::Error::other("a thread of the relay panicked"));
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        let ended = ended.fold(Ok(()), Result::and);
        // Now that its connections have gone.
        self.shared.uplink.iter().for_each(|uplink| uplink.end());
        ended
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop`.
        let _ = self.end();
    }
}

fn listen_on(options: &RelayOptions, notes: &mut Vec<String>) -> Result<Vec<Listener>, StartError> {
    let ports = options.redirect_ports.as_deref();
    let listener = |line: &Line| {
        Listener::open(line, ports.unwrap_or_default())
            .map_err(|source| StartError::Listen { address: line.listen, source })
    };
    let listeners: Vec<Listener> = options.lines.iter().map(listener).collect::<Result<_, _>>()?;
    let mut chosen = options.lines.iter().zip(&listeners).filter(|(line, _)| chooses_port(line));
    let is_other = |port: u16| ports.is_some_and(|ports| !ports.contains(&port));
    // Once: a second one is the other family's.
    if let Some((_, listener)) = chosen.find(|(_, listener)| is_other(listener.address.port())) {
        notes.push(exposed(listener.address.port()));
    }
    Ok(listeners)
}

/// Says that what is redirected comes to a port that another user may have after this relay.
fn exposed(port: u16) -> String {
    format!(
        "redirected connections come to port {port}: none that only root can take was free, allowed and not to \
         be caught. If this relay is killed, its rules lead them to whoever takes that port next: give the relay \
         CAP_NET_BIND_SERVICE, or a --port below 1024"
    )
}

/// Tries a congestion control; gives what the socket has then.
fn probe(name: &str) -> Result<String, StartError> {
    let socket = probe_socket()?;
    let refused = |source| StartError::Congestion {
        name: name.to_string(),
        available: tcp::available_congestion().unwrap_or_default().join(", "),
        source,
    };
    tcp::set_congestion(&socket, name).map_err(refused)?;
    Ok(tcp::congestion(&socket)?)
}

fn probe_socket() -> io::Result<std::os::fd::OwnedFd> {
    let socket_of = |family| socket(family, SocketType::STREAM, None);
    Ok(socket_of(AddressFamily::INET).or_else(|_| socket_of(AddressFamily::INET6))?)
}

/// What to set on sockets, if anything, and what they will have.
fn choose(wanted: &Congestion, notes: &mut Vec<String>) -> Result<(Option<String>, String), StartError> {
    let host = || Ok::<_, StartError>(tcp::congestion(probe_socket()?)?);
    match wanted {
        Congestion::Host => Ok((None, host()?)),
        Congestion::Named(name) => probe(name).map(|name| (Some(name.clone()), name)),
        Congestion::BestHere => match probe(tcp::BBR) {
            Ok(name) => Ok((Some(name.clone()), name)),
            Err(StartError::Congestion { source, .. }) => {
                let host = host()?;
                notes.push(format!("this host has no BBR ({source}), so {host} it is: `modprobe tcp_bbr`"));
                Ok((None, host))
            }
            Err(error) => Err(error),
        },
    }
}

/// Raises the limit of open files for so many connections of links; gives how many it is good for.
pub(crate) fn files_for_links(connections_max: usize, notes: &mut Vec<String>) -> usize {
    let files = raise_files((connections_max + FILES_OF_AGENT) as u64);
    let fits = connections_of(usize::try_from(files).unwrap_or(usize::MAX), connections_max);
    if fits < connections_max {
        notes.push(fewer(fits, connections_max, files));
    }
    fits
}

/// Says that there are too few files.
fn fewer(fits: usize, wanted: usize, files: u64) -> String {
    format!(
        "{fits} connections at once instead of {wanted}: the process may open {files} files; raise `ulimit -n`"
    )
}

/// How many connections so many files are good for, beside what an agent needs. Where there are few, it needs half.
fn connections_of(files: usize, connections_max: usize) -> usize {
    (files - FILES_OF_AGENT.min(files / 2)).clamp(1, connections_max.max(1))
}

/// Raises the limit of open files as far as it goes; gives how many connections it is good for.
fn files_for(options: &RelayOptions, notes: &mut Vec<String>) -> usize {
    let pipes = 2 * options.pipes_bytes_max.div_ceil(PIPE_BYTES);
    let wanted = 2 * options.connections_max + pipes + FILES_APART;
    let files = raise_files(wanted as u64);
    let rest = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(FILES_APART);
    // Where there are few files, connections come first: flows without a pipe copy.
    let fits = (rest.saturating_sub(pipes) / 2).max(rest / 4).max(1);
    if fits >= options.connections_max {
        return options.connections_max;
    }
    notes.push(fewer(fits, options.connections_max, files));
    fits
}

/// Lets this process have so many files open, as far as it may; gives how many it may have.
pub fn raise_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let now = limit.current.unwrap_or(u64::MAX);
    if now >= wanted {
        return now;
    }
    let most = limit.maximum.unwrap_or(u64::MAX);
    // A process that may raise the hard limit, too, gets all it wants.
    for (current, maximum) in [(wanted, most.max(wanted)), (wanted.min(most), most)] {
        let maximum = limit.maximum.map(|_| maximum);
        if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).is_ok() {
            return current;
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Destination;

    #[test]
    fn a_port_that_anybody_may_take_is_told_once_where_another_was_wanted() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = [holder.local_addr().unwrap().port()];
        let told = |to: &Destination, ports: Option<&[u16]>| {
            let line = Line { listen: SocketAddr::from(([127, 0, 0, 1], 0)), to: to.clone() };
            let usual = RelayOptions::new(vec![line.clone(), line]);
            let options = RelayOptions { redirect_ports: ports.map(<[u16]>::to_vec), ..usual };
            let mut notes = Vec::new();
            drop(listen_on(&options, &mut notes).unwrap());
            notes.len()
        };
        let fixed = Destination::Fixed { addresses: [SocketAddr::from(([127, 0, 0, 1], 1))].into() };
        assert_eq!(told(&Destination::Redirected, Some(&taken)), 1, "it is not free");
        assert_eq!(told(&Destination::Redirected, Some(&[])), 1, "there is none to choose from");
        assert_eq!(told(&Destination::Redirected, None), 0, "any will do");
        assert_eq!(told(&fixed, Some(&taken)), 0, "no rule leads to it");
    }

    #[test]
    fn an_agent_keeps_files_for_its_links_and_disks() {
        assert_eq!(connections_of(1 << 20, 10_000), 10_000);
        assert_eq!(connections_of(10_000, 10_000), 10_000 - FILES_OF_AGENT);
        assert_eq!((connections_of(1024, 10_000), connections_of(1, 10_000)), (512, 1));
    }
}
