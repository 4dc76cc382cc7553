use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

mod decisions;

const MIB: u64 = 1 << 20;

/// A source and a copier, as far as their timing goes.
#[derive(Clone, Copy)]
struct World {
    /// Fixed time of each request, in microseconds.
    fixed_us: u64,
    /// Requests that a lane's server works on at a time.
    per_lane: usize,
    /// Requests that the source works on at a time, over all lanes.
    overall: usize,
    /// Bytes per second of the source, all lanes together, and of one lane.
    rate: f64,
    lane_rate: f64,
    /// Bytes per second of the copier itself: hash, target.
    own_rate: f64,
    size: u64,
    /// Largest piece that is to be read: areas that changed lie apart.
    area: u64,
}

const WORLD: World = World {
    fixed_us: 50,
    per_lane: 16,
    overall: 256,
    rate: 2.5e9,
    lane_rate: 2.5e9,
    own_rate: 2.0e9,
    size: 4096 * MIB,
    area: u64::MAX,
};

const LIMITS: WindowLimits = WindowLimits {
    lanes_max: 16,
    depth_max: 16,
    request_min: BLOCK_BYTES,
    request_start: REQUEST_BYTES_START,
    request_max: 32 * MIB,
    bytes_max: 64 * MIB,
    lanes: None,
    depth: None,
    request: None,
};

/// What a run looked like.
struct Run {
    seconds: f64,
    /// Time by which each change of the shape was made.
    changes: Vec<f64>,
    end: Window,
    /// Time at which this share of the bytes had been moved.
    rate_of_second_half: f64,
}

/// A resource that serves several at a time.
struct Servers(Vec<f64>);

impl Servers {
    fn new(count: usize) -> Self {
        Servers(vec![0.0; count])
    }

    /// The earliest free one, from `at` on.
    fn pick(&self, at: f64) -> (usize, f64) {
        let (index, free) = self.0.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        (index, free.max(at))
    }
}

fn run(world: World, limits: WindowLimits) -> Run {
    let mut window = Window::new(limits);
    let mut overall = Servers::new(world.overall);
    let mut lanes: Vec<Servers> = (0..limits.lanes_max).map(|_| Servers::new(world.per_lane)).collect();
    let mut lane_pipe = vec![0.0f64; limits.lanes_max];
    let (mut pipe, mut own, mut busy) = (0.0f64, 0.0f64, 0.0f64);
    let mut in_flight = vec![0usize; limits.lanes_max];
    let mut bytes_in_flight = 0;
    let (mut sent, mut done) = (0, 0);
    let mut events = BinaryHeap::new();
    let mut now = 0.0f64;
    let (mut changes, mut half_at) = (Vec::new(), 0.0);
    while done < world.size {
        // Lanes take turns, as threads would.
        loop {
            let ready = (0..window.lanes()).filter(|lane| in_flight[*lane] < window.depth());
            let Some(lane) = ready.min_by_key(|lane| in_flight[*lane]) else { break };
            if sent == world.size {
                break;
            }
            let bytes = window.request_bytes().min(world.area).min(world.size - sent);
            if bytes_in_flight > 0 && bytes_in_flight + bytes > limits.bytes_max {
                break;
            }
            let (slot, start) = lanes[lane].pick(now);
            let (server, start) = overall.pick(start);
            let worked = start + world.fixed_us as f64 / 1e6;
            lane_pipe[lane] = lane_pipe[lane].max(worked) + bytes as f64 / world.lane_rate;
            pipe = pipe.max(worked) + bytes as f64 / world.rate;
            let arrived = lane_pipe[lane].max(pipe);
            lanes[lane].0[slot] = arrived;
            overall.0[server] = arrived;
            own = own.max(arrived) + bytes as f64 / world.own_rate;
            let event = ((own * 1e9) as u64, (arrived * 1e9) as u64, (now * 1e9) as u64, lane, bytes);
            events.push(Reverse((event, window.generation())));
            sent += bytes;
            in_flight[lane] += 1;
            bytes_in_flight += bytes;
        }
        assert!(
            bytes_in_flight <= limits.bytes_max.max(window.request_bytes()),
            "{bytes_in_flight} in flight"
        );
        let Reverse(((at, arrived, began, lane, bytes), generation)) = events.pop().unwrap();
        now = at as f64 / 1e9;
        in_flight[lane] -= 1;
        bytes_in_flight -= bytes;
        done += bytes;
        if done <= world.size / 2 {
            half_at = now;
        }
        let latency = Duration::from_nanos(arrived - began);
        // The copier is busy for as long as its rate says; the rest of the time its lanes wait.
        busy += bytes as f64 / world.own_rate;
        let waited = Duration::from_secs_f64((now - busy).max(0.0)) * window.lanes() as u32;
        if window.completed(generation, bytes, latency, waited, Duration::from_nanos(at)) {
            changes.push(now);
        }
    }
    let rate_of_second_half = world.size as f64 / 2.0 / (now - half_at);
    Run { seconds: now, changes, end: window, rate_of_second_half }
}

