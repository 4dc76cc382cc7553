//! What sessions owe, forget and tell, frame by frame: two cores, one connection, no time that passes.

use std::time::Duration;

use drover_wire::{Credits, Frame, Header, Kind};

use super::simulation::small_limits;
use super::{CONTROL_MAX, COUNT_SHIFT, ChannelId, Core, Limits, Moment, Order, Outgoing, Pull, Side, Taken};
use crate::error::LinkErrorKind;
use crate::payload::Payload;

const NOW: Moment = Moment::ZERO;

fn cores(limits: Limits) -> [Core; 2] {
    [Side::Dialler, Side::Listener].map(|side| {
        let mut core = Core::new(side, limits, limits.credits);
        core.stripe_up(1, NOW);
        core
    })
}

fn frame(sent: &Outgoing) -> Frame {
    let (head, body) = sent.payload.bytes().split_at(sent.header.head_bytes.into());
    Frame { header: sent.header, head: head.to_vec(), body: body.to_vec() }
}

/// What one side has to send now.
fn pulled(core: &mut Core) -> Vec<Frame> {
    let (mut all, mut frames) = (Vec::new(), Vec::new());
    while core.pull(1, 1 << 20, NOW, &mut frames) == Pull::Frames {
        all.extend(frames.iter().map(frame));
    }
    all
}

/// Carries frames until nobody has anything to say.
fn carry(cores: &mut [Core; 2]) {
    loop {
        let frames = [pulled(&mut cores[0]), pulled(&mut cores[1])];
        if frames.iter().all(Vec::is_empty) {
            return;
        }
        for (from, frames) in frames.into_iter().enumerate() {
            frames.into_iter().for_each(|frame| cores[1 - from].arrive(1, frame, NOW));
        }
    }
}

fn send(core: &mut Core, id: ChannelId, bytes: usize) -> bool {
    let is_taken = core.reserve_message(id, bytes).unwrap().is_some();
    if is_taken {
        let payload = vec![7; bytes];
        let header = Header::new(Kind::Message, id, 0).with_payload(&payload);
        core.push(id, header, Payload::from(payload));
    }
    is_taken
}

fn leave(core: &mut Core, id: ChannelId) {
    core.drop_sender(id);
    core.drop_receiver(id);
}

#[test]
fn credit_for_what_was_given_up_before_it_was_sent_comes_back() {
    let mut cores = cores(small_limits());
    for round in 0..60 {
        let id = cores[0].open(Order::Messages, b"").unwrap();
        carry(&mut cores);
        cores[1].accept().unwrap().unwrap();
        let late = cores[0].reserve_message(id, 9_000).unwrap().is_some();
        while send(&mut cores[0], id, 10_000) {}
        match round % 3 {
            0 => cores[0].reset(id),
            1 => {
                // The peer reads no more, and this side learns it while all is queued.
                cores[1].drop_receiver(id);
                let stop = pulled(&mut cores[1]);
                stop.into_iter().for_each(|frame| cores[0].arrive(1, frame, NOW));
            }
            _ => {}
        }
        if late {
            let payload = vec![0; 9_000];
            let header = Header::new(Kind::Message, id, 0).with_payload(&payload);
            cores[0].push(id, header, Payload::from(payload));
        }
        cores.iter_mut().for_each(|core| leave(core, id));
        carry(&mut cores);
        assert_eq!(cores[0].memory().0, 0, "round {round}");
        assert_eq!(cores[0].used, cores[1].budget.arrived, "round {round}: what was taken and what came");
    }
    let id = cores[0].open(Order::Messages, b"").unwrap();
    assert!(send(&mut cores[0], id, 20_000), "there is credit");
}

