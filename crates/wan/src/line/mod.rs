//! *Pure*: what a long line does to packets, on a clock that the caller keeps.
//!
//! ```text
//!  offer ─ outage? ─ policer ─ shaper ─ queue, rate ─ lost? ─ delay ─ next
//!             per session ^         ^ tail drop
//! ```
//!
//! A packet is a run of segments: a super-packet as the kernel hands it over has many of the same size, any other one. Every
//! segment is policed, queued, paid for and lost by itself; those that come through together arrive together,
//! when the last bit of the last one would. A run never takes the line for longer than [`RUN_TIME_MAX`], so that on a
//! slow line a super-packet does not arrive as one lump.
//!
//! What is lost has used the line before it was: it is the far end that misses it.

mod counts;
mod flow;
mod loss;
pub mod packet;
mod random;
pub mod ring;
mod spec;
#[cfg(test)]
mod tests;
mod time;
mod wander;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

pub use counts::{Counts, Lateness};
pub use flow::{BUCKET_MIN, BUCKET_TIME, FLOWS_MAX, Flow, Policer, Shaper};
pub use loss::Loss;
pub use random::Random;
pub use spec::{DirectionSpec, LineSpec, OUTAGES_MAX, QUEUE_MIN, REORDER_BY};
pub use time::{Moment, RateClock};
pub use wander::Wander;

pub use drover_types::units;
use units::{Rate, Share};

/// Segments that arrive together take the line for at most this long; one that takes longer arrives alone.
pub const RUN_TIME_MAX: Duration = Duration::from_millis(1);

/// The segments of one packet: `count` of them with a header each, all with the same payload but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Bytes of all headers from IP on.
    pub header: u32,
    /// Payload of each but the last.
    pub size: u32,
    /// Payload of the last.
    pub last: u32,
    /// How many.
    pub count: u32,
}

impl Segments {
    /// A packet that is one segment of `bytes`.
    pub fn one(bytes: u32) -> Segments {
        Segments { header: bytes, size: 0, last: 0, count: 1 }
    }

    /// Bytes of segment `number` on the line.
    pub fn bytes(&self, number: u32) -> u32 {
        self.header + if number + 1 == self.count { self.last } else { self.size }
    }
}

/// Some segments of one packet, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The packet, as the caller numbered it.
    pub packet: u64,
    /// The first segment.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, and should have at this moment.
    Arrives(Moment),
    /// It does not.
    Gone,
}

/// A change while the line is in use.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Nothing passes until this moment.
    CutUntil(Moment),
    /// All passes again, whatever was cut or planned to be.
    Mend,
    /// Another loss.
    Loss(Share, Option<f64>),
    /// Another rate. The queue stays as large as it was.
    Rate(Option<Rate>),
    /// Another one-way delay. Packets keep their order.
    Delay(Duration),
}

/// One direction of a line.
#[derive(Debug)]
pub struct Line {
    spec: DirectionSpec,
    random: Random,
    loss: Loss,
    wander: Wander,
    policer: Option<Policer>,
    shaper: Option<Shaper>,
    clock: RateClock,
    cut_until: Moment,
    shaped: BinaryHeap<Reverse<Shaped>>,
    /// In order of arrival.
    arriving: VecDeque<(Moment, Run)>,
    /// Held back; few.
    held: BinaryHeap<Reverse<(Moment, Run)>>,
    gone: VecDeque<Run>,
    open: Option<Open>,
    counts: Counts,
}

/// A segment that its session's shaper lets go at a later moment. Equal moments keep the order they came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shaped {
    at: Moment,
    packet: u64,
    segment: u32,
    bytes: u32,
}

/// The run that segments are being added to.
#[derive(Clone, Copy, Debug)]
struct Open {
    run: Run,
    /// When its first segment was through.
    begun: Moment,
    through: Moment,
}

impl Line {
    /// A line at rest. Queues that the spec leaves open are without a bound, see [`LineSpec::with_queues`].
    pub fn new(spec: DirectionSpec, seed: u64) -> Line {
        let queue = spec.queue.unwrap_or(u64::MAX);
        Line {
            random: Random::new(seed),
            loss: Loss::new(spec.loss, spec.burst),
            wander: Wander::new(spec.jitter),
            policer: spec.police_flow.map(Policer::new),
            shaper: spec.shape_flow.map(|rate| Shaper::new(rate, queue)),
            clock: RateClock::default(),
            cut_until: Moment(0),
            shaped: BinaryHeap::new(),
            arriving: VecDeque::new(),
            held: BinaryHeap::new(),
            gone: VecDeque::new(),
            open: None,
            counts: Counts::default(),
            spec,
        }
    }

    /// What was asked.
    pub fn spec(&self) -> &DirectionSpec {
        &self.spec
    }

    /// What became of the segments so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes a packet in. Moments must not go back; packets are numbered upwards.
    pub fn offer(&mut self, now: Moment, packet: u64, flow: Flow, segments: Segments) {
        self.release(now);
        let is_cut = self.is_cut(now);
        for segment in 0..segments.count {
            let bytes = segments.bytes(segment);
            self.counts.offered += 1;
            self.counts.offered_bytes += u64::from(bytes);
            if is_cut {
                self.counts.cut += 1;
                self.lose(packet, segment);
            } else if self.policer.as_mut().is_some_and(|it| !it.passes(flow, bytes, now)) {
                self.counts.policed += 1;
                self.lose(packet, segment);
            } else {
                self.shape(now, flow, Shaped { at: now, packet, segment, bytes });
            }
        }
        self.close();
    }

