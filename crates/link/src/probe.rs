//! What a link carries, and what limits it: what `drover link test` tells.

use std::sync::mpsc::{Receiver as Failure, RecvTimeoutError, Sender as Failed, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::Sender;
use crate::core::Order;
use crate::error::{LinkError, LinkErrorKind};
use crate::rdma::RdmaState;
use crate::session::Session;
use crate::socket::RDMA;
use crate::stats::{SessionStats, StripeStats};

/// What the far side is asked for, to throw away what comes.
pub const SINK: &[u8] = br#"{"service":"sink"}"#;

/// Connections find their pace, before anything is measured.
pub const SETTLE: Duration = Duration::from_secs(1);

/// Bytes written at a time.
const PIECE_BYTES: usize = 128 << 10;

/// The same where a rate is kept to, at least.
const PACED_BYTES_MIN: u64 = 1024;

/// What one number of connections carried.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Connections.
    pub stripes: usize,
    /// What was carried in bytes a second, as the far side acknowledged it.
    pub goodput: f64,
    /// Shortest and latest round trip, in the kernel's view.
    pub rtt_min: Duration,
    /// Latest round trip, the mean of all connections.
    pub rtt: Duration,
    /// Share of bytes that the kernel had to send again.
    pub again: f64,
    /// Share of the time in which connections had something to send; in which the far side's window was
    /// full; in which this side's send buffer was.
    pub busy: [f64; 3],
    /// The congestion control that the connections have.
    pub congestion: String,
}

/// Waits until a session has so many connections, over RDMA where they are to be, and not longer than `within`.
pub fn wait_for_stripes(session: &Session, stripes: usize, within: Duration) -> bool {
    let until = Instant::now() + within;
    let is_there = |stats: SessionStats| {
        let over_rdma = stats.stripes.iter().filter(|it| it.congestion == RDMA).count();
        match stats.rdma {
            RdmaState::On => over_rdma >= stripes,
            RdmaState::Joining => false,
            RdmaState::Off(_) => stats.stripes.len() >= stripes,
        }
    };
    while !is_there(session.stats()) {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Sends noise to the far side's sink for that long, after a time in which connections find their pace.
///
/// # Errors
/// As the session's calls; `Protocol` if the far side has no sink.
pub fn probe(session: &Session, settle: Duration, time: Duration) -> Result<Probe, LinkError> {
    let (sender, mut receiver) = session.open(Order::Stream, SINK)?.split();
    let found = measured(session, &sender, (settle, time), None, |_| ())?;
    sender.finish()?;
    // What the sink answers comes after all that was sent: the next probe finds the line empty.
    let mut answer = [0; 256];
    while receiver.read(&mut answer)? > 0 {}
    Ok(found)
}

/// As [`probe`], but over with its time whatever the far side does, and with so many bytes a second at most if that is said. What is
/// still on its way then is given up, so the session is of no use for another probe at once.
///
/// # Errors
/// As [`probe`], of what happens before the end.
pub fn probe_within(
    session: &Session,
    (settle, time): (Duration, Duration),
    rate_max: Option<u64>,
) -> Result<Probe, LinkError> {
    let (sender, _receiver) = session.open(Order::Stream, SINK)?.split();
    measured(session, &sender, (settle, time), rate_max, Sender::reset)
}

/// Writes until the time is over, and compares its ends. `over` is called then, before the last piece is waited for.
fn measured(
    session: &Session,
    sender: &Sender,
    (settle, time): (Duration, Duration),
    rate_max: Option<u64>,
    over: impl FnOnce(&Sender),
) -> Result<Probe, LinkError> {
    let noise = noise()?;
    let from = Instant::now() + settle;
    let until = from + time;
    let pace = Pace::new(rate_max);
    let (failed, failure) = channel();
    thread::scope(|scope| {
        let writes = move || write_until(sender, &noise, (until, pace), &failed);
        let writing = thread::Builder::new().name("link-probe".into()).spawn_scoped(scope, writes);
        let writing = writing.map_err(|error| {
            LinkError::new(LinkErrorKind::Unreachable, format!("starting a thread that sends: {error}"))
        })?;
        let stats_at = |at| still_writing(&failure, at).map(|()| (Instant::now(), session.stats()));
        let ends = stats_at(from).and_then(|begin| Ok((begin, stats_at(until)?)));
        over(sender);
        // Why it failed has been told, or no longer matters.
        let _ = writing.join();
        ends.map(|(begin, end)| compared(&begin.1, &end.1, end.0 - begin.0))
    })
}

/// Writes so that no more than so many bytes go in a second, on average since it began.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate_max: Option<u64>,
    began: Instant,
    bytes: u64,
}

impl Pace {
    /// Begins now; nothing holds it back where no rate is said.
    pub fn new(rate_max: Option<u64>) -> Pace {
        Pace { rate_max, began: Instant::now(), bytes: 0 }
    }

    /// How much to write at a time, of so much at most: a hundredth of what goes in a second.
    pub fn piece_bytes(&self, most: usize) -> usize {
        let piece = self.rate_max.map_or(most as u64, |rate| (rate / 100).max(PACED_BYTES_MIN));
        usize::try_from(piece).unwrap_or(most).min(most)
    }

    /// When these bytes, which are written next, may be.
    pub fn takes(&mut self, bytes: usize) -> Instant {
        let due = self
            .rate_max
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64));
        self.bytes += bytes as u64;
        self.began + due
    }
}

