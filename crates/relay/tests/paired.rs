//! A paired relay: connections over a link, to ports behind the other end.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{
    MIB, client, connect_to, is_full_down, is_full_up, is_reset, is_turned_away, listener, noise, pair,
    read_all, refusing, send, stuff, turns_away, wait_for,
};
use drover_link::{Channel, Limits, Order, RateLimit, Receiver, Session};
use drover_relay::address::Pairing;
use drover_relay::rule::Policy;
use drover_relay::{
    ConnectionStats, DialError, Form, Line, Ports, Refusal, Relay, RelayOptions, Snapshot, Via, announcement,
};
use drover_tcp as tcp;
use serde_json::Value;

/// What the far end does with a channel.
type Connect = Arc<dyn Fn((&str, Form), Channel) + Send + Sync>;

/// The far end: connects what it is asked for, as an agent does.
fn attend(session: Session, connect: Connect) {
    std::thread::spawn(move || {
        while let Ok(incoming) = session.accept() {
            let opening: Value = serde_json::from_slice(&incoming.opening).unwrap();
            assert_eq!(opening["service"], "connect");
            let form = if opening["pieces"] == true { Form::Pieces } else { Form::Plain };
            let (to, connect) = (opening["to"].as_str().unwrap().to_string(), connect.clone());
            std::thread::spawn(move || connect((&to, form), incoming.channel));
        }
    });
}

/// A relay whose every session is a new pair, and the far ends of the sessions that were dialled.
struct Scene {
    relay: Relay,
    ports: Arc<Ports>,
    far: Arc<Mutex<Vec<Session>>>,
    dials: Arc<AtomicUsize>,
}

fn ports(allowed: &str, connections_max: usize) -> Arc<Ports> {
    let allowed = vec![allowed.parse().unwrap()];
    Arc::new(Ports::start(allowed, common::PATIENCE, connections_max).unwrap())
}

fn line(to: &str) -> Line {
    let (host, port) = to.rsplit_once(':').unwrap();
    let (listen, host) = ("127.0.0.1:0".parse().unwrap(), host.to_string());
    Line::far(&Pairing { listen, host, port: port.parse().unwrap() }, false).unwrap()
}

fn address(target: &TcpListener) -> String {
    target.local_addr().unwrap().to_string()
}

fn scene_of(lines: Vec<Line>, ports: Arc<Ports>, policy: &str) -> Scene {
    scene_over(|| Session::pair_of(Limits::default(), &announcement(), None), true, lines, ports, policy)
}

/// A link of a relay's own to the other site.
fn via(dial: impl Fn() -> Result<Session, DialError> + Send + Sync + 'static, packs: bool) -> Option<Via> {
    let (site, dial) = ("b".to_string(), Arc::new(dial));
    Some(Via { site, dial, is_shared: false, packs, takes_over: false })
}

/// A scene over such sessions, whose near end packs or does not.
fn scene_over(
    session: impl Fn() -> (Session, Session) + Send + Sync + 'static,
    packs: bool,
    lines: Vec<Line>,
    ports: Arc<Ports>,
    policy: &str,
) -> Scene {
    let far: Arc<Mutex<Vec<Session>>> = Arc::default();
    let dials = Arc::new(AtomicUsize::new(0));
    let (kept, counted, connecting) = (far.clone(), dials.clone(), ports.clone());
    let dial = move || {
        let (near, there) = session();
        counted.fetch_add(1, Ordering::Relaxed);
        kept.lock().unwrap().push(there.clone());
        let ports = connecting.clone();
        // That it was not connected is told to the near end.
        attend(there, Arc::new(move |asked, channel| drop(ports.connect(&common::peer(), asked, channel))));
        Ok(near)
    };
    let options = RelayOptions {
        policy: Policy::parse(policy).unwrap(),
        via: via(dial, packs),
        workers: 2,
        ..RelayOptions::new(lines)
    };
    Scene { relay: Relay::start(&options).unwrap(), ports, far, dials }
}

fn scene(target: &TcpListener, allowed: &str, policy: &str) -> Scene {
    scene_of(vec![line(&address(target))], ports(allowed, 10_000), policy)
}

