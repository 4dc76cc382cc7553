//! How true a line is while nothing else uses it: round trips, and what is lost.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use drover_wan::{Report, Wan, WanSpec};

/// Echoes that are measured.
const ECHOES: usize = 200;

/// Datagrams that are counted: of 0.5 % lost one by one, chance alone moves 2.2 % (one deviation).
const DATAGRAMS: u64 = 400_000;
const DATAGRAM_BYTES: usize = 100;

/// With IP's and UDP's headers.
const PACKET_BYTES: u64 = DATAGRAM_BYTES as u64 + 28;

/// Sent between two looks at the emulator. The kernel holds them in any case.
const STEP: u64 = 64;

/// Less than what any of the lines lets a session have.
const SHARE_OF_RATE: f64 = 0.1;

/// What does not come within a round trip and this was lost.
const LATE: Duration = Duration::from_millis(200);

/// How long the emulator may take for what it was given.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a line was like.
pub struct Idle {
    rtt: Duration,
    /// Median, and what 99 of a hundred stay below.
    found: (Duration, Duration),
    loss: f64,
    /// Of [`DATAGRAMS`], those that did not arrive.
    missed: u64,
    doubt: Option<String>,
}

impl Idle {
    /// Lays the line and measures it.
    pub fn measure(spec: &WanSpec) -> Result<Idle> {
        let wan = Wan::start(spec)?;
        let (near, far) = sockets(&wan)?;
        let rtt = spec.line.up.delay + spec.line.down.delay;
        let found = echoes(&near, &far, rtt)?;
        let rate = spec.line.up.rate.map_or(f64::INFINITY, |rate| rate.bits_per_s() as f64 / 8.0);
        let missed = missed(&wan, (&near, &far), rate * SHARE_OF_RATE)?;
        let report = wan.stop()?;
        Ok(Idle { rtt, found, loss: spec.line.up.loss.value(), missed, doubt: report.doubt() })
    }

    /// In a line.
    pub fn text(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let percent = |share: f64| share * 100.0;
        let doubt = self.doubt.as_ref().map(|why| format!("; in doubt: {why}")).unwrap_or_default();
        format!(
            "idle: round trip set {:.3} ms, measured {:.3} ms (median), {:.3} ms (99 of 100; {ECHOES} echoes); \
             lost set {:.3} %, seen {:.3} % ({} of {DATAGRAMS} one way){doubt}",
            ms(self.rtt),
            ms(self.found.0),
            ms(self.found.1),
            percent(self.loss),
            percent(self.missed as f64 / DATAGRAMS as f64),
            self.missed
        )
    }
}

fn sockets(wan: &Wan) -> Result<(UdpSocket, UdpSocket)> {
    let far = wan.far.run(|| UdpSocket::bind((wan.far.address(), 0)))??;
    let near = wan.near.run(|| UdpSocket::bind((wan.near.address(), 0)))??;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    Ok((near, far))
}

/// Median of the round trips, and what 99 of a hundred stay below. Those that are lost are tried again.
fn echoes(near: &UdpSocket, far: &UdpSocket, rtt: Duration) -> Result<(Duration, Duration)> {
    let is_over = AtomicBool::new(false);
    near.set_read_timeout(Some(rtt + LATE))?;
    far.set_read_timeout(Some(LATE))?;
    let mut times = std::thread::scope(|scope| {
        scope.spawn(|| echo(far, &is_over));
        let times = (0..2 * ECHOES as u64).filter_map(|number| round_trip(near, number));
        let times: Vec<Duration> = times.take(ECHOES).collect();
        is_over.store(true, Ordering::SeqCst);
        times
    });
    ensure!(times.len() == ECHOES, "more than half of the echoes were lost");
    times.sort_unstable();
    Ok((times[ECHOES / 2], times[ECHOES * 99 / 100]))
}

fn echo(far: &UdpSocket, is_over: &AtomicBool) {
    let mut buffer = [0; 8];
    while !is_over.load(Ordering::SeqCst) {
        if far.recv(&mut buffer).is_ok() {
            // What cannot be sent is lost for who asked.
            let _ = far.send(&buffer);
        }
    }
}

fn round_trip(near: &UdpSocket, number: u64) -> Option<Duration> {
    let mut buffer = [0; 8];
    let begun = Instant::now();
    near.send(&number.to_le_bytes()).ok()?;
    // One that was given up and comes late is not this one.
    while near.recv(&mut buffer).is_ok() {
        if u64::from_le_bytes(buffer) == number {
            return Some(begun.elapsed());
        }
    }
    None
}

/// How many of [`DATAGRAMS`] do not arrive, at so many bytes a second and never faster than the emulator takes them.
fn missed(wan: &Wan, (near, far): (&UdpSocket, &UdpSocket), bytes_per_s: f64) -> Result<u64> {
    far.set_nonblocking(true)?;
    let mut come = 0;
    let before = wan.report()?.up.counts.offered_bytes;
    let mut sent = 0;
    while sent < DATAGRAMS {
        let (begun, step) = (Instant::now(), STEP.min(DATAGRAMS - sent));
        for _ in 0..step {
            near.send(&[7; DATAGRAM_BYTES])?;
        }
        sent += step;
        // What was late is not made up for: a line that polices would take that for too fast.
        let until = begun + Duration::from_secs_f64((step * PACKET_BYTES) as f64 / bytes_per_s);
        wait(wan, until, |it| it.up.counts.offered_bytes >= before + sent * PACKET_BYTES)?;
        come += take_all(far);
    }
    wait(wan, Instant::now(), |it| it.up.counts.carried + it.up.counts.gone() == it.up.counts.offered)?;
    // From the device to the socket it is not far.
    std::thread::sleep(LATE);
    come += take_all(far);
    Ok((DATAGRAMS - come).saturating_sub(dropped(wan)?))
}

/// What came to a socket of the far end and found it full, because this program had no processor for too long: the line has not lost it.
fn dropped(wan: &Wan) -> Result<u64> {
    let table = wan.far.run(|| std::fs::read_to_string("/proc/thread-self/net/udp"))??;
    let drops = table.lines().skip(1).filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
    Ok(drops.sum())
}

/// Waits until that moment, and longer until the emulator is so far.
fn wait(wan: &Wan, until: Instant, is_so: impl Fn(&Report) -> bool) -> Result<()> {
    let begun = Instant::now();
    while Instant::now() < until || !is_so(&wan.report()?) {
        ensure!(begun.elapsed() < PATIENCE, "the emulator does not take what it is given");
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn take_all(far: &UdpSocket) -> u64 {
    let mut buffer = [0; DATAGRAM_BYTES];
    let come = std::iter::from_fn(|| far.recv(&mut buffer).ok());
    come.filter(|bytes| *bytes == DATAGRAM_BYTES).count() as u64
}