fn write_until(
    sender: &Sender,
    noise: &[u8],
    (until, mut pace): (Instant, Pace),
    failed: &Failed<LinkError>,
) {
    loop {
        let noise = &noise[..pace.piece_bytes(noise.len())];
        let due = pace.takes(noise.len());
        thread::sleep(due.min(until).saturating_duration_since(Instant::now()));
        if Instant::now() >= until {
            return;
        }
        if let Err(error) = sender.write_all(noise) {
            // Nobody listens once the time is over.
            let _ = failed.send(error);
            return;
        }
    }
}

/// Waits until then, or for the error that ended the writing before.
fn still_writing(failure: &Failure<LinkError>, until: Instant) -> Result<(), LinkError> {
    match failure.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(error) => Err(error),
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) if Instant::now() >= until => Ok(()),
        Err(RecvTimeoutError::Disconnected) => {
            Err(LinkError::new(LinkErrorKind::Misuse, "the thread that wrote ended by itself"))
        }
    }
}

/// What no compression makes less of, as much as is written at a time.
///
/// # Errors
/// Where this host has no random numbers.
pub fn noise() -> Result<Vec<u8>, LinkError> {
    let mut noise = vec![0; PIECE_BYTES];
    crate::connect::random(&mut noise)?;
    Ok(noise)
}

fn compared(begin: &SessionStats, end: &SessionStats, time: Duration) -> Probe {
    let seconds = time.as_secs_f64().max(1e-6);
    // Those over TCP that RDMA took over from may not have ended yet.
    let carries = |it: &&StripeStats| end.rdma != RdmaState::On || it.congestion == RDMA;
    let stripes = end.stripes.iter().filter(carries).count();
    let mean = |sum: Duration| sum.checked_div(stripes as u32).unwrap_or_default();
    let sum = |stats: &SessionStats, of: fn(&StripeStats) -> u64| stats.stripes.iter().map(of).sum::<u64>();
    let grown = |of: fn(&StripeStats) -> u64| sum(end, of).saturating_sub(sum(begin, of)) as f64;
    let busy = [0, 1, 2].map(|at| {
        let total = |stats: &SessionStats| stats.stripes.iter().map(|it| it.busy[at]).sum::<Duration>();
        total(end).saturating_sub(total(begin)).as_secs_f64() / seconds / stripes.max(1) as f64
    });
    Probe {
        stripes,
        goodput: (end.acknowledged_bytes - begin.acknowledged_bytes) as f64 / seconds,
        rtt_min: end.stripes.iter().filter_map(|it| it.rtt_min.or(it.rtt)).min().unwrap_or_default(),
        rtt: mean(end.stripes.iter().filter_map(|it| it.rtt).sum()),
        again: grown(|it| it.line_bytes_again) / grown(|it| it.line_bytes_sent).max(1.0),
        busy,
        congestion: end.stripes.iter().find(carries).map(|it| it.congestion.clone()).unwrap_or_default(),
    }
}

impl Probe {
    /// Whether RDMA carried it: then no kernel counted what it waited for, nor what was sent again.
    pub fn is_rdma(&self) -> bool {
        self.congestion == RDMA
    }
}

/// Which way was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// This host sent.
    There,
    /// The other one did.
    Back,
}

/// What limits a link, as some probes show it, and what to do about it. The first is what matters most.
pub fn advice(probes: &[Probe], way: Way) -> Vec<String> {
    let Some(best) = probes.iter().max_by(|one, other| one.goodput.total_cmp(&other.goodput)) else {
        return Vec::new();
    };
    let mut advice = Vec::new();
    if best.is_rdma() {
        advice.push("RDMA carries it, and tells nothing of what limits: compare with --rdma never".into());
        return advice;
    }
    // Words of the host that sends, and of the one that receives.
    let (sender, sends, receiver, receives) = match way {
        Way::There => ("this host", "this side", "that host", "the far side"),
        Way::Back => ("that host", "the far side", "this host", "this side"),
    };
    if best.again > 0.001 && best.congestion != drover_tcp::BBR {
        advice.push(format!(
            "{:.2} % of the bytes had to be sent again, and {} slows down for each loss: BBR would not (`drover tune` on {sender})",
            best.again * 100.0,
            best.congestion
        ));
    }
    if best.busy[1] > best.busy[0] * 0.3 {
        advice.push(format!("{receives}'s receive buffers are full: larger ones (`drover tune` on {receiver}), or a slow disk or processor there"));
    }
    if best.busy[2] > best.busy[0] * 0.3 {
        advice.push(format!("{sends}'s send buffers are full: larger ones (`drover tune` on {sender})"));
    }
    if best.busy[0] < 0.5 {
        advice.push(format!(
            "connections had nothing to send for half of the time: {sender}'s processor is what limits"
        ));
    }
    if gains_by_more(probes) {
        advice.push(format!(
            "each connection gets a share only, and {} carry most: connections are limited one by one on the way, or by buffers",
            best.stripes
        ));
    }
    if advice.is_empty() {
        advice.push("the line itself is what limits; a few connections fill it".into());
    }
    advice
}

