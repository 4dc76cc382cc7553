use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use drover_types::ByteSpan;

use super::handle::Handle;
use crate::{Completion, DiskError, DiskErrorKind, Request, Work};

/// Writes at a time. Four direct ones of 512 KiB reach a disk's own rate; more only wait in its queue.
const WRITERS: usize = 4;

/// Threads that write to one target, so that who receives and hashes never stands still for the disk.
///
/// ```text
/// lane A ── submit ──┐             ┌── writer 1 ── pwrite ──┐
/// lane B ── submit ──┴── queue ────┼── …                    ├──> done of lane A or B
///                                  └── writer 4 ── pwrite ──┘
/// ```
///
/// The queue is as long as the lanes are deep. A thread starts with a write that finds the others at work, and they end with the
/// disk and its lanes.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    handle: Arc<Handle>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Writers that wait for one.
    idle: usize,
    is_over: bool,
}

struct Job {
    request: Request,
    done: Arc<Done>,
}

/// The requests of one lane that ended.
#[derive(Default)]
pub struct Done {
    ended: Mutex<VecDeque<Completion>>,
    wake: Condvar,
}

impl Done {
    /// Waits for the next one. Only for whoever has a request under way.
    pub fn wait(&self) -> Completion {
        let mut ended = lock(&self.ended);
        loop {
            match ended.pop_front() {
                Some(completion) => return completion,
                None => ended = self.wake.wait(ended).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Writers {
    pub fn new(handle: Arc<Handle>) -> Writers {
        let shared = Shared { handle, queue: Mutex::default(), wake: Condvar::new() };
        Writers { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Has a checked write or zero request carried out; it ends in `done`.
    pub fn submit(&self, request: Request, done: Arc<Done>) {
        let job = Job { request, done };
        if !self.start() {
            return self.shared.end(job);
        }
        lock(&self.shared.queue).jobs.push_back(job);
        self.shared.wake.notify_one();
    }

    /// Starts one more where all are at work. False if there is none: where a limit lets none start, the lanes write by themselves.
    fn start(&self) -> bool {
        let mut threads = lock(&self.threads);
        let all_at_work = || {
            let queue = lock(&self.shared.queue);
            queue.jobs.len() >= queue.idle
        };
        if threads.len() < WRITERS && all_at_work() {
            let shared = self.shared.clone();
            threads.extend(Builder::new().spawn(move || shared.write()).ok());
        }
        !threads.is_empty()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        lock(&self.shared.queue).is_over = true;
        self.shared.wake.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // A writer that panicked said so, and whoever waited for it cannot be reached any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Carries out jobs until the end.
    fn write(&self) {
        while let Some(job) = self.next() {
            self.end(job);
        }
    }

    fn end(&self, Job { request, done }: Job) {
        let Request { id, span, work } = request;
        // A lane waits for each of its requests, so each has to end.
        let result = catch_unwind(AssertUnwindSafe(|| self.carry_out(span, &work)))
            .unwrap_or_else(|_| Err(self.panicked(span, &work)));
        lock(&done.ended).push_back(Completion { id, span, work, result });
        done.wake.notify_one();
    }

    fn carry_out(&self, span: ByteSpan, work: &Work) -> Result<(), DiskError> {
        match work {
            Work::Write(slice) => self.handle.write(span, slice),
            Work::Zero => self.handle.zero(span),
            Work::Read(_) => unreachable!("lanes read by themselves"),
        }
    }

    fn panicked(&self, span: ByteSpan, work: &Work) -> DiskError {
        let source = io::Error::other("the thread that wrote it panicked");
        DiskError::with_kind(DiskErrorKind::Failed, work.op(), span, self.handle.name(), source)
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.is_over => return None,
                None => {
                    queue.idle += 1;
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileKind;
    use crate::{Buffer, Slice};

    const BLOCK: u64 = 4096;

    fn write(number: u64) -> Request {
        let span = ByteSpan::new(number * BLOCK, BLOCK);
        Request { id: number, span, work: Work::Write(Slice::from(Buffer::zeroed(BLOCK as usize))) }
    }

    #[test]
    fn writes_one_after_the_other_have_one_thread() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BLOCK).unwrap();
        let handle = Handle::for_target("t".to_string(), file, FileKind::Regular, 64 * BLOCK, None);
        let writers = Writers::new(Arc::new(handle));
        let done = Arc::new(Done::default());
        let started = || lock(&writers.threads).len();
        // A write has ended before its writer waits for the next: so one more may be seen at work.
        for number in 0..8 {
            writers.submit(write(number), done.clone());
            done.wait().result.unwrap();
            while lock(&writers.shared.queue).idle < started() {
                std::thread::yield_now();
            }
        }
        assert_eq!(started(), 1);
        (0..64).for_each(|number| writers.submit(write(number), done.clone()));
        (0..64).for_each(|_| done.wait().result.unwrap());
        assert!((1..=WRITERS).contains(&started()));
    }
}