/// After the first second or 2 % of the copy the shape stays, but for rare trials.
fn assert_settled(run: &Run) {
    let late = run.changes.iter().filter(|at| **at > (run.seconds * 0.02).max(1.0)).count();
    assert!(late as f64 <= 4.0 + run.seconds, "{late} changes after the start in {} s", run.seconds);
}

#[test]
fn a_fast_local_source_is_read_in_small_requests_few_at_a_time() {
    let run = run(WORLD, LIMITS);
    assert!(run.seconds < 1.05 * WORLD.size as f64 / WORLD.own_rate, "{}", run.seconds);
    assert_eq!(run.end.request_bytes(), REQUEST_BYTES_START);
    assert!(run.end.shape.in_flight <= 16, "{:?}", run.end.shape);
    assert_settled(&run);
}

#[test]
fn latency_is_hidden_by_more_in_flight() {
    for (fixed_us, most_seconds) in [(1_000, 0.33), (5_000, 0.40), (50_000, 0.85), (200_000, 3.0)] {
        let world = World { fixed_us, size: 512 * MIB, ..WORLD };
        let run = run(world, LIMITS);
        assert!(run.seconds < most_seconds, "{fixed_us} us: {} s, {:?}", run.seconds, run.end.shape);
    }
}

/// As a pass of a warm migration reads 256 areas of 64 KiB from a far host.
#[test]
fn small_areas_of_a_far_source_are_asked_for_many_at_a_time() {
    for (fixed_us, round_trips) in [(1000, 30.0), (5000, 14.0), (20_000, 8.0)] {
        let areas = World { fixed_us, area: BLOCK_BYTES, size: 256 * BLOCK_BYTES, ..WORLD };
        let run = run(areas, WindowLimits { lanes_max: 4, ..LIMITS });
        let took = run.seconds * 1e6 / fixed_us as f64;
        assert!(took < round_trips, "{took:.1} times {fixed_us} us for 256 areas, {:?}", run.end.shape);
    }
}

#[test]
fn a_source_that_serves_one_request_at_a_time_gets_large_ones() {
    let world = World { fixed_us: 5_000, overall: 1, size: 512 * MIB, ..WORLD };
    let run = run(world, LIMITS);
    assert!(run.end.request_bytes() >= 8 * MIB, "{:?}", run.end.shape);
    // 1,024 requests of the first size would take 5 s, 64 of 8 MiB take 0.5 s.
    assert!(run.seconds < 0.85, "{}", run.seconds);
    assert_settled(&run);
}

#[test]
fn one_lane_of_one_request_at_a_time_is_served_as_well() {
    let limits = WindowLimits { lanes_max: 1, depth_max: 1, ..LIMITS };
    let world = World { fixed_us: 5_000, per_lane: 1, overall: 1, size: 512 * MIB, ..WORLD };
    let run = run(world, limits);
    assert!(run.seconds < 1.3, "{} {:?}", run.seconds, run.end.shape);
}