/// Whether twice the connections carried half as much more, up to four of them at least.
fn gains_by_more(probes: &[Probe]) -> bool {
    let rate = |stripes: usize| probes.iter().find(|it| it.stripes == stripes).map(|it| it.goodput);
    match (rate(1), rate(2), rate(4)) {
        (Some(one), Some(two), Some(four)) => two > one * 1.5 && four > two * 1.5,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(rate: impl Fn(usize) -> f64, change: impl Fn(&mut Probe)) -> Vec<Probe> {
        let one = |stripes| {
            let mut probe = Probe {
                stripes,
                goodput: rate(stripes),
                rtt_min: Duration::from_millis(55),
                rtt: Duration::from_millis(56),
                again: 0.0,
                busy: [1.0, 0.0, 0.0],
                congestion: "bbr".into(),
            };
            change(&mut probe);
            probe
        };
        [1, 2, 4, 8, 16].map(one).to_vec()
    }

    #[test]
    fn what_limits_is_told() {
        let text = |probes: &[Probe]| advice(probes, Way::There).join("; ");
        let line = |_: usize| 1e8;
        assert!(text(&probes(line, |_| {})).contains("the line itself"));
        assert!(text(&probes(|stripes| (stripes as f64 * 2e7).min(1e8), |_| {})).contains("a share only"));
        assert!(text(&probes(line, |it| it.busy[1] = 0.8)).contains("far side's receive buffers"));
        assert!(text(&probes(line, |it| it.busy[2] = 0.8)).contains("this side's send buffers"));
        assert!(text(&probes(line, |it| it.busy[0] = 0.1)).contains("processor"));
        let lossy = probes(line, |it| (it.again, it.congestion) = (0.005, "cubic".into()));
        assert!(text(&lossy).contains("0.50 %") && text(&lossy).contains("cubic"), "{}", text(&lossy));
        assert!(text(&probes(line, |it| it.again = 0.005)).contains("the line itself"), "BBR does not mind");
        assert!(advice(&[], Way::There).is_empty());
        let rdma = probes(line, |it| (it.busy, it.congestion) = ([0.0; 3], RDMA.into()));
        assert!(
            text(&rdma).contains("tells nothing") && !text(&rdma).contains("processor"),
            "{}",
            text(&rdma)
        );
        let back = advice(&probes(line, |it| it.busy = [0.4, 0.3, 0.2]), Way::Back);
        assert!(back[0].starts_with("this side's receive buffers") && back[0].contains("tune` on this host"));
        assert!(
            back[1].starts_with("the far side's send buffers") && back[2].contains("that host's processor")
        );
    }

    #[test]
    fn a_probe_by_order_of_a_peer_ends_with_what_it_found_although_nobody_reads_it() {
        let (one, two) = Session::pair();
        // What was written never comes to an end, and is not even looked at.
        let ms = Duration::from_millis;
        let found = probe_within(&one, (ms(1), ms(50)), None).unwrap();
        assert_eq!(found.stripes, 2);
        drop(two);
    }

    #[test]
    fn a_probe_ends_at_once_when_its_session_or_its_channel_does() {
        let day = Duration::from_secs(86_400);
        let (one, two) = Session::pair();
        thread::scope(|scope| {
            scope.spawn(|| two.accept().unwrap().channel.split().0.reset());
            assert_eq!(probe_within(&one, (day, day), None).unwrap_err().kind, LinkErrorKind::Reset);
            scope.spawn(|| {
                let _incoming = two.accept().unwrap();
                two.close();
            });
            assert!(probe(&one, Duration::ZERO, day).is_err());
        });
    }

    #[test]
    fn a_probe_measures_a_session() {
        let (one, two) = Session::pair();
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok(incoming) = two.accept() {
                    assert_eq!(incoming.opening, SINK);
                    let (sender, mut receiver) = incoming.channel.split();
                    let mut piece = vec![0; 100_000];
                    while receiver.read(&mut piece).unwrap() > 0 {}
                    sender.write_all(b"{}").unwrap();
                    sender.finish().unwrap();
                }
            });
            // On a machine that is busy with others, nothing may have arrived in so short a time.
            let times = (0..9).map(|doubled| Duration::from_millis(200 << doubled));
            let found = times.map(|time| probe(&one, Duration::from_millis(50), time).unwrap());
            let found = found.inspect(|it| assert_eq!(it.stripes, 2)).find(|it| it.goodput > 0.0);
            one.close();
            assert!(found.is_some(), "nothing ever arrived");
        });
    }
}