#[test]
fn messages_that_are_withdrawn_never_arrive_cost_nothing_and_all_others_do() {
    let mut cores = cores(small_limits());
    let id = cores[0].open(Order::Messages, b"").unwrap();
    carry(&mut cores);
    for round in 0..60 {
        let headed = |head: u8| {
            let payload = vec![head; 5_000];
            (Header { head_bytes: 1, ..Header::new(Kind::Message, id, 0).with_payload(&payload) }, payload)
        };
        for head in [1, 2, 1] {
            assert!(cores[0].reserve_message(id, 5_000).unwrap().is_some(), "round {round}");
            let (header, payload) = headed(head);
            cores[0].push(id, header, Payload::from(payload));
        }
        assert_eq!(cores[0].withdraw(id, |head| head == [1]), [[1], [1]]);
        carry(&mut cores);
        let Ok(Taken::Some(message)) = cores[1].message(id) else { panic!("the one that is wanted came") };
        assert_eq!((message.head, cores[1].message(id)), (vec![2], Ok(Taken::Wait)));
        carry(&mut cores);
        assert_eq!((cores[0].memory().0, cores[0].used), (0, cores[1].budget.arrived), "round {round}");
    }
    cores[0].finish(id).unwrap();
    assert!(cores[0].withdraw(id, |_| true).is_empty(), "the peer was told how many there are");
    carry(&mut cores);
    assert_eq!(cores[1].message(id), Ok(Taken::End));
}

#[test]
fn channels_that_come_and_go_without_a_connection_take_bounded_memory() {
    let mut core = Core::new(Side::Dialler, small_limits(), small_limits().credits);
    let mut refused = None;
    for _ in 0..CONTROL_MAX {
        match core.open(Order::Stream, b"opening") {
            Ok(id) => leave(&mut core, id),
            Err(error) => refused = Some(error.kind),
        }
    }
    assert!(core.control.len() <= CONTROL_MAX + 4, "{}", core.control.len());
    assert_eq!(refused, Some(LinkErrorKind::Misuse));
}

#[test]
fn a_session_whose_channel_numbers_are_used_up_opens_no_more() {
    let mut cores = cores(small_limits());
    cores[0].opened = (u32::MAX >> COUNT_SHIFT) - 1;
    let last = cores[0].open(Order::Stream, b"").unwrap();
    assert!(cores[0].gather(last, b"the last").unwrap());
    carry(&mut cores);
    assert_eq!(cores[1].piece(last), Ok(Taken::Some(b"the last".to_vec())));
    assert_eq!(cores[0].open(Order::Stream, b"").unwrap_err().kind, LinkErrorKind::Lost);
}

#[test]
fn whoever_takes_the_last_message_wakes_those_who_wait_for_more() {
    let mut cores = cores(small_limits());
    let id = cores[0].open(Order::Messages, b"").unwrap();
    assert!(send(&mut cores[0], id, 10));
    cores[0].finish(id).unwrap();
    // The finish goes ahead of the message.
    carry(&mut cores);
    cores[1].take_wakes();
    assert!(matches!(cores[1].message(id), Ok(Taken::Some(_))));
    assert_eq!(cores[1].take_wakes().receivers, [id]);
    assert_eq!(cores[1].message(id), Ok(Taken::End));
}

#[test]
fn a_finish_wakes_senders_that_wait_for_credit() {
    let mut cores = cores(small_limits());
    let id = cores[0].open(Order::Messages, b"").unwrap();
    while send(&mut cores[0], id, 10_000) {
        carry(&mut cores);
    }
    cores[0].take_wakes();
    cores[0].finish(id).unwrap();
    assert!(cores[0].take_wakes().senders.contains(&id) && cores[0].is_worth_waking(id));
    assert_eq!(cores[0].reserve_message(id, 10_000).unwrap_err().kind, LinkErrorKind::Misuse);
}

