//! A worker: one thread, one epoll, and the connections it was given, for all of their lives.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::book::Book;
use crate::connecting::{Accepted, Connecting, Try};
use crate::connection::{Connection, Outcome, Side, Wants};
use crate::direction::Tools;
use crate::linked::{Linked, Served};
use crate::pipes::{Budget, Pipes};
use crate::slab::{Key, Slab};
use crate::stats::{ConnectionStats, Refusal, Totals};
use crate::timers::Timers;

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 256;
/// How often streams are looked at; see `direction`.
const TICK: Duration = Duration::from_millis(1);
/// Rates are bytes in this time, and pipes that nobody has needed for so long are given back.
const SWEEP: Duration = Duration::from_secs(1);
/// The inbox's token: no key's, because generations have 31 bits.
const INBOX: u64 = u64::MAX;

/// What a worker is asked to do.
pub(crate) enum Job {
    /// Take this client on.
    Open(Accepted),
    /// Take this connection of a link on.
    Link(Box<Linked>),
    /// The channel of this one may have something.
    Called(Key),
    /// Tell sums, and this many of the fastest connections.
    Snapshot(usize, SyncSender<Told>),
    /// End: all connections are reset.
    Stop,
}

/// A worker's part of a snapshot.
pub(crate) struct Told {
    pub(crate) totals: Totals,
    pub(crate) connections: Vec<ConnectionStats>,
}

