//! How many requests are in flight, on how many lanes, and how large they are: found by measuring.
//!
//! ```text
//! what is seen                                      what is done
//! all requests are served at once (latency)         more in flight
//! requests queue up at the source or behind us      fewer in flight: twice what is served at a time
//! one request alone is slow, more do not help       larger requests, while they bring more
//! larger ones do not help either                    more lanes, while they bring more
//! one request alone is fast                         small ones, few: they stay in the cache
//! ```
//!
//! How many are served at a time follows from Little's law: rate times the shortest latency seen. That
//! stays right when this side is the slow one, and when the source queues. Only sizes and lanes have to be
//! tried out: a trial is kept if it brings a clear gain, else undone and not repeated for a while.

use std::time::Duration;

use drover_types::BLOCK_BYTES;

/// Requests of this size keep a fast source, the hash and a local disk busy from the cache.
pub const REQUEST_BYTES_START: u64 = 512 << 10;
/// Four lanes fill a local disk and two cores.
const LANES_START: usize = 4;
/// Requests in flight on a lane at the start.
const DEPTH_START: usize = 2;
/// A request that moves this many bytes a second by itself has no fixed cost worth saving.
const FAST_BYTES_PER_SECOND: f64 = 500e6;
/// A trial is kept if it brings this much more.
const GAIN_MIN: f64 = 1.3;
/// Share of the requests in flight that must be served at once for more to be worth it.
const SERVED_SHARE_MIN: f64 = 0.7;
/// A source that takes this long for its quickest answer is judged by its first answers.
const FAR: Duration = Duration::from_millis(3);
/// And one as far as this gets as much at once as memory allows.
const VERY_FAR: Duration = Duration::from_millis(10);
/// Requests to a far source: half as many of twice the size cost less CPU on both sides, and their answers
/// need not stay in the cache while they wait for each other.
const FAR_REQUEST_BYTES: u64 = 1 << 20;
/// Where the lanes wait for the source for less than this share of their time, the source is not what to
/// improve on.
const WAITING_SHARE_MIN: f64 = 0.4;
/// Shortest time over which a rate is believed.
const MEASURE_MIN: Duration = Duration::from_millis(20);
/// So many requests served at a time are many.
const SERVES_MANY: f64 = 3.0;
/// Before this, a source that serves many requests at a time is not tried with larger ones.
const TRIALS_BEGIN: Duration = Duration::from_millis(500);
/// The first pause between trials; four times as long after each that brought nothing.
const TRIAL_PAUSE: Duration = Duration::from_secs(1);
const TRIAL_PAUSE_MAX: Duration = Duration::from_secs(60);
/// When the rate falls to this share of the best, the line has changed, and its latency is measured anew.
const RATE_FALL: f64 = 0.5;

/// What a window may use. What is `fixed` was set by hand and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Most lanes.
    pub lanes_max: usize,
    /// Most requests in flight on a lane.
    pub depth_max: usize,
    /// Smallest request; a multiple of the block size.
    pub request_min: u64,
    /// Size to start with.
    pub request_start: u64,
    /// Largest request; a multiple of the block size.
    pub request_max: u64,
    /// Most bytes of requests in flight.
    pub bytes_max: u64,
    /// Lanes set by hand.
    pub lanes: Option<usize>,
    /// Requests in flight on each lane, set by hand.
    pub depth: Option<usize>,
    /// Size of requests set by hand.
    pub request: Option<u64>,
}

/// The state of the search. Driven by completions; has no clock of its own.
#[derive(Clone, Debug)]
pub struct Window {
    limits: WindowLimits,
    shape: Shape,
    /// Requests sent under an older shape do not count; this tells them apart.
    generation: u64,
    /// The shortest latency of a request of the present size, or a bound for it.
    latency: Option<Duration>,
    /// The best rate since the latency was last forgotten.
    best_rate: f64,
    measure: Measure,
    starting: bool,
    /// At the start, all requests in flight were served at a time.
    serves_many: bool,
    trial: Option<Trial>,
    trials: Trials,
    more: Pause,
    changes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    lanes: usize,
    in_flight: usize,
    request: u64,
}