    /// What has arrived by `now` or is gone, one run at a time; those that arrive come in the order they do.
    pub fn next(&mut self, now: Moment) -> Option<(Run, Fate)> {
        self.release(now);
        if let Some(run) = self.gone.pop_front() {
            return Some((run, Fate::Gone));
        }
        let held = self.held.peek().map(|Reverse((at, _))| *at);
        let ordered = self.arriving.front().map(|(at, _)| *at);
        let is_held = held.is_some_and(|held| ordered.is_none_or(|ordered| held < ordered));
        let at = if is_held { held? } else { ordered? };
        if at > now {
            return None;
        }
        let (_, run) =
            if is_held { self.held.pop().map(|Reverse(it)| it) } else { self.arriving.pop_front() }?;
        Some((run, Fate::Arrives(at)))
    }

    /// When [`Line::next`] has something, if nothing is offered before.
    pub fn wake(&self) -> Option<Moment> {
        if !self.gone.is_empty() {
            return Some(Moment(0));
        }
        let ordered = self.arriving.front().map(|(at, _)| *at);
        let held = self.held.peek().map(|Reverse((at, _))| *at);
        let shaped = self.shaped.peek().map(|Reverse(it)| it.at);
        [ordered, held, shaped].into_iter().flatten().min()
    }

    /// Changes the line at `now`.
    pub fn change(&mut self, now: Moment, change: &Change) {
        self.release(now);
        match *change {
            Change::CutUntil(until) => self.cut_until = self.cut_until.max(until),
            Change::Mend => {
                self.cut_until = now;
                self.spec.outages.clear();
            }
            Change::Loss(share, burst) => {
                (self.spec.loss, self.spec.burst) = (share, burst);
                self.loss = Loss::new(share, burst);
            }
            Change::Rate(rate) => {
                self.spec.rate = rate;
                self.clock.changed();
            }
            Change::Delay(delay) => self.spec.delay = delay,
        }
    }

    /// Whether nothing passes at `now`.
    pub fn is_cut(&self, now: Moment) -> bool {
        let planned = |&(from, length): &(Duration, Duration)| {
            let from = Moment(0) + from;
            now >= from && now < from + length
        };
        now < self.cut_until || self.spec.outages.iter().any(planned)
    }

    /// Sends on what its sessions' shapers let go by `now`, in that order.
    fn release(&mut self, now: Moment) {
        while self.shaped.peek().is_some_and(|Reverse(it)| it.at <= now) {
            if let Some(Reverse(segment)) = self.shaped.pop() {
                self.enter(segment);
            }
        }
        self.close();
    }

    fn shape(&mut self, now: Moment, flow: Flow, segment: Shaped) {
        let Some(shaper) = &mut self.shaper else { return self.enter(segment) };
        match shaper.release(flow, segment.bytes, now) {
            Some(at) => self.shaped.push(Reverse(Shaped { at, ..segment })),
            None => self.overflow(segment),
        }
    }

    /// A segment comes to the queue of the line itself.
    fn enter(&mut self, segment: Shaped) {
        let Shaped { at, packet, segment: number, bytes } = segment;
        let through = match self.spec.rate {
            None => at,
            Some(rate) => {
                let waiting = self.clock.backlog(at, rate) + u64::from(bytes);
                // A packet larger than the whole queue passes an idle line.
                if self.spec.queue.is_some_and(|queue| waiting > queue.max(u64::from(bytes))) {
                    return self.overflow(segment);
                }
                self.counts.queue_max = self.counts.queue_max.max(waiting);
                self.clock.take(at, bytes, rate)
            }
        };
        if self.loss.next(at, through, &mut self.random) {
            self.counts.lost += 1;
            return self.lose(packet, number);
        }
        self.counts.carried += 1;
        self.counts.carried_bytes += u64::from(bytes);
        if self.random.chance(self.spec.reorder.value()) {
            self.hold(packet, number, through);
        } else {
            self.extend(packet, number, through);
        }
    }

    fn overflow(&mut self, segment: Shaped) {
        self.counts.overflowed += 1;
        self.lose(segment.packet, segment.segment);
    }

    fn lose(&mut self, packet: u64, segment: u32) {
        match self.gone.back_mut() {
            Some(run) if run.packet == packet && run.first + run.count == segment => run.count += 1,
            _ => self.gone.push_back(Run { packet, first: segment, count: 1 }),
        }
    }

    fn hold(&mut self, packet: u64, segment: u32, through: Moment) {
        self.close();
        self.counts.held += 1;
        let delay = self.wander.delay(self.spec.delay, through, &mut self.random) + self.spec.reorder_by;
        self.held.push(Reverse((through + delay, Run { packet, first: segment, count: 1 })));
    }

    /// Adds a segment to the open run, or begins a new one.
    fn extend(&mut self, packet: u64, segment: u32, through: Moment) {
        if let Some(open) = &mut self.open {
            let follows = open.run.packet == packet && open.run.first + open.run.count == segment;
            if follows && through.since(open.begun) <= RUN_TIME_MAX {
                open.run.count += 1;
                open.through = through;
                return;
            }
            self.close();
        }
        let run = Run { packet, first: segment, count: 1 };
        self.open = Some(Open { run, begun: through, through });
    }

    /// The open run is complete: it arrives after the delay, never before what was sent earlier.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let delay = self.wander.delay(self.spec.delay, open.through, &mut self.random);
        let last = self.arriving.back().map_or(Moment(0), |(at, _)| *at);
        self.arriving.push_back(((open.through + delay).max(last), open.run));
    }
}