/// A relay whose agent does with channels what it likes.
fn scene_with(connect: impl Fn(&str, Channel) + Send + Sync + 'static) -> Relay {
    let connect: Connect = Arc::new(move |(to, _), channel| connect(to, channel));
    let dial = move || {
        let (near, there) = Session::pair();
        attend(there, connect.clone());
        Ok(near)
    };
    let via = via(dial, true);
    Relay::start(&RelayOptions { via, workers: 1, ..RelayOptions::new(vec![line("h:1")]) }).unwrap()
}

fn exchange(relay: &Relay, target: &TcpListener, seed: u64) {
    common::exchange(pair(relay, target), seed, 9 * MIB + 7, 5 * MIB + 3);
}

#[test]
fn bytes_and_ends_go_both_ways_over_a_link() {
    let target = listener();
    let scene = scene(&target, "127.0.0.0/8:1-65535", "");
    exchange(&scene.relay, &target, 1);
    exchange(&scene.relay, &target, 3);
    let told = wait_for(&scene.relay, "the end", |it| it.totals.closed == 2);
    assert_eq!((told.totals.accepted, told.totals.connected, told.totals.reset), (2, 2, 0));
    assert_eq!(told.totals.up_bytes, 2 * (9 * MIB as u64 + 7));
    assert_eq!(scene.dials.load(Ordering::Relaxed), 1, "one session is enough");
    let link = told.link.unwrap();
    assert_eq!((link.site.as_str(), link.state.as_str(), link.asking), ("b", "up", 0));
}

#[test]
fn one_way_may_end_long_before_the_other() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = pair(&scene.relay, &target);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&far), b"question");
    far.write_all(b"answer").unwrap();
    drop(far);
    assert_eq!(read_all(&near), b"answer");
}

/// A pair of which each end has heard the other, so that it is there for both ends of the link.
fn talking(scene: &Scene, target: &TcpListener) -> (TcpStream, TcpStream) {
    let (mut near, mut far) = pair(&scene.relay, target);
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(b"y").unwrap();
    near.read_exact(&mut [0]).unwrap();
    (near, far)
}

#[test]
fn resets_are_carried_over_both_ways() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (near, mut far) = talking(&scene, &target);
    tcp::reset_on_close(&near).unwrap();
    drop(near);
    assert!(is_reset(&mut far));
    let (mut near, far) = talking(&scene, &target);
    tcp::reset_on_close(&far).unwrap();
    drop(far);
    assert!(is_reset(&mut near));
    let told = wait_for(&scene.relay, "the resets", |it| it.totals.reset == 2 && it.live == 0);
    assert_eq!(told.totals.closed, 0);
}

#[test]
fn a_reset_comes_through_although_nobody_reads_or_writes() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    for (near_goes, resets) in [(true, 1), (false, 2)] {
        // One that was not answered yet would be refused and not reset.
        let (near, far) = talking(&scene, &target);
        // Both ways are full: neither end of the link has anything to try.
        stuff(&scene.relay, &near, "a full way up", is_full_up);
        stuff(&scene.relay, &far, "a full way down", is_full_down);
        let (goes, mut stays) = if near_goes { (near, far) } else { (far, near) };
        tcp::reset_on_close(&goes).unwrap();
        drop(goes);
        // What had come before may be read; then the reset comes, and no end.
        let mut rest = Vec::new();
        let error = stays.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        wait_for(&scene.relay, "the end", |it| it.totals.reset == resets && it.live == 0);
    }
}

#[test]
fn what_the_far_end_does_not_allow_is_reset_and_told_with_what_to_try() {
    let target = listener();
    for allowed in ["10.0.0.0/8:1-65535", "127.0.0.1:1", "localhost:1-65535"] {
        let scene = scene(&target, allowed, "");
        assert!(turns_away(&scene.relay), "{allowed}");
        wait_for(&scene.relay, "the refusal", |it| it.totals.refused.get(&Refusal::SitePolicy) == Some(&1));
        let told = scene.relay.take_refused();
        assert!(told[0].why.contains(&format!("--allow-connect {}", address(&target))), "{told:?}");
    }
}

#[test]
fn a_target_that_is_not_there_is_told_as_such() {
    let refusing = refusing();
    let gone = refusing.address.to_string();
    // No resolver asks anybody for such a name.
    let scene = scene_of(vec![line(&gone), line("no..such..host:7")], ports("*:1-65535", 9), "");
    for (at, reason) in [(0, Refusal::TargetRefused), (1, Refusal::TargetUnreachable)] {
        assert!(is_turned_away(scene.relay.addresses()[at]));
        wait_for(&scene.relay, "the refusal", |it| it.totals.refused.get(&reason) == Some(&1));
    }
    let told: Vec<_> = scene.relay.take_refused().into_iter().map(|it| it.target).collect();
    assert_eq!(told, [gone, "no..such..host:7".to_string()]);
}