/// Where jobs are put.
pub(crate) struct Inbox {
    jobs: Mutex<Vec<Job>>,
    bell: OwnedFd,
    /// Connections that the worker has or will have.
    pub(crate) load: AtomicUsize,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Arc<Inbox>> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Inbox { jobs: Mutex::default(), bell, load: AtomicUsize::new(0) }))
    }

    pub(crate) fn put(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = jobs.is_empty();
        jobs.push(job);
        drop(jobs);
        // Those behind the first are taken with it.
        if is_first {
            // Full only if it has rung 2^64 times unheard.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn take(&self) -> Vec<Job> {
        // Before the jobs are taken: one that is put after that rings again.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hands a connection to the worker that has the fewest.
pub(crate) fn hand_over(inboxes: &[Arc<Inbox>], job: Job) {
    if let Some(inbox) = inboxes.iter().min_by_key(|inbox| inbox.load.load(Ordering::Relaxed)) {
        inbox.load.fetch_add(1, Ordering::Relaxed);
        inbox.put(job);
    }
}

/// Starts a worker for each inbox. Those that were started before an error are among `threads`, too.
///
/// # Errors
/// If there are no files or threads.
pub(crate) fn start_all(
    inboxes: &[Arc<Inbox>],
    name: &str,
    (budget, book): (&Arc<Budget>, &Arc<Book>),
    threads: &mut Vec<JoinHandle<io::Result<()>>>,
) -> io::Result<()> {
    for (number, inbox) in inboxes.iter().enumerate() {
        let worker = Worker::new(inbox.clone(), Pipes::new(budget.clone()), book.clone())?;
        let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
        threads.push(thread.spawn(move || worker.run())?);
    }
    Ok(())
}

enum Entry {
    Connecting(Connecting),
    Open(Box<Connection>),
    Linked(Box<Linked>),
}

pub(crate) struct Worker {
    epoll: OwnedFd,
    inbox: Arc<Inbox>,
    entries: Slab<Entry>,
    tools: Tools,
    queue: Vec<Key>,
    streams: Vec<Key>,
    ticked: Instant,
    swept: Instant,
    timers: Timers<Key>,
    totals: Totals,
    book: Arc<Book>,
    is_stopping: bool,
}

impl Worker {
    pub(crate) fn new(inbox: Arc<Inbox>, pipes: Pipes, book: Arc<Book>) -> io::Result<Worker> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inbox.bell, EventData::new_u64(INBOX), EventFlags::IN)?;
        let now = Instant::now();
        Ok(Worker {
            epoll,
            inbox,
            entries: Slab::new(),
            tools: Tools::new(pipes),
            queue: Vec::new(),
            streams: Vec::new(),
            ticked: now,
            swept: now,
            timers: Timers::new(),
            totals: Totals::default(),
            book,
            is_stopping: false,
        })
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// If the kernel gives no events any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while !self.is_stopping {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.patience().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    INBOX => self.open_inbox(now),
                    token => self.handle(token, event.flags, now),
                }
            }
            self.serve_queue(now);
            self.serve_times(now);
        }
        // What is left is dropped, and so reset: bytes in pipes are lost, so nobody may see a clean end.
        self.discard();
        Ok(())
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Timespec> {
        if !self.queue.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let tick = (!self.streams.is_empty()).then(|| self.ticked + TICK);
        let sweep = self.is_swept().then(|| self.swept + SWEEP);
        let next = [tick, sweep, self.timers.next()].into_iter().flatten().min()?;
        let time = next.saturating_duration_since(Instant::now());
        Timespec::try_from(time).ok()
    }

    /// Whether there is anything to sweep.
    fn is_swept(&self) -> bool {
        self.entries.len() > 0 || self.tools.pipes.keeps_some()
    }

    fn open_inbox(&mut self, now: Instant) {
        for job in self.inbox.take() {
            match job {
                Job::Open(accepted) => self.begin(Connecting::first(accepted, now), now),
                Job::Link(linked) => self.begin_linked(linked, now),
                Job::Called(key) => self.called(key, now),
                Job::Snapshot(count, reply) => {
                    // Whoever asked may have given up.
                    let _ = reply.try_send(self.snapshot(count, now));
                }
                Job::Stop => self.is_stopping = true,
            }
        }
    }

    /// A client that was just taken on.
    fn begin(&mut self, attempt: Try, now: Instant) {
        self.totals.accepted += 1;
        let connecting = match attempt {
            Try::Failed(reason) => return self.refuse(reason),
            Try::Waits(connecting) => connecting,
        };
        let key = self.insert(Entry::Connecting(connecting), now);
        let Some(Entry::Connecting(connecting)) = self.entries.get_mut(key) else { return };
        self.timers.set(connecting.until, key);
        let watched = watch(&self.epoll, connecting.client(), key, Side::Client)
            .and_then(|()| watch(&self.epoll, connecting.socket(), key, Side::Target));
        if watched.is_err() {
            self.give_up(key, Refusal::Files);
        }
    }

    fn insert(&mut self, entry: Entry, now: Instant) -> Key {
        // A sweep of nothing needs none; the first one is a whole second away.
        if !self.is_swept() {
            self.swept = now;
        }
        self.entries.insert(entry)
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        self.timers.forget(key);
        self.entries.remove(key)
    }

    /// A connection of a link.
    fn begin_linked(&mut self, linked: Box<Linked>, now: Instant) {
        self.totals.accepted += 1;
        self.totals.connected += u64::from(!linked.is_asking());
        let key = self.insert(Entry::Linked(linked), now);
        let Some(Entry::Linked(linked)) = self.entries.get_mut(key) else { return };
        if watch(&self.epoll, linked.socket(), key, Side::Client).is_err() {
            return self.give_up(key, Refusal::Files);
        }
        linked.begin(&self.inbox, key);
        self.serve_linked(key, false, now);
    }

    /// The channel of a connection may have something, or room.
    fn called(&mut self, key: Key, now: Instant) {
        // Of one that has ended, if there is none.
        if let Some(Entry::Linked(linked)) = self.entries.get_mut(key) {
            linked.called();
            self.serve_linked(key, false, now);
        }
    }

    fn serve_linked(&mut self, key: Key, has_failed: bool, now: Instant) {
        let Some(Entry::Linked(linked)) = self.entries.get_mut(key) else { return };
        let was_asking = linked.is_asking();
        let served = linked.serve(has_failed, &mut self.tools, now);
        let is_answered = was_asking && !linked.is_asking();
        self.totals.connected += u64::from(is_answered);
        match served {
            Served::Lives(wants) => {
                if wants.turn && !std::mem::replace(&mut linked.is_queued, true) {
                    self.queue.push(key);
                }
                let times = [wants.at, linked.deadline()].into_iter().flatten();
                times.for_each(|at| self.timers.set(at, key));
            }
            Served::Closed => self.close_linked(key, now, false),
            Served::Reset => self.close_linked(key, now, true),
            Served::Refused(reason, why) => {
                if linked.is_near() {
                    self.book.tell(linked.meta(), reason, why);
                }
                self.give_up(key, reason);
            }
        }
    }

    fn close_linked(&mut self, key: Key, now: Instant, is_reset: bool) {
        let Some(Entry::Linked(mut linked)) = self.remove(key) else { return };
        linked.add_to(&mut self.totals, now);
        if let Some(fault) = linked.fault() {
            self.book.tell(linked.meta(), Refusal::Link, fault.to_string());
        }
        self.inbox.load.fetch_sub(1, Ordering::Relaxed);
        if is_reset {
            self.totals.reset += 1;
        } else {
            self.totals.closed += 1;
            linked.close();
        }
    }

    fn refuse(&mut self, reason: Refusal) {
        self.totals.refuse(reason);
        self.inbox.load.fetch_sub(1, Ordering::Relaxed);
    }

    fn give_up(&mut self, key: Key, reason: Refusal) {
        self.remove(key);
        self.refuse(reason);
    }

    fn handle(&mut self, token: u64, flags: EventFlags, now: Instant) {
        let (key, bit) = Key::of(token);
        let side = Side::of(bit);
        match self.entries.get_mut(key) {
            // Of a connection that ended in this very batch.
            None => {}
            Some(Entry::Connecting(_)) => self.handle_connecting(key, side, flags, now),
            Some(Entry::Open(connection)) => {
                connection.ready(side, flags);
                let failed = flags.contains(EventFlags::ERR).then_some(side);
                self.serve(key, failed, now);
            }
            Some(Entry::Linked(linked)) => {
                linked.ready(flags);
                self.serve_linked(key, flags.contains(EventFlags::ERR), now);
            }
        }
    }

    fn handle_connecting(&mut self, key: Key, side: Side, flags: EventFlags, now: Instant) {
        let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        match side {
            // The client has gone again. What it may have sent is of no use to anybody.
            Side::Client if is_over => {
                self.remove(key);
                self.totals.reset += 1;
                self.inbox.load.fetch_sub(1, Ordering::Relaxed);
            }
            Side::Target if is_over || flags.contains(EventFlags::OUT) => self.answered(key, now),
            // What the client sends is taken when the target is there: a new flow tries by itself.
            Side::Client | Side::Target => {
                if let Some(Entry::Connecting(connecting)) = self.entries.get_mut(key) {
                    connecting.is_urgent |= side == Side::Client && flags.contains(EventFlags::PRI);
                }
            }
        }
    }

    /// The target has answered, or the kernel for it.
    fn answered(&mut self, key: Key, now: Instant) {
        let Some(Entry::Connecting(connecting)) = self.entries.get_mut(key) else { return };
        match connecting.failure() {
            Some(reason) => self.try_next(key, reason, now),
            None => self.connected(key, now),
        }
    }

    fn connected(&mut self, key: Key, now: Instant) {
        let open = |entry| match entry {
            Entry::Connecting(connecting) => Entry::Open(Box::new(connecting.open(now))),
            other => other,
        };
        self.entries.replace(key, open);
        self.totals.connected += 1;
        self.serve(key, None, now);
    }

    fn try_next(&mut self, key: Key, reason: Refusal, now: Instant) {
        let Some(Entry::Connecting(connecting)) = self.remove(key) else { return };
        // The client's socket goes on under a new key: it leaves epoll to come back with it.
        let _ = epoll::delete(&self.epoll, connecting.client());
        let attempt = connecting.next(reason, now);
        self.totals.accepted -= 1;
        self.begin(attempt, now);
    }

    fn serve(&mut self, key: Key, failed: Option<Side>, now: Instant) {
        let Some(Entry::Open(connection)) = self.entries.get_mut(key) else { return };
        match connection.serve(failed, &mut self.tools, now) {
            Outcome::Lives(wants) => self.note(key, wants),
            Outcome::Closed => self.close(key, now, false),
            Outcome::Reset => self.close(key, now, true),
        }
    }

    fn note(&mut self, key: Key, wants: Wants) {
        let Some(Entry::Open(connection)) = self.entries.get_mut(key) else { return };
        if wants.turn && !std::mem::replace(&mut connection.is_queued, true) {
            self.queue.push(key);
        }
        if wants.ticks && !std::mem::replace(&mut connection.has_ticks, true) {
            if self.streams.is_empty() {
                self.ticked = Instant::now();
            }
            self.streams.push(key);
        }
        if let Some(at) = wants.at {
            self.timers.set(at, key);
        }
    }

    fn close(&mut self, key: Key, now: Instant, is_reset: bool) {
        let Some(Entry::Open(mut connection)) = self.remove(key) else { return };
        connection.add_to(&mut self.totals, now);
        self.inbox.load.fetch_sub(1, Ordering::Relaxed);
        if is_reset {
            self.totals.reset += 1;
        } else {
            self.totals.closed += 1;
            connection.close();
        }
    }

    fn serve_queue(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.queue) {
            match self.entries.get_mut(key) {
                Some(Entry::Open(connection)) => {
                    connection.is_queued = false;
                    self.serve(key, None, now);
                }
                Some(Entry::Linked(linked)) => {
                    linked.is_queued = false;
                    self.serve_linked(key, false, now);
                }
                Some(Entry::Connecting(_)) | None => {}
            }
        }
    }

    fn serve_times(&mut self, now: Instant) {
        while let Some(key) = self.timers.due(now) {
            self.timed(key, now);
        }
        if !self.streams.is_empty() && now >= self.ticked + TICK {
            self.ticked = now;
            self.tick(now);
        }
        if now >= self.swept + SWEEP {
            self.swept = now;
            let mut busy = 0;
            self.entries.iter_mut().for_each(|entry| match entry {
                Entry::Open(connection) => connection.sweep(),
                Entry::Linked(linked) => {
                    linked.sweep();
                    busy += u32::from(linked.is_busy());
                }
                Entry::Connecting(_) => {}
            });
            self.tools.pipes.sweep();
            self.tools.press.set_busy(busy);
        }
    }

    fn timed(&mut self, key: Key, now: Instant) {
        match self.entries.get_mut(key) {
            None => {}
            Some(Entry::Connecting(connecting)) if connecting.until <= now => {
                self.try_next(key, Refusal::TargetSilent, now);
            }
            Some(Entry::Connecting(_)) => {}
            Some(Entry::Open(_)) => self.serve(key, None, now),
            Some(Entry::Linked(_)) => self.serve_linked(key, false, now),
        }
    }

    fn tick(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.streams) {
            if let Some(Entry::Open(connection)) = self.entries.get_mut(key) {
                connection.has_ticks = false;
                connection.tick(now);
                // It is among the streams again if it still is one.
                self.serve(key, None, now);
            }
        }
    }

    fn snapshot(&mut self, count: usize, now: Instant) -> Told {
        let mut totals = self.totals.clone();
        let mut rates = Vec::with_capacity(self.entries.len());
        for key in self.entries.keys() {
            match self.entries.get_mut(key) {
                Some(Entry::Open(connection)) => {
                    connection.add_to(&mut totals, now);
                    rates.push((connection.rate(now), key));
                }
                Some(Entry::Linked(linked)) => {
                    linked.add_to(&mut totals, now);
                    rates.push((linked.rate(), key));
                }
                Some(Entry::Connecting(_)) => rates.push((0, key)),
                None => {}
            }
        }
        rates.sort_unstable_by(|a, b| b.cmp(a));
        rates.truncate(count);
        let connections = rates.iter().filter_map(|(_, key)| self.stats(*key, now)).collect();
        Told { totals, connections }
    }

    fn stats(&mut self, key: Key, now: Instant) -> Option<ConnectionStats> {
        Some(match self.entries.get_mut(key)? {
            Entry::Open(connection) => connection.stats(now),
            Entry::Linked(linked) => linked.stats(now),
            Entry::Connecting(connecting) => connecting.stats(now),
        })
    }

    /// Clients that came too late.
    fn discard(&self) {
        for job in self.inbox.take() {
            if let Job::Open(accepted) = job {
                // On a socket that is closed already there is nobody to tell. Those of a link are prepared.
                let _ = drover_tcp::reset_on_close(&accepted.client);
            }
        }
    }
}