#[test]
fn a_peer_that_answers_pings_and_takes_nothing_is_given_up() {
    let limits = Limits { give_up_after: Duration::from_secs(60), ..small_limits() };
    let [mut core, _] = cores(limits);
    let id = core.open(Order::Stream, b"").unwrap();
    assert!(core.gather(id, b"unheard").unwrap());
    for second in 1..=110 {
        let now = Duration::from_secs(second);
        core.heard(1, 1, now);
        core.tick(1, now);
        pulled(&mut core);
    }
    assert_eq!(core.ended(), None);
    for second in 111..=125 {
        let now = Duration::from_secs(second);
        core.heard(1, 1, now);
        core.tick(1, now);
    }
    assert_eq!(core.ended().map(|why| why.kind), Some(LinkErrorKind::Lost));
}

#[test]
fn an_acknowledgement_that_no_connection_can_take_wakes_nobody() {
    let mut cores = cores(small_limits());
    let id = cores[0].open(Order::Messages, b"").unwrap();
    assert!(send(&mut cores[0], id, 10));
    pulled(&mut cores[1]);
    for frame in pulled(&mut cores[0]) {
        cores[1].arrive(1, frame, NOW);
    }
    let later = NOW + Duration::from_millis(500);
    assert!(
        cores[1].due(later).is_some_and(|due| due <= later),
        "a connection that is idle could tell it now"
    );
    cores[1].stripe_down(1, later);
    let next = cores[1].tick(1, later).next;
    assert!(next > later + Duration::from_millis(1), "{next:?}");
}

#[test]
fn time_in_which_nobody_looked_does_not_count() {
    let [mut core, _] = cores(small_limits());
    core.tick(1, Duration::from_secs(1));
    // The process stood still for an hour, and with it its readers.
    let later = Duration::from_secs(3600);
    assert_eq!(core.tick(1, later).kill, [0; 0]);
    core.stripe_down(1, later);
    core.tick(1, later + Duration::from_secs(1));
    let again = later * 2;
    core.tick(1, again);
    assert_eq!(core.ended(), None, "no time to look for a connection");
    (1..=890).for_each(|second| drop(core.tick(1, again + Duration::from_secs(second))));
    assert_eq!(core.ended(), None);
    (891..=910).for_each(|second| drop(core.tick(1, again + Duration::from_secs(second))));
    assert_eq!(core.ended().map(|why| why.kind), Some(LinkErrorKind::Lost));
}

#[test]
fn a_pull_of_nothing_gives_what_connections_need_and_no_bytes() {
    let mut cores =
        cores(Limits { credits: Credits { session: 1 << 20, ..small_limits().credits }, ..small_limits() });
    let id = cores[0].open(Order::Messages, b"").unwrap();
    carry(&mut cores);
    let there = cores[1].open(Order::Messages, b"").unwrap();
    assert!(send(&mut cores[1], there, 100) && send(&mut cores[0], id, 100));
    pulled(&mut cores[1]).into_iter().for_each(|frame| cores[0].arrive(1, frame, NOW));
    let mut frames = Vec::new();
    assert_eq!(cores[0].pull(1, 0, NOW, &mut frames), Pull::Frames);
    assert!(frames.iter().all(|it| it.header.kind == Kind::Ack), "{frames:?}");
    assert_eq!(cores[0].pull(1, 0, NOW, &mut frames), Pull::Idle);
    assert!(!cores[0].is_idle(1) && cores[0].writers_to_wake(NOW).is_empty(), "it comes back by itself");
    assert_eq!(cores[0].pull(1, 1, NOW, &mut frames), Pull::Frames);
    assert_eq!(frames[0].header.kind, Kind::Message);
}

#[test]
fn connections_go_an_eighth_at_a_time_until_as_many_are_left_as_there_should_be() {
    let [mut core, _] = cores(small_limits());
    (2..=16).for_each(|id| core.stripe_up(id, NOW));
    let mut left = vec![core.healthy()];
    for _ in 0..6 {
        core.retire_down_to(8, NOW);
        left.push(core.healthy());
    }
    assert_eq!(left, [16, 14, 12, 10, 8, 8, 8]);
    (0..20).for_each(|_| core.retire_down_to(0, NOW));
    assert_eq!(core.healthy(), 1);
}

