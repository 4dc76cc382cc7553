//! Moves packets between the two devices: one thread that reads, waits and writes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::WanError;
use crate::line::packet::{FRAME_BYTES_MAX, parse, piece};
use crate::line::ring::{RING_BYTES_MIN, Ring};
use crate::line::{Change, DirectionSpec, Fate, Lateness, Line, LineSpec, Moment, Run};
use crate::order::Order;
use crate::report::{Report, WayReport};
use crate::sys;
use crate::tun::Tun;

/// Packets read, or handed over, before the other work has its turn.
const BATCH: usize = 16;

/// Nearer than this to the next departure the thread does not sleep.
const SPIN: Duration = Duration::from_micros(25);

/// Who wakes up later than this was kept waiting by others.
const WAKING_MAX: Duration = Duration::from_micros(200);

/// The thread's priority where it may not run in real time; the load it carries must not make it late.
const NICE: i32 = -15;

/// What is taken for the rate of a line without one, when memory is laid out: 20 Gbit/s.
const UNLIMITED_BYTES_PER_S: f64 = 2.5e9;

/// How long an answer of the thread is waited for.
const ANSWER_TIME: Duration = Duration::from_secs(10);

enum Message {
    Order(Order),
    Report(SyncSender<Report>),
    Stop,
}

/// Speaks to the thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    messages: Sender<Message>,
    bell: Arc<OwnedFd>,
}

impl Handle {
    /// Changes the line. `Status` changes nothing.
    ///
    /// # Errors
    /// If the emulator has ended.
    pub fn order(&self, order: Order) -> Result<(), WanError> {
        self.send(Message::Order(order))
    }

    /// What became of the packets so far.
    ///
    /// # Errors
    /// If the emulator has ended, or does not answer.
    pub fn report(&self) -> Result<Report, WanError> {
        let (answer, answered) = sync_channel(1);
        self.send(Message::Report(answer))?;
        answered.recv_timeout(ANSWER_TIME).map_err(|_| WanError::Ended)
    }

    fn send(&self, message: Message) -> Result<(), WanError> {
        self.messages.send(message).map_err(|_| WanError::Ended)?;
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes())
            .map(drop)
            .map_err(|error| WanError::of("waking the emulator")(error.into()))
    }
}

/// The running thread; stops when dropped.
#[derive(Debug)]
pub struct Pump {
    handle: Handle,
    thread: Option<JoinHandle<io::Result<Report>>>,
}

impl Pump {
    /// Starts to move packets between the devices.
    pub fn start(spec: &LineSpec, seed: u64, near: Tun, far: Tun) -> io::Result<Pump> {
        let (messages, inbox) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let rings = [&spec.up, &spec.down].map(|direction| Ring::new(memory(direction)));
        let [up_ring, down_ring] = rings;
        // Two directions of one seed lose different packets.
        let mut work = Work {
            tuns: [near, far],
            ways: [
                Way::new(Line::new(spec.up.clone(), seed), up_ring),
                Way::new(Line::new(spec.down.clone(), !seed), down_ring),
            ],
            begun: Instant::now(),
            inbox,
            bell: bell.clone(),
            scratch: vec![0; FRAME_BYTES_MAX],
            waking: Waking::default(),
            woken: [None; 2],
        };
        let thread = std::thread::Builder::new().name("wan".into()).spawn(move || work.run())?;
        Ok(Pump { handle: Handle { messages, bell }, thread: Some(thread) })
    }

    /// Speaks to the thread.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the thread; what was on the line is gone.
    pub fn stop(&mut self) -> Result<Report, WanError> {
        let thread = self.thread.take().ok_or(WanError::Ended)?;
        // If it has ended already, joining it tells why.
        let _ = self.handle.send(Message::Stop);
        let ended = thread.join().map_err(|_| WanError::Ended)?;
        ended.map_err(WanError::of("moving packets"))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Whoever wanted to know how it ended has called stop.
            let _ = self.stop();
        }
    }
}

/// Bytes that can be on a direction at once, twice: what is lost or overtaken waits for its neighbours.
fn memory(direction: &DirectionSpec) -> u64 {
    let time = direction.delay + direction.jitter + direction.reorder_by;
    let under_way = match direction.rate {
        Some(rate) => rate.bytes_in(time),
        None => (UNLIMITED_BYTES_PER_S * time.as_secs_f64()) as u64,
    };
    let queues = if direction.shape_flow.is_some() { 4 } else { 1 };
    let queued = direction.queue.unwrap_or(RING_BYTES_MIN as u64).saturating_mul(queues);
    under_way.saturating_add(queued).saturating_mul(2).saturating_add(RING_BYTES_MIN as u64)
}

