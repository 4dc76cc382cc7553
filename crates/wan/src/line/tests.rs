use super::*;

const MTU: u32 = 1_500;

fn spec(bits: u64, delay_ms: u64) -> DirectionSpec {
    DirectionSpec {
        rate: Some(Rate::bits(bits)),
        delay: Duration::from_millis(delay_ms),
        ..DirectionSpec::default()
    }
}

/// 44 segments, as a super-packet at MTU 1500 has.
fn large() -> Segments {
    Segments { header: 52, size: 1_448, last: 700, count: 44 }
}

/// Everything that comes out until the line is empty, with the moment it should arrive.
fn drained(line: &mut Line) -> Vec<(Run, Moment)> {
    let mut out = Vec::new();
    while let Some(wake) = line.wake() {
        while let Some((run, fate)) = line.next(wake) {
            if let Fate::Arrives(at) = fate {
                assert_eq!(at, wake, "told to wake when it arrives");
                out.push((run, at));
            }
        }
    }
    out
}

/// Every segment is accounted for once: what arrived and what is gone.
fn check_invariants(line: &Line, arrived: u64) {
    let counts = line.counts();
    assert_eq!(counts.offered, counts.carried + counts.gone());
    assert_eq!(counts.carried, arrived);
}

#[test]
fn an_idle_line_delays_by_exactly_what_was_asked() {
    let mut line = Line::new(DirectionSpec { rate: None, ..spec(1, 27) }, 1);
    line.offer(Moment(5), 0, Flow::default(), Segments::one(MTU));
    assert_eq!(line.wake(), Some(Moment(27_000_005)));
    assert_eq!(line.next(Moment(27_000_004)), None);
    let run = Run { packet: 0, first: 0, count: 1 };
    assert_eq!(line.next(Moment(27_000_005)), Some((run, Fate::Arrives(Moment(27_000_005)))));
    assert_eq!(line.wake(), None);
}

#[test]
fn the_rate_is_exact_and_the_order_is_kept() {
    let mut line = Line::new(spec(1_000_000_000, 10), 1);
    const PACKETS: u64 = 1_000;
    for packet in 0..PACKETS {
        line.offer(Moment(packet), packet, Flow::default(), large());
    }
    let out = drained(&mut line);
    assert!(out.windows(2).all(|pair| pair[0] < pair[1] && pair[0].1 <= pair[1].1));
    let bytes = PACKETS * (43 * 1_500 + 752);
    assert_eq!(out.last().unwrap().1, Moment(bytes * 8 + 10_000_000), "8 ns a byte, then the delay");
    check_invariants(&line, PACKETS * 44);
    assert_eq!(line.counts().carried_bytes, bytes);
}

#[test]
fn a_super_packet_on_a_slow_line_does_not_arrive_as_one_lump() {
    let mut line = Line::new(spec(100_000_000, 0), 1);
    line.offer(Moment(0), 0, Flow::default(), large());
    let out = drained(&mut line);
    // 1,500 bytes take 120 µs: 9 of them are within a millisecond of the first.
    assert_eq!(out[0], (Run { packet: 0, first: 0, count: 9 }, Moment(9 * 120_000)));
    assert_eq!(out.iter().map(|(run, _)| run.count).sum::<u32>(), 44);
}

#[test]
fn a_full_queue_drops_its_tail() {
    let queue = Some(30_000);
    let mut line = Line::new(DirectionSpec { queue, ..spec(1_000_000_000, 1) }, 1);
    line.offer(Moment(0), 0, Flow::default(), large());
    let out = drained(&mut line);
    assert_eq!(out, [(Run { packet: 0, first: 0, count: 20 }, Moment(20 * 12_000 + 1_000_000))]);
    assert_eq!((line.counts().overflowed, line.counts().queue_max), (24, 30_000));
    check_invariants(&line, 20);
}

#[test]
fn a_packet_larger_than_the_queue_passes_an_idle_line() {
    let mut line = Line::new(DirectionSpec { queue: Some(100), ..spec(1_000_000, 1) }, 1);
    line.offer(Moment(0), 0, Flow::default(), Segments::one(MTU));
    line.offer(Moment(0), 1, Flow::default(), Segments::one(MTU));
    assert_eq!(drained(&mut line).len(), 1);
    assert_eq!(line.counts().overflowed, 1);
}

#[test]
fn loss_is_drawn_for_each_segment_and_cuts_the_packet() {
    let loss = Share::of_one(0.01);
    let mut line = Line::new(DirectionSpec { loss, ..spec(10_000_000_000, 5) }, 11);
    const PACKETS: u64 = 20_000;
    (0..PACKETS).for_each(|packet| line.offer(Moment(packet * 60_000), packet, Flow::default(), large()));
    let arrived = drained(&mut line).iter().map(|(run, _)| u64::from(run.count)).sum::<u64>();
    let lost = line.counts().lost as f64 / (PACKETS * 44) as f64;
    assert!((lost / 0.01 - 1.0).abs() < 0.05, "{lost}");
    check_invariants(&line, arrived);
}

#[test]
fn the_same_seed_loses_the_same_segments() {
    let runs = |seed| {
        let loss = Share::of_one(0.1);
        let mut line = Line::new(DirectionSpec { loss, burst: Some(3.0), ..spec(1_000_000_000, 5) }, seed);
        (0..50).for_each(|packet| line.offer(Moment(packet), packet, Flow::default(), large()));
        drained(&mut line)
    };
    assert_eq!(runs(4), runs(4));
    assert_ne!(runs(4), runs(5));
}

