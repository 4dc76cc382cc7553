//! What the way past a link carries, which QEMU's own connections would take: the agent listens at a port for a moment, and
//! plain TCP connections with the kernel's own settings are filled from here.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::probe::{Pace, noise};
use drover_tcp::{Info, info, reset_on_close};

use crate::error::Refusal;
use crate::opening::{Announced, Listen, Listened, Listening, Opening};
use crate::site::{Site, Way};

/// What an agent says that it takes, if it listens to be measured.
pub(crate) const LISTEN: &str = "listen";

/// Ports below are not everybody's to listen at.
pub(crate) const PORT_MIN: u16 = 1024;
/// Ports of which a free one is taken.
pub(crate) const PORTS_MAX: u16 = 256;
/// Connections of one measurement.
pub const CONNECTIONS_MAX: usize = 16;
/// For which an agent listens.
pub(crate) const LISTEN_TIME_MAX: Duration = Duration::from_secs(15);
/// A token is not longer.
const TOKEN_BYTES_MAX: usize = 64;

/// In which a connection is there.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// In which the agent tells what came.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Between two tries to have an agent listen that does so for another program of this host.
const AGAIN: Duration = Duration::from_millis(200);
/// Between two looks whether a connection broke.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectWay {
    /// An address or name of the other site's host, as it is reached from here.
    pub host: String,
    /// The first and the last port of which a free one is taken; 0 and 0: any.
    pub ports: [u16; 2],
    /// Connections, 16 at most.
    pub connections: usize,
    /// In which they find their pace.
    pub settle: Duration,
    /// For which it is measured after that.
    pub time: Duration,
    /// Bytes a second, at most.
    pub rate_max: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectProbe {
    /// Bytes a second that the other side's kernel acknowledged.
    pub goodput: f64,
    /// Shortest round trip.
    pub rtt_min: Duration,
    /// Share of bytes that the kernel had to send again.
    pub again: f64,
}

/// Refuses an agent that does not listen.
fn check(announced: &Announced) -> Result<(), Refusal> {
    if announced.has(LISTEN) {
        return Ok(());
    }
    let why = format!(
        "the agent is drover {} and does not listen to be measured: update drover on its host, or let guests come there \
         (drover agent run --allow-connect 'unix:/FOLDER/*')",
        announced.version
    );
    Err(Refusal::new(DiskErrorKind::Unsupported, why))
}

impl Site {
    /// What plain TCP connections to the site's host carry.
    ///
    /// # Errors
    /// `Unsupported` if the agent does not listen; when it cannot be asked or refuses; when no connection comes about, one
    /// breaks, or the agent had nothing of it.
    pub fn measure_direct(&self, way: &DirectWay) -> Result<DirectProbe, Refusal> {
        let connections = way.connections.clamp(1, CONNECTIONS_MAX);
        self.with_listener(&way.host, way.ports, connections, |listening| {
            let streams = connect_all(&way.host, listening, connections)?;
            probe(way, &streams)
        })
    }

    /// Whether a plain TCP connection comes about to that port of the site's host, at which nobody listens yet.
    ///
    /// # Errors
    /// As [`Site::measure_direct`].
    pub fn reaches_direct(&self, host: &str, port: u16) -> Result<(), Refusal> {
        self.with_listener(host, [port, port], 1, |listening| connect_all(host, listening, 1).map(drop))
    }

    /// Has the agent listen meanwhile, and tell that what was sent came to it.
    fn with_listener<T>(
        &self,
        host: &str,
        ports: [u16; 2],
        connections: usize,
        does: impl FnOnce(&Listening) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        check(&self.info()?)?;
        let connections = u16::try_from(connections).unwrap_or(u16::MAX);
        let listen = Opening::Listen(Listen { host: host.to_string(), ports, connections });
        let until = Instant::now() + LISTEN_TIME_MAX;
        let (opened, listening) = loop {
            let opened = self.open(&listen)?;
            match self.answer_on::<Listening>(&opened) {
                Ok(listening) => break (opened, listening.checked(ports)?),
                Err(refusal) if refusal.kind == DiskErrorKind::Transient && Instant::now() < until => {
                    thread::sleep(AGAIN);
                }
                Err(refusal) => return Err(refusal),
            }
        };
        let done = does(&listening)?;
        // Somebody else may be at this place as it is seen from here.
        match self.told(opened)?.connections {
            came if came >= connections => Ok(done),
            _ => Err(failed_by(host, &listening, "somebody took what was sent, and not the agent")),
        }
    }

    /// What the agent says that came.
    fn told(&self, opened: Way) -> Result<Listened, Refusal> {
        let Way { sender, receiver, .. } = opened;
        let _ = sender.finish();
        let (tell, told) = channel();
        // One that says nothing has this thread wait until its session ends.
        let waits = Builder::new().name("agent-listened".into()).spawn(move || {
            // Nobody listens any more where it took too long.
            let _ = tell.send(crate::site::answered(&receiver));
        });
        waits.map_err(|error| Refusal::new(DiskErrorKind::Failed, format!("starting a thread: {error}")))?;
        let told = told.recv_timeout(TOLD_WITHIN);
        told.unwrap_or_else(|_| Err(Refusal::new(DiskErrorKind::Failed, "the agent does not say what came")))
    }
}