struct Way {
    line: Line,
    ring: Ring,
    late: Lateness,
    overrun: u64,
    refused: u64,
    strange: u64,
}

impl Way {
    fn new(line: Line, ring: Ring) -> Way {
        Way { line, ring, late: Lateness::default(), overrun: 0, refused: 0, strange: 0 }
    }

    fn report(&self) -> WayReport {
        WayReport {
            counts: self.line.counts(),
            late: self.late,
            overrun: self.overrun,
            unread: 0,
            refused: self.refused,
            strange: self.strange,
        }
    }

    /// Hands a run over.
    fn write(&mut self, tun: &Tun, run: Run) {
        let (frame, segments) = self.ring.frame(run.packet);
        let written = match piece(frame, segments, run) {
            None => tun.write(frame, &[]),
            Some(piece) => tun.write(piece.head(), &frame[piece.payload.clone()]),
        };
        self.refused += u64::from(written.is_err());
    }
}

/// How long the thread usually takes to wake up: a processor that has nothing to do sleeps, too, a virtual one the more.
#[derive(Clone, Copy, Debug, Default)]
struct Waking {
    usual: Duration,
    /// It has hardly ever taken less lately.
    least: Duration,
}

impl Waking {
    /// It was woken up so late.
    fn learn(&mut self, late: Duration) {
        if late <= WAKING_MAX {
            self.usual = (self.usual * 7 + late) / 8;
            self.least = late.min(self.least + late.saturating_sub(self.least) / 32);
        }
    }

    /// What to sleep so as to be awake in time.
    fn sleep(self, left: Duration) -> Duration {
        left.saturating_sub(SPIN + self.usual)
    }

    /// When that came at the latest what woke it up at `now`, after it had slept since `since`: no line is to be faster
    /// than it was asked to be.
    fn came(self, since: Moment, now: Moment) -> Moment {
        since + now.since(since).saturating_sub(self.least)
    }
}

struct Work {
    /// Near, far.
    tuns: [Tun; 2],
    /// Up, which reads from near; down, which reads from far.
    ways: [Way; 2],
    begun: Instant,
    inbox: Receiver<Message>,
    bell: Arc<OwnedFd>,
    scratch: Vec<u8>,
    waking: Waking,
    /// When the packet came, from near and from far, that woke it up.
    woken: [Option<Moment>; 2],
}

impl Work {
    fn run(&mut self) -> io::Result<Report> {
        // Timers may be late by 50 µs to save power. Where none of this is allowed the lateness is in the report.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let _ = sys::run_first()
            .or_else(|_| rustix::process::setpriority_process(None, NICE).map_err(io::Error::from));
        loop {
            let mut is_busy = false;
            for way in 0..self.ways.len() {
                is_busy |= self.take(way)?;
                is_busy |= self.give(way);
            }
            if !is_busy {
                self.rest()?;
            }
            if self.obey() {
                return Ok(self.report());
            }
        }
    }

    fn now(&self) -> Moment {
        Moment(0) + self.begun.elapsed()
    }

    /// Reads what a device has; true if there may be more.
    fn take(&mut self, way: usize) -> io::Result<bool> {
        for _ in 0..BATCH {
            let now = self.woken[way].take().unwrap_or_else(|| self.now());
            let (tun, way) = (&self.tuns[way], &mut self.ways[way]);
            let Some(space) = way.ring.space() else {
                let read = tun.read(&mut self.scratch)?.is_some();
                way.overrun += u64::from(read);
                return Ok(false);
            };
            let Some(bytes) = tun.read(space)? else { return Ok(false) };
            match parse(&space[..bytes]) {
                Some(parsed) => {
                    let packet = way.ring.keep(bytes, parsed.segments);
                    way.line.offer(now, packet, parsed.flow, parsed.segments);
                }
                None => way.strange += 1,
            }
        }
        Ok(true)
    }

