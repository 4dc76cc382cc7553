//! What the way past a link carries, which QEMU's own connections would take: the agent listens at a port for a moment, and
//! plain TCP connections with the kernel's own settings are filled from here.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use drover_link::probe::{Pace, noise};
use drover_tcp::{Info, congestion, info, reset_on_close};

use crate::error::Refusal;
use crate::opening::{Announced, Listen, Listening, Opening};
use crate::site::Site;

/// What an agent says that it takes, if it listens to be measured.
pub(crate) const LISTEN: &str = "listen";

/// Ports of which a free one is taken.
pub(crate) const PORTS_MAX: u16 = 256;
/// Connections of one measurement.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// For which an agent listens.
pub(crate) const LISTEN_TIME_MAX: Duration = Duration::from_secs(15);

/// In which a connection is there.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectWay {
    /// An address or name of the other site's host, as it is reached from here.
    pub host: String,
    /// The first and the last port of which a free one is taken; 0 and 0: any.
    pub ports: [u16; 2],
    /// Connections.
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
    /// What was connected to.
    pub address: SocketAddr,
    /// Bytes a second that the other side's kernel acknowledged.
    pub goodput: f64,
    /// Shortest round trip.
    pub rtt_min: Duration,
    /// Share of bytes that the kernel had to send again.
    pub again: f64,
    /// The congestion control of this host's kernel.
    pub congestion: String,
}

/// Refuses an agent that does not listen.
pub(crate) fn check(announced: &Announced) -> Result<(), Refusal> {
    if announced.takes.iter().any(|it| it == LISTEN) {
        return Ok(());
    }
    let why = format!(
        "it is drover {} and does not listen to be measured: update drover on its host, or let guests come there \
         (drover agent run --allow-connect 'unix:/FOLDER/*')",
        announced.version
    );
    Err(Refusal::new(DiskErrorKind::Unsupported, why))
}

impl Site {
    /// What plain TCP connections to the site's host carry.
    ///
    /// # Errors
    /// `Unsupported` if the agent does not listen; when it cannot be asked or refuses; when no connection comes about, or one
    /// breaks.
    pub fn measure_direct(&self, way: &DirectWay) -> Result<DirectProbe, Refusal> {
        check(&self.info()?)?;
        let connections = u16::try_from(way.connections).unwrap_or(u16::MAX);
        let listen = Listen { host: way.host.clone(), ports: way.ports, connections };
        let opened = self.open(&Opening::Listen(listen))?;
        let listening: Listening = self.answer_on(&opened)?;
        let probed = probe(way, &listening);
        // It listens no more, and says so by ending the channel: then there may be another.
        let _ = opened.sender.finish();
        let _ = opened.receiver.receive();
        probed
    }
}

fn probe(way: &DirectWay, listening: &Listening) -> Result<DirectProbe, Refusal> {
    let place = format!("{}:{}", way.host, listening.port);
    let failed = |what: &str, error: &io::Error| {
        Refusal::new(DiskErrorKind::Transient, format!("{what} {place}: {error}"))
    };
    let (first, address) = connect(way, listening.port).map_err(|error| failed("connecting to", &error))?;
    let mut streams = vec![first];
    for _ in 1..way.connections.clamp(1, CONNECTIONS_MAX) {
        let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN);
        streams.push(stream.map_err(|error| failed("connecting to", &error))?);
    }
    let noise = noise()?;
    let from = Instant::now() + way.settle;
    let until = from + way.time;
    let rate_each = way.rate_max.map(|rate| (rate / streams.len() as u64).max(1));
    let ended = thread::scope(|scope| {
        let writers: Vec<ScopedJoinHandle<'_, io::Result<()>>> = streams
            .iter()
            .map(|stream| {
                let (noise, token) = (&noise, listening.token.as_bytes());
                scope.spawn(move || write_until(stream, token, noise, (until, Pace::new(rate_each))))
            })
            .collect();
        let looks = [from, until].map(|at| {
            while Instant::now() < at && !writers.iter().any(ScopedJoinHandle::is_finished) {
                thread::sleep(LOOK_PAUSE.min(at.saturating_duration_since(Instant::now())));
            }
            look(&streams)
        });
        let has_broken = Instant::now() < until;
        for stream in &streams {
            // Nothing of what is on its way is wanted any more, by either side.
            let _ = reset_on_close(stream);
            let _ = stream.shutdown(Shutdown::Both);
        }
        let errors = writers.into_iter().filter_map(|writer| writer.join().ok()?.err());
        match errors.filter(|_| has_broken).last() {
            Some(error) => Err(failed("sending to", &error)),
            None => Ok(looks),
        }
    })?;
    let [begin, end] = ended;
    let (begin, end) = (
        begin.map_err(|error| failed("asking of", &error))?,
        end.map_err(|error| failed("asking of", &error))?,
    );
    let seconds = (end.at - begin.at).as_secs_f64().max(1e-6);
    let grown = |of: fn(&Info) -> u64| end.sum(of).saturating_sub(begin.sum(of)) as f64;
    Ok(DirectProbe {
        address,
        goodput: grown(|it| it.bytes_acknowledged) / seconds,
        rtt_min: end.infos.iter().map(|it| it.rtt_min).min().unwrap_or_default(),
        again: grown(|it| it.bytes_again) / grown(|it| it.bytes_sent).max(1.0),
        congestion: streams.first().and_then(|stream| congestion(stream).ok()).unwrap_or_default(),
    })
}

/// Between two looks whether a connection broke.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

fn connect(way: &DirectWay, port: u16) -> io::Result<(TcpStream, SocketAddr)> {
    let mut why = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in (way.host.as_str(), port).to_socket_addrs()?.take(ADDRESSES_MAX) {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Writes until it is time; an error of before then is one.
fn write_until(
    mut stream: &TcpStream,
    token: &[u8],
    noise: &[u8],
    (until, mut pace): (Instant, Pace),
) -> io::Result<()> {
    stream.write_all(token)?;
    loop {
        let due = pace.takes(noise.len());
        thread::sleep(due.min(until).saturating_duration_since(Instant::now()));
        if Instant::now() >= until {
            return Ok(());
        }
        stream.write_all(noise)?;
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