impl Listening {
    /// What an agent said, if it is what was asked for.
    pub(crate) fn checked(self, [first, last]: [u16; 2]) -> Result<Listening, Refusal> {
        let is_wanted = if first == 0 { self.port >= PORT_MIN } else { (first..=last).contains(&self.port) };
        let is_token = (1..=TOKEN_BYTES_MAX).contains(&self.token.len());
        match is_wanted && is_token {
            true => Ok(self),
            false => Err(Refusal::new(
                DiskErrorKind::Corrupt,
                "the agent listens at another port than was asked for",
            )),
        }
    }
}

fn failed(what: &str, host: &str, listening: &Listening, error: &io::Error) -> Refusal {
    failed_by(host, listening, &format!("{what} it: {error}"))
}

fn failed_by(host: &str, listening: &Listening, why: &str) -> Refusal {
    let port = listening.port;
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    Refusal::new(DiskErrorKind::Failed, format!("{place}, where the agent listens: {why}"))
}

/// Connections to where the agent listens, each with the token shown.
fn connect_all(host: &str, listening: &Listening, connections: usize) -> Result<Vec<TcpStream>, Refusal> {
    let failed = |what: &str, error: io::Error| failed(what, host, listening, &error);
    let addresses = (host, listening.port).to_socket_addrs().map_err(|error| failed("finding", error))?;
    let mut why = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    let mut found = None;
    for address in addresses.take(ADDRESSES_MAX) {
        match connect(address, listening) {
            Ok(stream) => {
                found = Some((address, stream));
                break;
            }
            Err(error) => why = error,
        }
    }
    let found = found.ok_or_else(|| failed("connecting to", why));
    let (address, stream) = found.map_err(|refusal| {
        let why = format!("{refusal}; is the port open in the firewall of that host?");
        Refusal::new(refusal.kind, why)
    })?;
    let mut streams = vec![stream];
    while streams.len() < connections {
        streams.push(connect(address, listening).map_err(|error| failed("connecting to", error))?);
    }
    Ok(streams)
}

fn connect(address: SocketAddr, listening: &Listening) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
    stream.write_all(listening.token.as_bytes())?;
    Ok(stream)
}

fn probe(way: &DirectWay, streams: &[TcpStream]) -> Result<DirectProbe, Refusal> {
    let failed = |error: io::Error| {
        Refusal::new(DiskErrorKind::Failed, format!("a connection to {}: {error}", way.host))
    };
    let noise = noise()?;
    let from = Instant::now() + way.settle;
    let until = from + way.time;
    let rate_each = way.rate_max.map(|rate| (rate / streams.len().max(1) as u64).max(1));
    let is_over = AtomicBool::new(false);
    let [begin, end] = thread::scope(|scope| {
        let writers: Vec<ScopedJoinHandle<'_, io::Result<()>>> = streams
            .iter()
            .map(|stream| {
                let (noise, is_over) = (&noise, &is_over);
                let writes = move || match write_until(stream, noise, (until, Pace::new(rate_each))) {
                    Err(error) if !is_over.load(Ordering::Relaxed) => Err(error),
                    Err(_) | Ok(()) => Ok(()),
                };
                Builder::new().name("agent-probe".into()).spawn_scoped(scope, writes)
            })
            .collect::<io::Result<_>>()?;
        let looks = [from, until].map(|at| {
            while Instant::now() < at && !writers.iter().any(ScopedJoinHandle::is_finished) {
                thread::sleep(LOOK_PAUSE.min(at.saturating_duration_since(Instant::now())));
            }
            look(streams)
        });
        is_over.store(true, Ordering::Relaxed);
        for stream in streams {
            // Nothing of what is on its way is wanted any more, by either side.
            let _ = reset_on_close(stream);
            let _ = stream.shutdown(Shutdown::Both);
        }
        let stopped = |_| Err(io::Error::other("the thread that wrote ended by itself"));
        let ended = writers.into_iter().map(|writer| writer.join().unwrap_or_else(stopped));
        ended.collect::<io::Result<Vec<()>>>()?;
        let [begin, end] = looks;
        Ok([begin?, end?])
    })
    .map_err(failed)?;
    let seconds = (end.at - begin.at).as_secs_f64().max(1e-6);
    let grown = |of: fn(&Info) -> u64| end.sum(of).saturating_sub(begin.sum(of)) as f64;
    Ok(DirectProbe {
        goodput: grown(|it| it.bytes_acknowledged) / seconds,
        rtt_min: end.infos.iter().map(|it| it.rtt_min).min().unwrap_or_default(),
        again: grown(|it| it.bytes_again) / grown(|it| it.bytes_sent).max(1.0),
    })
}

/// Writes until it is time.
fn write_until(mut stream: &TcpStream, noise: &[u8], (until, mut pace): (Instant, Pace)) -> io::Result<()> {
    loop {
        let piece = &noise[..pace.piece_bytes(noise.len())];
        let due = pace.takes(piece.len());
        thread::sleep(due.min(until).saturating_duration_since(Instant::now()));
        if Instant::now() >= until {
            return Ok(());
        }
        stream.write_all(piece)?;
    }
}

/// What the kernel told of all connections at a moment.
struct Look {
    at: Instant,
    infos: Vec<Info>,
}

fn look(streams: &[TcpStream]) -> io::Result<Look> {
    let infos = streams.iter().map(info).collect::<io::Result<_>>()?;
    Ok(Look { at: Instant::now(), infos })
}

impl Look {
    fn sum(&self, of: fn(&Info) -> u64) -> u64 {
        self.infos.iter().map(of).sum()
    }
}