    /// Hands over what has arrived; true if there may be more.
    fn give(&mut self, way: usize) -> bool {
        for _ in 0..BATCH {
            let now = self.now();
            let (tun, begun) = (&self.tuns[1 - way], self.begun);
            let way = &mut self.ways[way];
            let Some((run, fate)) = way.line.next(now) else { return false };
            if let Fate::Arrives(at) = fate {
                way.late.add((Moment(0) + begun.elapsed()).since(at));
                way.write(tun, run);
            }
            way.ring.done(run.packet, run.count);
        }
        true
    }

    /// Sleeps until something happens or is due.
    fn rest(&mut self) -> io::Result<()> {
        let wake = self.ways.iter().filter_map(|way| way.line.wake()).min();
        let since = self.now();
        let asked = wake.map(|wake| self.waking.sleep(wake.since(since)));
        let mut waits = [
            PollFd::from_borrowed_fd(self.tuns[0].as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.tuns[1].as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        let time = asked.and_then(|time| Timespec::try_from(time).ok());
        let woken = match poll(&mut waits, time.as_ref()) {
            Ok(woken) => woken,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let [near, far, _] = waits.map(|it| it.revents().contains(PollFlags::IN));
        let now = self.now();
        let came = self.waking.came(since, now);
        self.woken = [near, far].map(|has_woken| has_woken.then_some(came));
        if let (0, Some(asked)) = (woken, asked.filter(|asked| !asked.is_zero())) {
            self.waking.learn(now.since(since + asked));
        }
        Ok(())
    }

    /// Does what it is told; true if that is to stop.
    fn obey(&mut self) -> bool {
        while let Ok(message) = self.inbox.try_recv() {
            // The bell only wakes; reading it makes it quiet. It may be quiet already, or ring once too often.
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
            match message {
                Message::Order(order) => self.apply(order),
                // Who asked may have given up.
                Message::Report(answer) => drop(answer.try_send(self.report())),
                Message::Stop => return true,
            }
        }
        false
    }

    fn apply(&mut self, order: Order) {
        let now = self.now();
        let (change, ways) = match order {
            Order::Cut(time, ways) => (Change::CutUntil(time.map_or(Moment(u64::MAX), |it| now + it)), ways),
            Order::Mend(ways) => (Change::Mend, ways),
            Order::Loss(share, burst, ways) => (Change::Loss(share, burst), ways),
            Order::Rate(rate, ways) => (Change::Rate(rate), ways),
            Order::Delay(delay, ways) => (Change::Delay(delay), ways),
            Order::Status => return,
        };
        for (_, way) in self.ways.iter_mut().enumerate().filter(|(number, _)| ways.has(*number)) {
            way.line.change(now, &change);
        }
    }

    fn report(&self) -> Report {
        let [up, down] = [&self.ways[0], &self.ways[1]].map(Way::report);
        let busy = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let busy = Duration::try_from(busy).unwrap_or_default();
        Report { up, down, time: self.begun.elapsed(), busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_less_by_what_waking_up_takes_and_forgets_what_others_took() {
        let (mut waking, late) = (Waking::default(), Duration::from_micros(80));
        let left = Duration::from_millis(10);
        assert_eq!(waking.sleep(left), left - SPIN);
        (0..100).for_each(|_| waking.learn(late));
        let before = waking.usual;
        assert!(before <= late && before > late - Duration::from_micros(1), "{before:?}");
        waking.learn(Duration::from_millis(16));
        assert_eq!((waking.usual, waking.sleep(left)), (before, left - SPIN - before));
        assert_eq!(waking.sleep(SPIN), Duration::ZERO);
    }

    #[test]
    fn one_quick_waking_is_believed_at_once_and_slow_ones_in_time() {
        let (mut waking, quick) = (Waking::default(), Duration::from_micros(9));
        (0..400).for_each(|_| waking.learn(Duration::from_micros(80)));
        assert!(waking.least > Duration::from_micros(75), "{waking:?}");
        waking.learn(quick);
        assert_eq!(waking.least, quick);
    }

    #[test]
    fn a_packet_came_before_it_woke_the_thread_but_not_before_that_slept() {
        let waking = Waking { least: Duration::from_micros(80), ..Waking::default() };
        let since = Moment(1_000_000);
        assert_eq!(waking.came(since, Moment(2_000_000)), Moment(1_920_000));
        assert_eq!(waking.came(since, Moment(1_050_000)), since);
        assert_eq!(waking.came(since, since), since);
    }
}