/// A rate being measured: from one completion to another, after the first ones of a shape have passed.
#[derive(Clone, Copy, Debug)]
struct Measure {
    skip: usize,
    began: Option<Duration>,
    count: usize,
    bytes: u64,
    /// The shortest latency of its requests.
    shortest: Duration,
    /// What all lanes had waited for the source when it began.
    waited: Duration,
}

/// A request as they come: how long the source takes for one at least, and how large it is.
#[derive(Clone, Copy, Debug)]
struct Usual {
    latency: Duration,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: TrialKind,
    before: Shape,
    latency_before: Option<Duration>,
    rate_before: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrialKind {
    More,
    Larger,
    Lanes,
}

/// A pause before the next trial, longer each time nothing came of one.
#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Pause { length: TRIAL_PAUSE, until: Duration::ZERO }
    }
}

impl Pause {
    fn lengthen(&mut self, now: Duration) {
        self.until = now + self.length;
        self.length = (self.length * 4).min(TRIAL_PAUSE_MAX);
    }
}

/// Trials of larger requests and of more lanes: each once, then a pause.
#[derive(Clone, Copy, Debug)]
struct Trials {
    first: TrialKind,
    failed: usize,
    pause: Pause,
}

impl Default for Trials {
    fn default() -> Self {
        Trials { first: TrialKind::Larger, failed: 0, pause: Pause::default() }
    }
}

impl Trials {
    fn next(&self, now: Duration) -> Option<TrialKind> {
        let other = match self.first {
            TrialKind::Larger => TrialKind::Lanes,
            _ => TrialKind::Larger,
        };
        (now >= self.pause.until).then_some(if self.failed == 0 { self.first } else { other })
    }

    fn failed(&mut self, kind: TrialKind, now: Duration) {
        self.failed += 1;
        if self.failed == 2 {
            (self.first, self.failed) = (kind, 0);
            self.pause.lengthen(now);
        }
    }
}

impl Measure {
    fn after(skip: usize) -> Self {
        Measure { skip, began: None, count: 0, bytes: 0, shortest: Duration::MAX, waited: Duration::ZERO }
    }
}

impl Measure {
    /// Areas that changed come in smaller requests than the window's, and each of them takes what it takes: held against
    /// the time of a large one, or against none, hardly any would seem to be served at a time.
    fn usual(&self, request: u64, latency: Option<Duration>) -> Usual {
        let mean = self.bytes / (self.count as u64).max(1);
        match latency {
            Some(latency) if mean * 2 > request => Usual { latency, bytes: request },
            _ => Usual { latency: self.shortest, bytes: mean },
        }
    }
}

impl Window {
    /// A window at its start.
    pub fn new(limits: WindowLimits) -> Self {
        let lanes = limits.lanes.unwrap_or(LANES_START).clamp(1, limits.lanes_max.max(1));
        let request = limits.request.unwrap_or(limits.request_start);
        let request = request.clamp(limits.request_min.max(BLOCK_BYTES), limits.request_max.max(BLOCK_BYTES));
        let shape = Shape {
            lanes,
            in_flight: lanes * limits.depth.unwrap_or(DEPTH_START).min(limits.depth_max.max(1)),
            request,
        };
        let mut window = Window {
            limits,
            shape,
            generation: 0,
            latency: None,
            best_rate: 0.0,
            measure: Measure::after(0),
            starting: true,
            serves_many: false,
            trial: None,
            trials: Trials::default(),
            more: Pause::default(),
            changes: 0,
        };
        window.shape = window.bounded(shape);
        window
    }

    /// Lanes that may be busy now.
    pub fn lanes(&self) -> usize {
        self.shape.lanes
    }

    /// Requests that one lane may have in flight now.
    pub fn depth(&self) -> usize {
        self.shape.in_flight.div_ceil(self.shape.lanes).clamp(1, self.limits.depth_max.max(1))
    }

    /// Size of the next request.
    pub fn request_bytes(&self) -> u64 {
        self.shape.request
    }