fn watch(epoll: &OwnedFd, socket: &OwnedFd, key: Key, side: Side) -> io::Result<()> {
    let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    Ok(epoll::add(epoll, socket, EventData::new_u64(key.token(side.bit())), flags)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::SocketAddr;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::connection::Meta;
    use crate::direction::Direction;
    use crate::hop::Limit;

    fn worker() -> Worker {
        let pipes = Pipes::new(Budget::new(usize::MAX));
        Worker::new(Inbox::new().unwrap(), pipes, Arc::default()).unwrap()
    }

    /// Takes all there is, and what comes in longer than a test takes.
    fn use_up(limit: &Limit) {
        while matches!(limit.take(1 << 20), crate::bucket::Grant::Bytes(_)) {}
    }

    #[test]
    fn a_connection_waits_for_one_time_however_often_it_is_served() {
        let (mut worker, now) = (worker(), Instant::now());
        let (mut client, near) = UnixStream::pair().unwrap();
        let (mut target, far) = UnixStream::pair().unwrap();
        let (up_limit, down_limit) = (Arc::new(Limit::new(1, now)), Arc::new(Limit::new(2, now)));
        let way = |limit: &Arc<Limit>| Direction::new(Some(limit.clone()), now);
        let (up, down) = (way(&up_limit), way(&down_limit));
        let client_address = SocketAddr::from(([127, 0, 0, 1], 1));
        let meta =
            Meta { id: 1, client: client_address, target: String::new(), rule: None, accepted_at: now };
        let connection = Connection::new(meta, near.into(), far.into(), up, down);
        let key = worker.insert(Entry::Open(Box::new(connection)), now);
        for (name, end, limit) in
            [("one way", &mut client, &up_limit), ("both ways", &mut target, &down_limit)]
        {
            use_up(limit);
            end.write_all(b"something that waits").unwrap();
            worker.handle(key.token(false), EventFlags::IN, now);
            worker.handle(key.token(true), EventFlags::IN, now);
            assert_eq!(worker.timers.len(), 1, "{name}");
        }
        let due = worker.timers.next().unwrap();
        for _ in 0..10 {
            assert_eq!(worker.timers.due(due + Duration::from_secs(3600)), Some(key));
            worker.timed(key, now);
        }
        assert_eq!(worker.timers.len(), 1, "when the time has come");
        worker.give_up(key, Refusal::Files);
        assert_eq!(worker.timers.len(), 0, "when the connection has gone");
    }
}