#[test]
fn the_agent_has_a_bound_of_its_own() {
    let target = listener();
    let scene = scene_of(vec![line(&address(&target))], ports("*:1-65535", 4), "");
    // Of one peer, half of the places.
    let _two = [pair(&scene.relay, &target), pair(&scene.relay, &target)];
    assert!(turns_away(&scene.relay));
    assert_eq!(scene.ports.live(), 2);
    wait_for(&scene.relay, "the refusal", |it| it.totals.refused.get(&Refusal::Limit) == Some(&1));
}

#[test]
fn the_policy_and_its_rates_hold() {
    let target = listener();
    // 125 KB a second: no machine is slower than that.
    let limited = scene(&target, "*:1-65535", "allow from 127.0.0.0/8 rate 1m");
    let (near, far) = pair(&limited.relay, &target);
    let content = noise(5, 200_000);
    let sending = [send(&near, content.clone()), send(&far, content.clone())];
    assert!(read_all(&near) == content && read_all(&far) == content);
    sending.into_iter().for_each(|it| it.join().unwrap());
    let told = wait_for(&limited.relay, "the end", |it| it.totals.closed == 1).totals;
    assert!(told.up_waits.rate_us > 0 && told.down_waits.rate_us > 0, "{told:?}");
    let denied = scene(&target, "*:1-65535", "deny from 127.0.0.0/8");
    assert!(turns_away(&denied.relay));
    wait_for(&denied.relay, "the refusal", |it| it.totals.refused.contains_key(&Refusal::Policy));
}

#[test]
fn some_go_over_the_link_some_directly_and_some_not_at_all() {
    let targets = [listener(), listener(), listener()];
    let [over, past, nowhere] = [0, 1, 2].map(|at: usize| targets[at].local_addr().unwrap().port());
    let policy = format!("direct to 127.0.0.0/8 port {past}\ndeny port {nowhere}\nallow port {over}\n");
    let lines = targets.iter().map(|target| line(&address(target))).collect();
    let scene = scene_of(lines, ports("*:1-65535", 9), &policy);
    let mut streams: Vec<_> = (0..2)
        .map(|at| {
            let mut near = connect_to(scene.relay.addresses()[at]);
            near.write_all(b"x").unwrap();
            (near, common::accept(&targets[at]))
        })
        .collect();
    assert!(is_turned_away(scene.relay.addresses()[2]));
    for (_, far) in &mut streams {
        far.read_exact(&mut [0]).unwrap();
    }
    let are_both = |it: &Snapshot| it.connections.iter().filter(|it| it.up.bytes == 1).count() == 2;
    let told = wait_for(&scene.relay, "both", are_both);
    let mut told: Vec<_> = told.connections.iter().map(|it| (it.rule, it.is_linked)).collect();
    told.sort_unstable();
    assert_eq!(told, [(Some(0), false), (Some(2), true)]);
    assert_eq!(scene.ports.live(), 1);
}

#[test]
fn a_name_goes_over_the_link_as_it_was_written() {
    let (seen, asked) = std::sync::mpsc::channel();
    let relay = scene_with(move |to, channel| {
        seen.send(to.to_string()).unwrap();
        drop(channel);
    });
    assert!(turns_away(&relay));
    assert_eq!(asked.recv_timeout(common::PATIENCE).unwrap(), "h:1");
    // It went away without an answer.
    let is_told = |it: &Snapshot| it.live == 0 && it.totals.refused.contains_key(&Refusal::Link);
    assert_eq!(wait_for(&relay, "the refusal", is_told).totals.connected, 0);
}

/// Waits until the near end has said its last byte, or gives the channel up.
fn until_given_up(mut receiver: Receiver) {
    while receiver.read(&mut [0; 99]).is_ok_and(|bytes| bytes > 0) {}
}

