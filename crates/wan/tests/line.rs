//! The line with real kernels at both ends. Skips, and says so, where no namespaces or TUN devices can be made.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drover_wan::line::units::{Rate, Share};
use drover_wan::line::{LineSpec, Random};
use drover_wan::{Control, Order, Wan, WanError, WanSpec, Ways, tell};

/// For what must come on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// A line, or nothing where there can be none.
fn line(spec: &WanSpec) -> Option<Wan> {
    match Wan::start(spec) {
        Ok(wan) => Some(wan),
        Err(error @ WanError::System { .. }) => {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            println!("SKIPPED: no line can be laid here: {error}: {why}");
            assert!(std::env::var_os("DROVER_NEEDS_WAN").is_none(), "DROVER_NEEDS_WAN is set");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn spec(rate: u64, rtt_ms: u64, loss: f64) -> WanSpec {
    let rtt = Duration::from_millis(rtt_ms);
    WanSpec {
        line: LineSpec::symmetric(Some(Rate::bits(rate)), rtt, Share::of_one(loss)),
        ..WanSpec::default()
    }
}

fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.bits() as u8).collect()
}

/// Sends `up` to an address of the far end and takes `down` back on the same connection; both must arrive as they are.
fn exchange(wan: &Wan, far: IpAddr, up: &[u8], down: &[u8]) {
    let listener = wan.far.run(|| TcpListener::bind(SocketAddr::new(far, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let near = wan.near.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let got = |mut from: &TcpStream, bytes: usize| {
        let mut got = vec![0; bytes];
        from.read_exact(&mut got).unwrap();
        got
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (&near).write_all(up).unwrap());
        scope.spawn(|| (&far).write_all(down).unwrap());
        let there = scope.spawn(|| got(&far, up.len()));
        assert!(got(&near, down.len()) == down, "what came back differs");
        assert!(there.join().unwrap() == up, "what arrived differs");
    });
}

#[test]
fn streams_arrive_whole_over_a_lossy_line_that_cuts_super_packets() {
    for mtu in [1_500, 9_000] {
        let mut spec = WanSpec { mtu, ..spec(1_000_000_000, 2, 0.01) };
        spec.line.up.reorder = Share::of_one(0.01);
        let Some(wan) = line(&spec) else { return };
        let (up, down) = (random_bytes(1, 8 << 20), random_bytes(2, 2 << 20));
        exchange(&wan, wan.far.address().into(), &up, &down);
        if let Some(address) = wan.far.addresses6.first() {
            exchange(&wan, (*address).into(), &up, &down);
        }
        let report = wan.stop().unwrap();
        assert!(report.up.counts.lost > 0 && report.up.counts.held > 0, "{report}");
        assert_eq!(report.up.refused + report.down.refused, 0, "{report}");
        assert!(report.up.counts.offered_bytes > 16 << 20, "{report}");
    }
}

/// Bytes of a datagram with its headers.
const DATAGRAM: u64 = 528;

/// Datagrams that the kernel holds in any case until the line takes them.
const STEP: u64 = 64;

/// Sends datagrams, in steps, each when the line has seen the one before: none of them has to be dropped by the kernel.
fn datagrams(wan: &Wan, count: u64) -> drover_wan::Report {
    let target = SocketAddr::new(wan.far.address().into(), 9);
    let socket = wan.near.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let before = wan.report().unwrap().up.counts.offered_bytes;
    for sent in (0..count).step_by(STEP as usize) {
        let step = STEP.min(count - sent);
        (0..step).for_each(|_| assert_eq!(socket.send_to(&[7; 500], target).unwrap(), 500));
        seen(wan, before + (sent + step) * DATAGRAM);
    }
    seen(wan, before + count * DATAGRAM)
}

/// Waits until the line has seen so many bytes on the way up.
fn seen(wan: &Wan, bytes: u64) -> drover_wan::Report {
    let until = Instant::now() + PATIENCE;
    loop {
        let report = wan.report().unwrap();
        if report.up.counts.offered_bytes >= bytes {
            return report;
        }
        assert!(Instant::now() < until, "{report}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes what has come, and counts it.
fn take_all(socket: &UdpSocket) -> u64 {
    let mut buffer = [0; 600];
    let come = std::iter::from_fn(|| socket.recv(&mut buffer).ok());
    come.filter(|bytes| *bytes == 500).count() as u64
}

/// 100,000 datagrams at 10 %: one deviation is 0.95 % of the share, so that 5 % are missed once in ten million seeds.
#[test]
fn as_many_packets_arrive_as_the_loss_that_was_asked_for_leaves() {
    const COUNT: u64 = 100_000;
    const SHARE: f64 = 0.1;
    let Some(wan) = line(&spec(1_000_000_000, 2, SHARE)) else { return };
    let far = wan.far.run(|| UdpSocket::bind((wan.far.address(), 0))).unwrap().unwrap();
    far.set_nonblocking(true).unwrap();
    let near = wan.near.run(|| UdpSocket::bind((wan.near.address(), 0))).unwrap().unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    let before = wan.report().unwrap().up.counts.offered_bytes;
    let mut come = 0;
    // Each step is sent when what came of the one before was taken: no buffer is ever full.
    for sent in (0..COUNT).step_by(STEP as usize) {
        let step = STEP.min(COUNT - sent);
        (0..step).for_each(|_| assert_eq!(near.send(&[7; 500]).unwrap(), 500));
        let until = Instant::now() + PATIENCE;
        seen(&wan, before + (sent + step) * DATAGRAM);
        loop {
            come += take_all(&far);
            let counts = wan.report().unwrap().up.counts;
            // The kernel may have said a word of its own, which may have been carried, too.
            let own = counts.offered - (sent + step);
            if counts.carried + counts.gone() == counts.offered && come + own >= counts.carried {
                break;
            }
            assert!(Instant::now() < until, "{come} have come: {counts:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    // The last ones may still be on their way from the device to the socket. One that is shorter comes after them.
    wan.handle().order(Order::Loss(Share::NONE, None, Ways::Up)).unwrap();
    near.send(&[7; 499]).unwrap();
    far.set_nonblocking(false).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 600];
    come += std::iter::from_fn(|| Some(far.recv(&mut buffer).unwrap())).take_while(|it| *it == 500).count()
        as u64;
    let report = wan.report().unwrap();
    let (counts, lost) = (report.up.counts, COUNT - come);
    assert_eq!(report.up.faults(), 0, "{report}");
    let own = counts.offered - COUNT - 1;
    assert!(counts.lost >= lost && counts.lost - lost <= own, "{lost} missed: {report}");
    let share = lost as f64 / COUNT as f64;
    assert!((share / SHARE - 1.0).abs() < 0.05, "{share}: {report}");
}

#[test]
fn the_round_trip_is_never_shorter_than_asked() {
    let Some(wan) = line(&spec(1_000_000_000, 40, 0.0)) else { return };
    let far = wan.far.run(|| UdpSocket::bind((wan.far.address(), 0))).unwrap().unwrap();
    let near = wan.near.run(|| UdpSocket::bind((wan.near.address(), 0))).unwrap().unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut buffer = [0; 8];
    for number in 0..5u64 {
        let begun = Instant::now();
        near.send(&number.to_le_bytes()).unwrap();
        far.recv(&mut buffer).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20), "one way in {:?}", begun.elapsed());
        far.send(&buffer).unwrap();
        near.recv(&mut buffer).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(40), "there and back in {:?}", begun.elapsed());
        assert_eq!(u64::from_le_bytes(buffer), number);
    }
}

#[test]
fn a_line_is_cut_and_mended_by_its_control_socket() {
    let Some(wan) = line(&spec(1_000_000_000, 2, 0.0)) else { return };
    let orders = Control::serve(wan.handle()).unwrap();
    assert!(drover_wan::running().unwrap().contains(&orders.path().to_path_buf()));
    assert_eq!(tell(orders.path(), "cut up").unwrap(), "ok");
    let cut = datagrams(&wan, 100).up.counts;
    // The kernel may have said a word of its own before.
    assert!(cut.cut >= 99 && cut.carried < 10, "{cut:?}");
    assert_eq!(tell(orders.path(), "mend").unwrap(), "ok");
    assert_eq!(tell(orders.path(), "rate 2g down").unwrap(), "ok");
    let mended = datagrams(&wan, 100).up.counts;
    assert!(mended.carried >= 99 && mended.cut == cut.cut, "{mended:?}");
    assert!(tell(orders.path(), "status").unwrap().contains("segments carried"));
    assert!(tell(orders.path(), "sing").unwrap_err().to_string().contains("no order 'sing'"));
    let path = orders.path().to_path_buf();
    drop(orders);
    assert!(!path.exists());
}

#[test]
fn a_stream_survives_an_outage() {
    let Some(wan) = line(&spec(1_000_000_000, 2, 0.0)) else { return };
    wan.handle().order(Order::Cut(None, Ways::Both)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&wan, wan.far.address().into(), &random_bytes(1, 1 << 20), &[1]));
        let until = Instant::now() + PATIENCE;
        while wan.report().unwrap().up.counts.cut == 0 {
            assert!(Instant::now() < until, "nothing was ever cut");
            std::thread::sleep(Duration::from_millis(5));
        }
        wan.handle().order(Order::Mend(Ways::Both)).unwrap();
    });
}

#[test]
fn every_address_is_reached_and_the_congestion_control_is_read_back() {
    let reno = Some("reno".to_string());
    let mut spec = spec(1_000_000_000, 2, 0.0);
    (spec.near_addresses, spec.far_addresses) = (5, 2);
    (spec.near_congestion, spec.far_congestion) = (reno.clone(), reno);
    let Some(wan) = line(&spec) else { return };
    assert_eq!((wan.near.congestion.as_str(), wan.far.congestion.as_str()), ("reno", "reno"));
    assert_eq!((wan.near.addresses.len(), wan.far.addresses.len()), (5, 2));
    for address in &wan.far.addresses {
        exchange(&wan, (*address).into(), &[1; 100], &[2; 100]);
    }
}

#[test]
fn a_congestion_control_that_is_not_there_is_an_error_that_names_it() {
    if line(&WanSpec::default()).is_none() {
        return;
    }
    let near_congestion = Some("nosuchcc".to_string());
    let error = Wan::start(&WanSpec { near_congestion, ..WanSpec::default() }).map(drop).unwrap_err();
    assert!(matches!(error, WanError::Ip { .. }), "{error}");
}

#[test]
fn what_still_runs_at_an_end_is_ended_with_the_line() {
    let Some(wan) = line(&WanSpec::default()) else { return };
    // One goes when it is asked, one only when it is killed.
    let mut polite = wan.far.spawn(Command::new("sleep").arg("1000").stdin(Stdio::null())).unwrap();
    let stubborn = "trap '' TERM; echo ready; while true; do sleep 1; done";
    let mut stubborn =
        wan.near.spawn(Command::new("sh").args(["-c", stubborn]).stdout(Stdio::piped())).unwrap();
    let mut ready = [0; 5];
    stubborn.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    wan.stop().unwrap();
    assert!(!polite.wait().unwrap().success());
    assert!(!stubborn.wait().unwrap().success());
}