#[test]
fn segments_held_back_are_overtaken_and_nothing_is_lost() {
    let mut line = Line::new(DirectionSpec { reorder: Share::of_one(0.05), ..spec(10_000_000_000, 5) }, 11);
    (0..200).for_each(|packet| line.offer(Moment(packet * 100), packet, Flow::default(), large()));
    let out = drained(&mut line);
    assert!(out.windows(2).all(|pair| pair[0].1 <= pair[1].1), "arrivals are told in order");
    let overtaken = out.windows(2).filter(|pair| pair[0].0 > pair[1].0).count();
    assert!(overtaken > 100, "{overtaken}");
    let held = line.counts().held as f64 / 8_800.0;
    assert!((held / 0.05 - 1.0).abs() < 0.15, "{held}");
    check_invariants(&line, 200 * 44);
}

#[test]
fn nothing_passes_in_an_outage_and_what_was_under_way_arrives() {
    let outages = vec![(Duration::from_secs(3), Duration::from_secs(10))];
    let mut line = Line::new(DirectionSpec { outages, ..spec(1_000_000_000, 20) }, 1);
    let seconds = |at: f64| Moment((at * 1e9) as u64);
    for (packet, at) in [2.999, 3.0, 8.0, 12.999, 13.0].into_iter().enumerate() {
        line.offer(seconds(at), packet as u64, Flow::default(), Segments::one(MTU));
    }
    let arrived: Vec<u64> = drained(&mut line).iter().map(|(run, _)| run.packet).collect();
    assert_eq!(arrived, [0, 4]);
    assert_eq!(line.counts().cut, 3);
}

#[test]
fn a_line_is_cut_and_mended_on_order() {
    let mut line = Line::new(spec(1_000_000_000, 20), 1);
    line.change(Moment(10), &Change::CutUntil(Moment(1_000)));
    assert!(line.is_cut(Moment(999)) && !line.is_cut(Moment(1_000)));
    line.change(Moment(20), &Change::Mend);
    assert!(!line.is_cut(Moment(20)));
}

#[test]
fn a_shorter_delay_lets_nothing_overtake() {
    let mut line = Line::new(spec(1_000_000_000, 50), 1);
    line.offer(Moment(0), 0, Flow::default(), Segments::one(MTU));
    line.change(Moment(1), &Change::Delay(Duration::from_millis(1)));
    line.offer(Moment(2), 1, Flow::default(), Segments::one(MTU));
    let out = drained(&mut line);
    assert_eq!(out.iter().map(|(run, _)| run.packet).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(out[0].1, out[1].1);
}

#[test]
fn jitter_keeps_the_order() {
    let jitter = Duration::from_millis(4);
    let mut line = Line::new(DirectionSpec { jitter, ..spec(1_000_000_000, 20) }, 9);
    let mut last = None;
    for packet in 0..20_000u64 {
        let now = Moment(packet * 40_000);
        line.offer(now, packet, Flow::default(), Segments::one(MTU));
        while let Some((run, _)) = line.next(now) {
            assert!(last < Some(run.packet), "{run:?} after {last:?}");
            last = Some(run.packet);
        }
    }
    assert!(last > Some(19_000));
}

/// Offers twice 1 Gbit/s of each session for a second and tells what arrived of each.
fn of_sessions(spec: DirectionSpec, sessions: u64) -> Vec<u64> {
    let mut line = Line::new(spec, 1);
    let mut arrived = vec![0u64; sessions as usize];
    let mut packet = 0;
    for step in 0..4_000u64 {
        let now = Moment(step * 250_000);
        for session in 0..sessions {
            let flow = Flow { ports: session as u32, ..Flow::default() };
            line.offer(now, packet, flow, large());
            packet += 1;
        }
        while let Some((run, fate)) = line.next(now) {
            if fate != Fate::Gone {
                let segments = run.first..run.first + run.count;
                let bytes: u32 = segments.map(|segment| large().bytes(segment)).sum();
                arrived[(run.packet % sessions) as usize] += u64::from(bytes);
            }
        }
    }
    arrived
}

#[test]
fn policing_and_shaping_hold_each_session_to_its_rate() {
    let rate = Rate::bits(100_000_000);
    let queue = Some(2 << 20);
    let policed = DirectionSpec { police_flow: Some(rate), queue, ..spec(1_000_000_000, 0) };
    let shaped = DirectionSpec { shape_flow: Some(rate), queue, ..spec(1_000_000_000, 0) };
    for spec in [policed, shaped] {
        for bytes in of_sessions(spec.clone(), 4) {
            // 12.5 MB in a second; a policed session may have its bucket on top.
            assert!((12_000_000..13_300_000).contains(&bytes), "{bytes} with {spec:?}");
        }
    }
}

#[test]
fn shaped_sessions_share_a_line_that_is_too_narrow() {
    let shape_flow = Some(Rate::bits(900_000_000));
    let spec = DirectionSpec { shape_flow, queue: Some(1 << 20), ..spec(1_000_000_000, 0) };
    let all: u64 = of_sessions(spec, 3).iter().sum();
    assert!((115_000_000..126_500_000).contains(&all), "{all}");
}

#[test]
fn a_shaped_session_does_not_hold_up_another() {
    let shape_flow = Some(Rate::bits(8_000_000));
    let mut line = Line::new(DirectionSpec { shape_flow, ..spec(1_000_000_000, 0) }, 1);
    let flow = |ports| Flow { ports, ..Flow::default() };
    (0..100).for_each(|packet| line.offer(Moment(0), packet, flow(1), Segments::one(1_000)));
    line.offer(Moment(500_000), 100, flow(2), Segments::one(1_000));
    let out = drained(&mut line);
    let other = out.iter().find(|(run, _)| run.packet == 100).unwrap();
    assert_eq!(other.1, Moment(500_000 + 1_000_000 + 8_000));
    check_invariants(&line, 101);
}