    /// Goes with each request; given back when it ended.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How often the shape was changed.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Sets the bound of bytes in flight. True if the shape changed.
    pub fn set_bytes_max(&mut self, bytes: u64) -> bool {
        let before = self.shape;
        self.limits.bytes_max = bytes;
        self.change(before);
        self.shape != before
    }

    /// A request ended well; all lanes together have waited for the source for `waited` by now. True if
    /// the shape changed.
    pub fn completed(
        &mut self,
        generation: u64,
        bytes: u64,
        latency: Duration,
        waited: Duration,
        now: Duration,
    ) -> bool {
        if generation != self.generation {
            return false;
        }
        if bytes * 2 > self.shape.request {
            self.latency = Some(self.latency.map_or(latency, |best| best.min(latency)));
        }
        let measure = &mut self.measure;
        if measure.skip > 0 {
            measure.skip -= 1;
            if measure.skip == 0 {
                (measure.began, measure.waited) = (Some(now), waited);
            }
            return false;
        }
        let began = *measure.began.get_or_insert(now.saturating_sub(latency));
        measure.count += 1;
        measure.bytes += bytes;
        measure.shortest = measure.shortest.min(latency);
        let usual = measure.usual(self.shape.request, self.latency);
        let elapsed = now.saturating_sub(began);
        // At the very start one round trip tells whether the source serves requests side by side.
        let best = usual.latency;
        // Served side by side, the first answers come together; one by one, a latency apart.
        let is_most = measure.count * 2 > self.shape.in_flight;
        let is_told = is_most || (measure.count >= 2 && elapsed * 2 >= best * 3);
        let early = self.starting && self.changes == 0 && best >= FAR && is_told;
        let whole = measure.count >= self.shape.in_flight && elapsed >= MEASURE_MIN;
        if !early && !whole {
            return false;
        }
        // The first answers cannot come before one latency has passed.
        let time = if early { elapsed.saturating_sub(best).max(best / 8) } else { elapsed };
        let mut rate = measure.bytes as f64 / time.as_secs_f64().max(1e-9);
        if early {
            // No source gives more than what is in flight, once a latency; a few answers that come together
            // would tell of any rate.
            let in_flight = self.shape.in_flight as f64 * usual.bytes as f64;
            rate = rate.min(in_flight / best.as_secs_f64().max(1e-9));
        }
        let share = waited.saturating_sub(measure.waited).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        let is_waiting = share >= WAITING_SHARE_MIN * self.shape.lanes as f64;
        self.measure = Measure { began: Some(now), waited, ..Measure::after(0) };
        self.measured(rate, usual, is_waiting, now)
    }

    fn measured(&mut self, rate: f64, usual: Usual, is_waiting: bool, now: Duration) -> bool {
        if let Some(trial) = self.trial.take() {
            if rate < trial.rate_before * GAIN_MIN {
                self.undo(trial, now);
                return true;
            }
            if trial.kind == TrialKind::More {
                self.more = Pause::default();
            } else {
                self.trials = Trials { first: trial.kind, ..Trials::default() };
            }
        }
        if rate < self.best_rate * RATE_FALL {
            (self.latency, self.best_rate) = (None, rate);
            return false;
        }
        self.best_rate = self.best_rate.max(rate);
        let before = self.shape;
        let latency = usual.latency.as_secs_f64();
        let served = rate * latency / usual.bytes.max(1) as f64;
        let in_flight = before.in_flight as f64;
        if served >= SERVED_SHARE_MIN * in_flight {
            let times = match self.starting {
                true if latency >= VERY_FAR.as_secs_f64() => 16,
                true => 4,
                false => 2,
            };
            if is_waiting && now >= self.more.until {
                self.serves_many |= self.starting && served >= SERVES_MANY;
                let is_far = self.starting && latency >= FAR.as_secs_f64();
                let request = if is_far { before.request.max(FAR_REQUEST_BYTES) } else { before.request };
                let more = Shape { in_flight: before.in_flight * times, request, ..before };
                self.try_shape(TrialKind::More, more, rate);
            }
        } else {
            self.starting = false;
            if served < in_flight / 4.0 {
                self.change(Shape { in_flight: (2.0 * served).ceil() as usize, ..before });
            }
        }
        let is_slow = (usual.bytes as f64) < latency * FAST_BYTES_PER_SECOND;
        // All memory is in flight and all of it is being served: nothing else can help.
        let is_spent = served >= SERVED_SHARE_MIN * in_flight && self.is_memory_full();
        // A source that serves one by one needs larger requests at once. What slows down one that serves many is
        // mostly the rate of something, and a trial would only disturb a short copy.
        let is_time = !self.serves_many || now >= TRIALS_BEGIN;
        if is_waiting && is_slow && !is_spent && is_time && self.trial.is_none() {
            self.try_out(rate, now);
        }
        self.shape != before
    }