#[test]
fn an_agent_that_answers_nonsense_is_not_believed() {
    let relay = scene_with(|_, channel| {
        let (sender, receiver) = channel.split();
        let _ = sender.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        until_given_up(receiver);
    });
    assert!(turns_away(&relay));
    wait_for(&relay, "the refusal", |it| it.totals.refused.contains_key(&Refusal::Link));
    assert!(relay.take_refused()[0].why.contains("makes no sense"));
}

#[test]
fn a_slow_reader_is_waited_for_and_holds_a_bounded_part_of_memory() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (near, mut far) = pair(&scene.relay, &target);
    // Sockets of both ends, and what a stream has at first: nobody reads, so it gets no more.
    let (sent, _) = stuff(&scene.relay, &near, "the wait", is_full_up);
    wait_for(&scene.relay, "the end of what was under way", |told| {
        let link = told.link.as_ref().unwrap();
        // Room for a head of a piece and less is a piece of one byte.
        let is_bounded = |it: &ConnectionStats| it.up.held_bytes <= 1;
        is_full_up(told) && link.held_bytes <= 512 << 10 && told.connections.iter().all(is_bounded)
    });
    // Another one goes on meanwhile.
    exchange(&scene.relay, &target, 11);
    near.shutdown(Shutdown::Write).unwrap();
    let (mut read, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        match far.read(&mut piece).unwrap() {
            0 => break,
            bytes => read += bytes,
        }
    }
    assert_eq!(read, sent);
}

#[test]
fn a_session_that_ended_resets_its_connections_and_the_next_one_dials_again() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = talking(&scene, &target);
    let session = scene.far.lock().unwrap().pop().unwrap();
    session.close();
    assert!(is_reset(&mut near) && is_reset(&mut far));
    wait_for(&scene.relay, "the reset", |it| it.totals.reset == 1);
    // The end of the session comes after those of its channels.
    wait_for(&scene.relay, "the end", |it| it.link.as_ref().is_some_and(|it| it.state == "ended"));
    exchange(&scene.relay, &target, 9);
    assert_eq!(scene.dials.load(Ordering::Relaxed), 2);
}

#[test]
fn a_stop_resets_what_is_left() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let (mut near, mut far) = talking(&scene, &target);
    scene.relay.stop(Duration::ZERO).unwrap();
    assert!(is_reset(&mut near) && is_reset(&mut far));
}

#[test]
fn without_an_agent_clients_are_reset_and_the_next_ones_wait_for_no_second_try() {
    let dials = Arc::new(AtomicUsize::new(0));
    let counted = dials.clone();
    let dial = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Err("nobody there".into())
    };
    let via = via(dial, true);
    let relay = Relay::start(&RelayOptions { via, ..RelayOptions::new(vec![line("x:1")]) }).unwrap();
    for _ in 0..50 {
        assert!(turns_away(&relay));
    }
    wait_for(&relay, "the refusals", |it| it.totals.refused.get(&Refusal::Link) == Some(&50));
    let told = relay.take_refused();
    assert_eq!((told.len(), told[0].why.as_str()), (50, "no link to b: nobody there"));
    assert_eq!(relay.link().unwrap().state, "down");
    // One at the start, and one a second; however slow this machine is, not one for each client.
    assert!(dials.load(Ordering::Relaxed) < 50);
}

#[test]
fn hundreds_that_come_at_once_wait_for_their_turn() {
    let target = listener();
    let scene = scene(&target, "*:1-65535", "");
    let echo = std::thread::spawn(move || {
        let echoing: Vec<_> = (0..600).map(|_| echo(common::accept(&target))).collect();
        echoing.into_iter().for_each(|it| it.join().unwrap());
    });
    let mut clients: Vec<TcpStream> = (0..600).map(|_| client(&scene.relay)).collect();
    for (number, near) in clients.iter_mut().enumerate() {
        near.write_all(&(number as u32).to_le_bytes()).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
    }
    for (number, near) in clients.iter().enumerate() {
        assert_eq!(read_all(near), (number as u32).to_le_bytes());
    }
    echo.join().unwrap();
    let told = wait_for(&scene.relay, "the end", |it| it.totals.closed == 600);
    assert_eq!((told.totals.connected, told.live), (600, 0));
}

fn echo(stream: TcpStream) -> std::thread::JoinHandle<()> {
    let echoing = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
        let mut writer = stream.try_clone().unwrap();
        std::io::copy(&mut &stream, &mut writer).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    echoing.unwrap()
}

