//! Statistics for Prometheus: its text format, and the smallest HTTP server that can hand it out.

use std::fmt::{Display, Write};
use std::io::{self, ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::stats::{LinkStats, Snapshot, Totals, Waits};
use crate::teller::Teller;

/// A request's head; what is longer is refused.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// From the connection to the end of its head, and of the answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(100);

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The metrics of a relay, or of the far end of a pair, in Prometheus's text format (version 0.0.4).
pub fn text(snapshot: &Snapshot) -> String {
    let mut page = Page(String::new());
    let totals = &snapshot.totals;
    page.single("drover_relay_connections", "gauge", "Connections now.", snapshot.live);
    page.single("drover_relay_pipes", "gauge", "Pipes that hold bytes or are kept for it.", snapshot.pipes);
    page.single("drover_relay_pipe_bytes", "gauge", "What the pipes can hold.", snapshot.pipe_bytes);
    counts(&mut page, totals);
    refusals(&mut page, totals);
    page.family("drover_relay_bytes_total", "counter", "Bytes relayed; up is towards the target.");
    page.sample("drover_relay_bytes_total", &[("direction", "up")], totals.up_bytes);
    page.sample("drover_relay_bytes_total", &[("direction", "down")], totals.down_bytes);
    let help = "Time of flows by what it was spent on: moving, or waiting for source, target, the link's line or rate limit.";
    page.family("drover_relay_flow_seconds_total", "counter", help);
    waits(&mut page, "up", &totals.up_waits);
    waits(&mut page, "down", &totals.down_waits);
    peers(&mut page, snapshot);
    snapshot.link.iter().for_each(|told| link(&mut page, told, totals.saved_bytes));
    page.0
}

fn peers(page: &mut Page, snapshot: &Snapshot) {
    let name = "drover_relay_peer_connections";
    if !snapshot.peers.is_empty() {
        page.family(name, "gauge", "Connections of each peer, which may have half of all.");
    }
    for (peer, count) in &snapshot.peers {
        page.sample(name, &[("peer", peer)], count);
    }
}

fn link(page: &mut Page, told: &LinkStats, saved_bytes: u64) {
    let help = "Bytes that did not have to go over the link because they were packed, both ways.";
    page.single("drover_relay_link_saved_bytes_total", "counter", help, saved_bytes);
    let mut gauge = |name: &str, help: &str, value: f64| page.single(name, "gauge", help, value);
    gauge(
        "drover_relay_link_up",
        "Whether the link has a connection.",
        f64::from(u8::from(told.state == "up")),
    );
    gauge("drover_relay_link_connections", "TCP connections of the link.", told.connections as f64);
    gauge("drover_relay_link_rtt_seconds", "Its round trip.", told.rtt_us as f64 / 1e6);
    gauge("drover_relay_link_held_bytes", "Taken here and not acknowledged there.", told.held_bytes as f64);
    gauge("drover_relay_link_unread_bytes", "Come here and not taken by clients.", told.unread_bytes as f64);
    gauge(
        "drover_relay_link_waiting",
        "Clients that the agent has not answered.",
        (told.asking + told.waiting) as f64,
    );
}

fn counts(page: &mut Page, totals: &Totals) {
    let mut counter = |name: &str, help: &str, value: u64| page.single(name, "counter", help, value);
    counter("drover_relay_accepted_total", "Connections accepted from clients.", totals.accepted);
    counter("drover_relay_connected_total", "Connections that reached their target.", totals.connected);
    counter("drover_relay_closed_total", "Connections that both sides ended.", totals.closed);
    counter("drover_relay_reset_total", "Connections that one side reset.", totals.reset);
    let help = "Segments that the relay's sockets sent again.";
    counter("drover_relay_segments_again_total", help, totals.segments_again);
}

fn refusals(page: &mut Page, totals: &Totals) {
    let name = "drover_relay_refused_total";
    page.family(name, "counter", "Connections that came to nothing, by reason.");
    for (reason, count) in &totals.refused {
        page.sample(name, &[("reason", reason.word())], count);
    }
}

fn waits(page: &mut Page, direction: &str, waits: &Waits) {
    let seconds = |us: u64| us as f64 / 1e6;
    for (state, us) in [
        ("moving", waits.moving_us),
        ("source", waits.source_us),
        ("target", waits.target_us),
        ("line", waits.line_us),
        ("rate", waits.rate_us),
    ] {
        let labels = [("direction", direction), ("state", state)];
        page.sample("drover_relay_flow_seconds_total", &labels, seconds(us));
    }
}

/// Hands the metrics out over HTTP, one request at a time. Dropped, it stops.
pub struct MetricsServer {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens, and answers `GET /metrics` from now on.
    ///
    /// # Errors
    /// Those of listening.
    pub fn start(address: SocketAddr, teller: Teller) -> io::Result<MetricsServer> {
        MetricsServer::with_patience(address, teller, REQUEST_TIME_MAX)
    }

    fn with_patience(address: SocketAddr, teller: Teller, patience: Duration) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = is_stopping.clone();
        let thread = std::thread::Builder::new().name("relay-metrics".to_string());
        let thread = thread.spawn(move || serve(&listener, &teller, &stopping, patience))?;
        Ok(MetricsServer { address, is_stopping, thread: Some(thread) })
    }

    /// What is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell, not even that it panicked: metrics are no part of the relaying.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, teller: &Teller, is_stopping: &AtomicBool, patience: Duration) {
    while !is_stopping.load(Ordering::Relaxed) {
        match listener.accept() {
            // One who asks and does not listen is the one who misses something.
            Ok((stream, _)) => drop(Visit { stream, is_stopping, patience }.answer(teller)),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// One who asks. Whoever says nothing does not hold up the end.
struct Visit<'a> {
    stream: TcpStream,
    is_stopping: &'a AtomicBool,
    patience: Duration,
}

impl Visit<'_> {
    fn answer(mut self, teller: &Teller) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(LOOK))?;
        self.stream.set_write_timeout(Some(LOOK))?;
        let head = self.read_head()?;
        let (status, body) = match head.split(' ').collect::<Vec<_>>()[..] {
            ["GET", "/metrics", ..] => ("200 OK", text(&teller.snapshot(0))),
            ["GET", ..] => ("404 Not Found", "the metrics are at /metrics\n".to_string()),
            _ => ("405 Method Not Allowed", "only GET\n".to_string()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        self.write_all((head + &body).as_bytes())
    }

    /// The request's first line, once its head has come to its end.
    fn read_head(&mut self) -> io::Result<String> {
        let until = Instant::now() + self.patience;
        let (mut head, mut part) = (Vec::new(), [0; 1024]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let bytes = self.wait(until, |stream| stream.read(&mut part))?;
            if bytes == 0 || head.len() + bytes > HEAD_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            head.extend_from_slice(&part[..bytes]);
        }
        Ok(String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_string())
    }

    fn write_all(&mut self, mut rest: &[u8]) -> io::Result<()> {
        let until = Instant::now() + self.patience;
        while !rest.is_empty() {
            match self.wait(until, |stream| stream.write(rest))? {
                0 => return Err(ErrorKind::WriteZero.into()),
                bytes => rest = &rest[bytes..],
            }
        }
        Ok(())
    }

    /// Calls again until something comes of it, time is up, or the server is to stop.
    fn wait<T>(
        &mut self,
        until: Instant,
        mut call: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.is_stopping.load(Ordering::Relaxed) || Instant::now() > until {
                return Err(ErrorKind::TimedOut.into());
            }
            match call(&mut self.stream) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Refusal;

    #[test]
    fn each_family_is_told_once_with_its_samples_behind_it() {
        let mut snapshot = Snapshot { live: 3, ..Snapshot::default() };
        snapshot.totals.up_bytes = 1 << 40;
        snapshot.totals.up_waits.target_us = 1_500_000;
        snapshot.totals.refuse(Refusal::TargetRefused);
        let text = text(&snapshot);
        for line in [
            "drover_relay_connections 3",
            "drover_relay_bytes_total{direction=\"up\"} 1099511627776",
            "drover_relay_flow_seconds_total{direction=\"up\",state=\"target\"} 1.5",
            "drover_relay_refused_total{reason=\"target_refused\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut once = types.clone();
        once.dedup();
        assert_eq!((types.len(), text.lines().filter(|it| it.starts_with("# HELP")).count()), (11, 11));
        assert_eq!(types, once);
    }

    #[test]
    fn who_says_nothing_does_not_hold_up_the_end() {
        // Longer than the test waits.
        let patience = Duration::from_secs(3600);
        let teller = Teller::new(|_| Snapshot::default());
        let server = MetricsServer::with_patience("127.0.0.1:0".parse().unwrap(), teller, patience).unwrap();
        let mut asking = TcpStream::connect(server.address()).unwrap();
        asking.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        // Time to be taken up; if it is not, the test shows less.
        std::thread::sleep(3 * LOOK);
        let (told, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            told.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn peers_are_named_whatever_they_are_called() {
        let peers = [("a", 2), ("b\\\"\n", 1)].map(|(name, count)| (name.to_string(), count)).into();
        let text = text(&Snapshot { peers, ..Snapshot::default() });
        for line in [
            "drover_relay_peer_connections{peer=\"a\"} 2",
            "drover_relay_peer_connections{peer=\"b\\\\\\\"\\n\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn a_link_has_families_of_its_own() {
        let told = LinkStats {
            state: "up".to_string(),
            rtt_us: 55_000,
            asking: 2,
            waiting: 3,
            ..LinkStats::default()
        };
        let text = text(&Snapshot { link: Some(told), ..Snapshot::default() });
        for line in
            ["drover_relay_link_up 1", "drover_relay_link_rtt_seconds 0.055", "drover_relay_link_waiting 5"]
        {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }
}