#[test]
fn a_capped_rate_is_met_without_growing() {
    let world = World { rate: 100e6, fixed_us: 500, size: 1024 * MIB, ..WORLD };
    let run = run(world, LIMITS);
    assert!(run.seconds < 1.03 * world.size as f64 / world.rate, "{}", run.seconds);
    assert!(run.end.shape.in_flight as u64 * run.end.request_bytes() <= 16 * MIB, "{:?}", run.end.shape);
    assert_settled(&run);
}

#[test]
fn lanes_that_are_capped_each_get_company() {
    let world = World { lane_rate: 50e6, fixed_us: 20_000, size: 4096 * MIB, ..WORLD };
    let run = run(world, LIMITS);
    assert_eq!(run.end.lanes(), 16, "{:?}", run.end.shape);
    assert!(run.rate_of_second_half > 0.9 * 16.0 * 50e6, "{}", run.rate_of_second_half);
}

#[test]
fn a_slow_target_does_not_fill_the_memory() {
    let world = World { fixed_us: 5_000, own_rate: 100e6, size: 1024 * MIB, ..WORLD };
    let run = run(world, LIMITS);
    assert!(run.seconds < 1.05 * world.size as f64 / world.own_rate, "{}", run.seconds);
    assert!(run.end.shape.in_flight as u64 * run.end.request_bytes() <= 32 * MIB, "{:?}", run.end.shape);
}

#[test]
fn what_is_set_by_hand_stays() {
    let limits = WindowLimits { lanes: Some(3), depth: Some(5), request: Some(MIB), ..LIMITS };
    for world in [WORLD, World { fixed_us: 50_000, size: 256 * MIB, ..WORLD }] {
        let end = run(world, limits).end;
        assert_eq!((end.lanes(), end.depth(), end.request_bytes(), end.changes()), (3, 5, MIB, 0));
    }
    let limits = WindowLimits { request: Some(MIB), ..LIMITS };
    let end = run(World { fixed_us: 5_000, overall: 1, size: 512 * MIB, ..WORLD }, limits).end;
    assert_eq!(end.request_bytes(), MIB);
}

#[test]
fn whatever_the_limits_something_is_in_flight_and_nothing_beyond_them() {
    for lanes_max in [1, 2, 3, 16] {
        for depth_max in [1, 4, 16] {
            for bytes_max in [BLOCK_BYTES, MIB, 3 * MIB, 64 * MIB] {
                for (request_min, request_max) in
                    [(BLOCK_BYTES, BLOCK_BYTES), (BLOCK_BYTES, 2 * MIB), (MIB, 32 * MIB)]
                {
                    let limits =
                        WindowLimits { lanes_max, depth_max, bytes_max, request_min, request_max, ..LIMITS };
                    for fixed_us in [50, 20_000] {
                        let end = run(World { fixed_us, size: 64 * MIB, ..WORLD }, limits).end;
                        assert!((1..=lanes_max).contains(&end.lanes()));
                        assert!((1..=depth_max).contains(&end.depth()));
                        assert!((request_min..=request_max).contains(&end.request_bytes()));
                    }
                }
            }
        }
    }
}

#[test]
fn a_smaller_share_of_memory_is_kept_to_at_once() {
    let mut window = Window::new(LIMITS);
    let before = (window.lanes(), window.depth(), window.request_bytes());
    assert!(!window.set_bytes_max(64 * MIB), "nothing changed");
    assert_eq!(window.changes(), 0);
    assert!(window.set_bytes_max(MIB));
    assert_eq!(window.changes(), 1);
    let after = (window.lanes(), window.depth(), window.request_bytes());
    assert_ne!(before, after);
    assert!(after.0 as u64 * after.1 as u64 * after.2 <= MIB, "{after:?}");
    assert!(!window.set_bytes_max(MIB));
    assert_eq!(window.changes(), 1);
}