#[test]
fn clients_of_a_target_that_never_answers_keep_no_others_waiting() {
    // An agent that answers for "good", and of "silent" keeps the channel without a word.
    let kept: Arc<Mutex<Vec<Channel>>> = Arc::default();
    let silent = kept.clone();
    let connect: Connect = Arc::new(move |(to, _), channel| match to {
        "good:1" => {
            let (sender, receiver) = channel.split();
            sender.write_all(&[0, 0, 0, 0, b'y']).and_then(|()| sender.finish()).unwrap();
            // Given up at once, the client might see a reset behind what was said, and no end.
            until_given_up(receiver);
        }
        _ => silent.lock().unwrap().push(channel),
    });
    let dial = move || {
        let (near, there) = Session::pair();
        attend(there, connect.clone());
        Ok(near)
    };
    let via = via(dial, true);
    let lines = vec![line("silent:1"), line("good:1")];
    let relay = Relay::start(&RelayOptions { via, workers: 1, ..RelayOptions::new(lines) }).unwrap();
    let silent: Vec<TcpStream> = (0..300).map(|_| connect_to(relay.addresses()[0])).collect();
    wait_for(&relay, "the silent ones", |it| it.live == 300 && !kept.lock().unwrap().is_empty());
    for _ in 0..3 {
        let good = connect_to(relay.addresses()[1]);
        assert_eq!(read_all(&good), b"y");
    }
    let link = relay.snapshot(0).link.unwrap();
    assert!(link.asking >= 1 && link.asking + link.waiting >= 300, "{link:?}");
    drop(silent);
}

/// A scene over a line of 2 MB a second each way: no machine packs as slowly.
fn slow_scene(target: &TcpListener) -> Scene {
    let session = || {
        let rate = Arc::new(RateLimit::new(Some(2_000_000)));
        Session::pair_of(Limits::default(), &announcement(), Some(rate))
    };
    scene_over(session, true, vec![line(&address(target))], ports("*:1-65535", 9), "")
}

/// Byte `at` of a text that has no end.
fn text(at: usize) -> u8 {
    b"drover moves machines"[at % 21] ^ (at / 65_521) as u8
}

/// Writes text until it is told to stop; gives how much that was.
fn write_text(mut stream: TcpStream, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut at = 0;
        while !stop.load(Ordering::Relaxed) {
            let piece: Vec<u8> = (at..at + (64 << 10)).map(text).collect();
            stream.write_all(&piece).unwrap();
            at += piece.len();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        at
    })
}

/// Reads text to its end; gives how much that was.
fn read_text(mut stream: TcpStream) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let (mut at, mut piece) = (0, vec![0; 256 << 10]);
        loop {
            let bytes = stream.read(&mut piece).unwrap();
            assert!(
                piece[..bytes].iter().enumerate().all(|(on, byte)| *byte == text(at + on)),
                "from {at} on"
            );
            at += bytes;
            if bytes == 0 {
                return at;
            }
        }
    })
}

#[test]
fn what_packs_takes_less_of_a_slow_line_both_ways() {
    let target = listener();
    let scene = slow_scene(&target);
    let (near, far) = pair(&scene.relay, &target);
    let mut saved = 0;
    for (from, to) in [(&near, &far), (&far, &near)] {
        let stop: Arc<AtomicBool> = Arc::default();
        let writing = write_text(from.try_clone().unwrap(), stop.clone());
        let reading = read_text(to.try_clone().unwrap());
        let more = |it: &Snapshot| it.totals.saved_bytes > saved + 8 * MIB as u64;
        saved = wait_for(&scene.relay, "a gain", more).totals.saved_bytes;
        stop.store(true, Ordering::Relaxed);
        assert_eq!(writing.join().unwrap(), reading.join().unwrap());
        saved = scene.relay.snapshot(0).totals.saved_bytes.max(saved);
    }
    let told = wait_for(&scene.relay, "the end", |it| it.totals.closed == 1);
    let (link, totals) = (told.link.unwrap(), told.totals);
    let (went, all) = (link.up_bytes + link.down_bytes, totals.up_bytes + totals.down_bytes);
    assert!(went + totals.saved_bytes / 2 < all, "{went} of {all}, {} saved", totals.saved_bytes);
}