#[test]
fn a_connection_that_is_given_up_takes_no_more_and_the_others_do() {
    let [mut core, _] = cores(small_limits());
    core.stripe_up(2, NOW);
    core.retire(1, NOW);
    core.retire(9, NOW);
    assert_eq!((core.is_healthy(1), core.is_healthy(2), core.healthy()), (false, true, 1));
    let id = core.open(Order::Messages, b"").unwrap();
    assert!(send(&mut core, id, 100));
    let given_up: Vec<Kind> = pulled(&mut core).iter().map(|it| it.header.kind).collect();
    assert!(given_up.contains(&Kind::Retire) && !given_up.contains(&Kind::Message), "{given_up:?}");
    assert_eq!(messages(&mut core, 2, NOW).len(), 1);
}

/// A session with two connections that has sent a message over the first one.
fn sent_over_the_first() -> (Core, ChannelId) {
    let limits = Limits::default();
    let mut core = Core::new(Side::Dialler, limits, limits.credits);
    core.stripe_up(1, NOW);
    core.stripe_up(2, NOW);
    let id = core.open(Order::Messages, b"").unwrap();
    core.usual.take(100, Duration::from_millis(50));
    core.usual.take(50_000, Duration::from_millis(80));
    assert!(send(&mut core, id, 50_000));
    assert_eq!(messages(&mut core, 1, NOW).len(), 1);
    assert_eq!(messages(&mut core, 2, NOW), []);
    (core, id)
}

/// Sequences of messages that a connection gets next: one, or more if they are small.
fn messages(core: &mut Core, stripe: u32, now: Moment) -> Vec<u64> {
    let mut frames = Vec::new();
    core.pull(stripe, 10_000, now, &mut frames);
    frames.iter().filter(|it| it.header.kind == Kind::Message).map(|it| it.header.sequence).collect()
}

#[test]
fn in_a_hurry_what_is_under_way_goes_once_more_over_another_connection() {
    let at = |ms| NOW + Duration::from_millis(ms);
    let (mut core, _) = sent_over_the_first();
    assert_eq!(messages(&mut core, 2, at(15)), []);
    core.hurry();
    core.hurry();
    core.take_time();
    assert_eq!(core.overdue_at(), Some(at(10)));
    assert_eq!(messages(&mut core, 2, at(9)), [], "it has hardly left");
    assert_eq!(messages(&mut core, 1, at(15)), [], "it carries it already");
    assert_eq!(messages(&mut core, 2, at(15)).len(), 1);
    assert_eq!(messages(&mut core, 1, at(40)), [], "both carry it");
    assert_eq!(messages(&mut core, 1, at(164)), []);
    assert_eq!(messages(&mut core, 1, at(165)).len(), 1, "neither has brought it");
    let (mut core, _) = sent_over_the_first();
    core.usual.take(50_000, Duration::from_secs(1));
    core.usual.take(100, Duration::from_millis(40));
    (0..100).for_each(|_| core.usual.take(50_000, Duration::from_secs(1)));
    core.hurry();
    assert_eq!(messages(&mut core, 2, at(15)), [], "what waits before the line needs no company there");
    let (mut core, _) = sent_over_the_first();
    core.hurry();
    core.take_time();
    assert_eq!(messages(&mut core, 2, at(15)), [], "nobody waits any more");
}

#[test]
fn in_a_hurry_what_is_late_goes_before_what_is_new() {
    let late = NOW + Duration::from_millis(200);
    for is_hurried in [false, true] {
        let (mut core, id) = sent_over_the_first();
        assert!(send(&mut core, id, 50_000));
        if is_hurried {
            core.hurry();
        }
        // The first frame opened the channel.
        assert_eq!(messages(&mut core, 2, late)[0], if is_hurried { 2 } else { 3 });
    }
}