    fn is_memory_full(&self) -> bool {
        let Shape { in_flight, request, .. } = self.shape;
        (in_flight as u64 + 1) * request > self.limits.bytes_max
    }

    fn undo(&mut self, trial: Trial, now: Duration) {
        self.starting = false;
        match trial.kind {
            TrialKind::More => {
                self.serves_many = false;
                self.more.lengthen(now);
            }
            kind => self.trials.failed(kind, now),
        }
        self.change(trial.before);
        self.latency = trial.latency_before;
    }

    /// Begins a trial of the kinds that have not failed since the last pause.
    fn try_out(&mut self, rate: f64, now: Duration) {
        let shape = self.shape;
        while let Some(kind) = self.trials.next(now) {
            let tried = match kind {
                TrialKind::Larger => Shape { request: shape.request * 4, ..shape },
                _ => Shape { lanes: shape.lanes * 2, in_flight: shape.in_flight * 2, ..shape },
            };
            if self.try_shape(kind, tried, rate) {
                return;
            }
            self.trials.failed(kind, now);
        }
    }

    /// Begins a trial, unless the limits leave no room for it.
    fn try_shape(&mut self, kind: TrialKind, shape: Shape, rate: f64) -> bool {
        let (before, latency_before) = (self.shape, self.latency);
        self.change(shape);
        let changed = self.shape != before;
        if changed {
            self.trial = Some(Trial { kind, before, latency_before, rate_before: rate });
        }
        changed
    }

    fn change(&mut self, shape: Shape) {
        let shape = self.bounded(shape);
        if shape == self.shape {
            return;
        }
        if shape.request > self.shape.request {
            // A request k times as large takes at most k times as long: a bound until it is measured.
            let times = shape.request.div_ceil(self.shape.request) as u32;
            self.latency = self.latency.map(|latency| latency * times);
        }
        self.shape = shape;
        self.generation += 1;
        self.changes += 1;
        self.measure = Measure::after(shape.in_flight);
    }

    /// The nearest shape within the limits.
    fn bounded(&self, shape: Shape) -> Shape {
        let limits = &self.limits;
        let lanes_max = limits.lanes_max.max(1);
        // Each lane holds one request at least, and another while it writes.
        let fitting = limits.bytes_max / (2 * shape.lanes.min(lanes_max) as u64) / BLOCK_BYTES * BLOCK_BYTES;
        let request = match limits.request {
            Some(request) => request.clamp(BLOCK_BYTES, limits.request_max.max(BLOCK_BYTES)),
            None => {
                shape.request.min(limits.request_max).min(fitting).max(limits.request_min.max(BLOCK_BYTES))
            }
        };
        let depth_max = limits.depth_max.max(1);
        // What is being written takes of the same memory: the copier starts that much less then.
        let by_memory = (limits.bytes_max / request).max(1) as usize;
        let in_flight = shape.in_flight.min(by_memory).min(lanes_max * depth_max);
        let lanes = match limits.lanes {
            Some(lanes) => lanes,
            None => shape.lanes.max(in_flight.div_ceil(depth_max)),
        };
        let lanes = lanes.clamp(1, lanes_max).min(by_memory.max(1));
        let in_flight = match limits.depth {
            Some(depth) => lanes * depth.clamp(1, depth_max),
            None => in_flight.clamp(lanes, lanes * depth_max),
        };
        Shape { lanes, in_flight, request }
    }
}

#[cfg(test)]
mod tests;
