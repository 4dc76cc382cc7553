//! The way back: an agent sends to be measured, within bounds, and to those who know how to take it.

use std::sync::Arc;
use std::time::Duration;

use drover_agent::opening::{Answer, Call, Opening, Refused};
use drover_agent::{Measured, Places, Site};
use drover_disk::DiskErrorKind;
use drover_link::{Channel, Order, Session};

use crate::stage::Stage;

fn stage() -> Stage {
    Stage::new(Places::default())
}

/// Asks for a measurement, and for nothing of what it needs on this side.
fn ask(session: &Session, time_ms: u64) -> Channel {
    let opening = serde_json::to_vec(&Opening::Rpc(Call::Measure { time_ms })).unwrap();
    session.open(Order::Messages, &opening).unwrap()
}

fn answer(channel: Channel) -> Answer<Measured> {
    let (_sender, receiver) = channel.split();
    let message = receiver.receive().unwrap().unwrap();
    serde_json::from_slice(&message.body).unwrap()
}

fn refused(channel: Channel) -> Refused {
    match answer(channel) {
        Answer::Refused(refused) => refused,
        Answer::Ok(measured) => panic!("{measured:?}"),
    }
}

#[test]
fn the_agent_sends_and_tells_what_came_of_it() {
    // On a machine that is busy with others, nothing may have arrived in so short a time.
    let found = (0..6).map(|doubled| Duration::from_millis(300 << doubled)).find(|time| {
        let site = stage().site();
        site.check_back().unwrap();
        let told = site.measure_back(*time).unwrap();
        site.hang_up();
        assert_eq!((told.connections, told.limit_bytes_per_s), (2, None));
        told.goodput_bytes_per_s > 0.0
    });
    assert!(found.is_some(), "nothing ever arrived");
}

#[test]
fn a_peer_that_takes_nothing_is_not_sent_to_for_ever_and_has_one_measurement_at_a_time() {
    let session = stage().site().session().unwrap();
    let first = ask(&session, 9000);
    // It came: the agent's stream is here, and stays unread.
    let sink = session.accept().unwrap();
    assert_eq!(sink.opening, drover_link::probe::SINK);
    let second = refused(ask(&session, 1));
    assert!(second.why.contains("1 measurements open"), "{second:?}");
    let too_long = refused(ask(&session, 61_000));
    assert!(too_long.why.contains("measurements open"), "{too_long:?}");
    // What it sent until then was measured even so.
    let Answer::Ok(told) = answer(first) else { panic!("refused") };
    assert_eq!(told.connections, 2);
    let too_long = refused(ask(&session, 61_000));
    assert!(too_long.why.contains("60 s at most"), "{too_long:?}");
    drop(sink);
}

#[test]
fn an_agent_of_before_is_told_as_what_to_update_and_asked_for_nothing() {
    let dial = || {
        let (here, there) = Session::pair();
        std::thread::spawn(move || {
            while let Ok(incoming) = there.accept() {
                assert_eq!(incoming.opening, br#"{"service":"rpc","call":"info"}"#);
                let (sender, _receiver) = incoming.channel.split();
                let info = r#"{"ok":{"version":"0.0.9","pools":[],"devices":[],"takes":["machine"]}}"#;
                sender.send(&[], info.as_bytes()).unwrap();
                // The one who asked may have gone with its answer already.
                let _ = sender.finish();
            }
        });
        Ok(here)
    };
    let site: Arc<Site> = Site::new("b", dial);
    for refusal in [site.check_back().unwrap_err(), site.measure_back(Duration::from_millis(1)).unwrap_err()]
    {
        assert_eq!(refusal.kind, DiskErrorKind::Unsupported);
        assert!(refusal.why.contains("drover 0.0.9") && refusal.why.contains("update drover"), "{refusal}");
    }
}