#[test]
fn noise_goes_as_it_is() {
    let target = listener();
    let scene = slow_scene(&target);
    common::exchange(pair(&scene.relay, &target), 5, 5 * MIB, 3 * MIB);
    let told = wait_for(&scene.relay, "the end", |it| it.totals.closed == 1);
    assert_eq!((told.totals.saved_bytes, told.totals.up_bytes), (0, 5 * MIB as u64));
}

#[test]
fn an_agent_of_before_and_one_that_shall_not_get_streams_as_they_are() {
    let target = listener();
    let seen: Arc<Mutex<Vec<Form>>> = Arc::default();
    for (announced, packs) in [(Vec::new(), true), (announcement(), false), (announcement(), true)] {
        let (ports, seen) = (ports("*:1-65535", 9), seen.clone());
        let connect: Connect = Arc::new(move |(to, form), channel| {
            seen.lock().unwrap().push(form);
            ports.connect(&common::peer(), (to, form), channel).unwrap();
        });
        let dial = move || {
            let (near, there) = Session::pair_of(Limits::default(), &announced, None);
            attend(there, connect.clone());
            Ok(near)
        };
        let via = via(dial, packs);
        let lines = vec![line(&address(&target))];
        let relay = Relay::start(&RelayOptions { via, workers: 1, ..RelayOptions::new(lines) }).unwrap();
        exchange(&relay, &target, 7);
    }
    assert_eq!(*seen.lock().unwrap(), [Form::Plain, Form::Plain, Form::Pieces]);
}

#[test]
fn an_agent_whose_pieces_are_none_is_told_by_what_is_wrong() {
    // Connected; a piece "ok"; then one that would stand for 16 MiB.
    let said = [&[0, 0, 0, 0][..], &[0, 2, 0, 0, 2, 0, 0, 0], b"ok", &[1, 9, 0, 0, 0, 0, 0, 1]].concat();
    let connect: Connect = Arc::new(move |_, channel| {
        channel.sender().write_all(&said).unwrap();
        // Until the near end gives it up.
        let (_sender, receiver) = channel.split();
        until_given_up(receiver);
    });
    let dial = move || {
        let (near, there) = Session::pair_of(Limits::default(), &announcement(), None);
        attend(there, connect.clone());
        Ok(near)
    };
    let via = via(dial, true);
    let relay = Relay::start(&RelayOptions { via, ..RelayOptions::new(vec![line("x:1")]) }).unwrap();
    let mut near = client(&relay);
    let mut got = Vec::new();
    assert_eq!(near.read_to_end(&mut got).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(got, b"ok");
    wait_for(&relay, "the reset", |it| it.totals.reset == 1);
    let told = relay.take_refused();
    assert_eq!(told[0].why, "a piece of 9 bytes that are to stand for 16777216");
}

#[test]
fn a_peer_whose_pieces_are_none_has_its_target_reset() {
    let target = listener();
    let ports = ports("*:1-65535", 9);
    let (near, there) = Session::pair();
    let connecting = ports.clone();
    attend(there, Arc::new(move |asked, channel| drop(connecting.connect(&common::peer(), asked, channel))));
    let opening = format!(r#"{{"service":"connect","to":"{}","pieces":true}}"#, address(&target));
    for (sent, ends, why) in [
        (&[9; 8][..], false, "a piece is packed by a codec of number 9, which there is not"),
        (&[0, 5, 0, 0, 5, 0, 0, 0, 1], true, "the stream ended in the midst of a piece"),
        (&[2, 3, 0, 0, 9, 0, 0, 0, 1, 2, 3], false, "a packed piece does not unpack to 9 bytes"),
    ] {
        let channel = near.open(Order::Stream, opening.as_bytes()).unwrap();
        let mut far = common::accept(&target);
        let (sender, _receiver) = channel.split();
        sender.write_all(sent).unwrap();
        if ends {
            sender.finish().unwrap();
        }
        let error = far.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{why}");
        let until = std::time::Instant::now() + common::PATIENCE;
        let told = loop {
            match ports.take_broken().pop() {
                Some(told) => break told,
                None => assert!(std::time::Instant::now() < until, "nothing is told"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(told.why, why);
    }
    // Told before its place is given back.
    let until = std::time::Instant::now() + common::PATIENCE;
    while ports.live() > 0 {
        assert!(std::time::Instant::now() < until, "{} places are never given back", ports.live());
        std::thread::sleep(Duration::from_millis(5));
    }
}
