use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_disk::Work;
use drover_stream::Socket;
use drover_types::ByteSpan;

use crate::budget::{Buffers, Grant};
use crate::codec::Codec;
use crate::connection::Connection;
use crate::pending::{Ended, Owner};

/// How long anybody waits before looking again: who sends may have taken in what the one at the socket waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection that lanes take in turns, and its share of the host's memory. The connection ends first.
///
/// Nobody waits for the host with the connection in hand: the others could not send meanwhile, and each request of theirs
/// would wait for an answer to another. Of those that wait, one receives for all, until it has what it waits for itself.
/// The others sleep until something of theirs has come, or it is their turn.
pub struct Slot {
    /// Held while waiting, so that who came first gets it first.
    queue: Mutex<()>,
    connection: Mutex<Connection>,
    grant: Mutex<Option<Grant>>,
    socket: Socket,
    /// Whether somebody receives. Changes only with the connection in hand, or in panic.
    has_receiver: AtomicBool,
    /// Those that sleep until somebody wakes them: whose they are, and how.
    sleepers: Mutex<Vec<(u64, Arc<Condvar>)>>,
}

/// Whether a session broke because the host's memory is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory(pub bool);

/// The turn to receive; the next one has it when this is dropped.
struct Receiver<'a>(&'a Slot);

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.0.has_receiver.store(false, Ordering::SeqCst);
        self.0.pass_turn();
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    pub fn new(connection: Connection, grant: Grant) -> io::Result<Arc<Slot>> {
        Ok(Arc::new(Slot {
            queue: Mutex::new(()),
            socket: connection.watch()?,
            connection: Mutex::new(connection),
            grant: Mutex::new(Some(grant)),
            has_receiver: AtomicBool::new(false),
            sleepers: Mutex::default(),
        }))
    }

    pub fn lock(&self) -> MutexGuard<'_, Connection> {
        let _queue = lock(&self.queue);
        lock(&self.connection)
    }

    /// Gives its share of the host's memory back, whoever holds on to the slot.
    pub fn give_back(&self) -> Option<Buffers> {
        lock(&self.grant).take().map(|grant| grant.buffers)
    }

    /// Whether the session stands, as far as can be told without waiting; and if not, whether the host's memory was used up.
    pub fn probe(&self) -> Result<(), OutOfMemory> {
        let mut connection = self.lock();
        // Who receives finds out by itself. What is taken in here it would wait for in vain.
        let is_good = match self.has_receiver.load(Ordering::SeqCst) {
            true => !connection.is_broken(),
            false => connection.probe(),
        };
        if is_good {
            return Ok(());
        }
        // Lanes may hold on to the slot, but the host is to free memory and lock now: the disk is opened anew.
        self.socket.end();
        Err(OutOfMemory(connection.is_out_of_memory))
    }

    /// Sends a read or write.
    pub fn start_work(&self, owner: Owner, span: ByteSpan, work: Work, codec: Codec) {
        let mut connection = self.lock();
        let ended = connection.ended();
        connection.start_work(owner, span, work, codec);
        // What had to be received to make room for it, or all that was in flight if the connection broke.
        self.wake_owners(&connection, ended);
    }

    /// Wakes those whose requests ended after the first `known`.
    fn wake_owners(&self, connection: &Connection, known: usize) {
        if connection.ended() > known {
            let sleepers = lock(&self.sleepers);
            let is_theirs = |(owner, _): &&(u64, _)| connection.owners_of_ended(known).any(|it| it == *owner);
            sleepers.iter().filter(is_theirs).for_each(|(_, bell)| bell.notify_one());
        }
    }

    /// Wakes one that sleeps if nobody receives. It may be awake already and about to go with what has come for it: then it
    /// passes the turn on in the same way.
    fn pass_turn(&self) {
        if !self.has_receiver.load(Ordering::SeqCst)
            && let Some((_, bell)) = lock(&self.sleepers).first()
        {
            bell.notify_one();
        }
    }

    /// Sleeps until somebody wakes `owner`.
    fn sleep<'a>(&self, owner: u64, connection: MutexGuard<'a, Connection>) -> MutexGuard<'a, Connection> {
        let bell = Arc::new(Condvar::new());
        lock(&self.sleepers).push((owner, bell.clone()));
        let waited = bell.wait_timeout(connection, LOOK_AGAIN);
        let (connection, _) = waited.unwrap_or_else(PoisonError::into_inner);
        lock(&self.sleepers).retain(|(_, it)| !Arc::ptr_eq(it, &bell));
        connection
    }

    /// Waits until a request of `owner` ends, of which one has to be in flight. What comes is shown to `seen` as it comes.
    pub fn wait(&self, owner: u64, seen: &mut dyn FnMut(u64, &[u8])) -> Ended {
        let mut receiver = None;
        let mut connection = self.lock();
        loop {
            if let Some(ended) = connection.take(owner) {
                // With the connection in hand: nobody goes to sleep in between and misses it.
                match receiver {
                    Some(receiver) => drop(receiver),
                    None => self.pass_turn(),
                }
                return ended;
            }
            if receiver.is_none() {
                if self.has_receiver.swap(true, Ordering::SeqCst) {
                    connection = self.sleep(owner, connection);
                    continue;
                }
                receiver = Some(Receiver(self));
            }
            let ended = connection.ended();
            let has_come = connection.receive_ready();
            if has_come {
                // Who looks long at bytes would keep others from theirs.
                if !connection.others_wait(owner)
                    && let Some((id, bytes)) = connection.arriving(owner)
                {
                    seen(id, bytes);
                }
                self.wake_owners(&connection, ended);
            }
            // Between two reads of the stream others may have it.
            drop(connection);
            if !has_come {
                // What is wrong with the socket shows itself by what the next receive returns.
                let _ = self.socket.wait_to_receive(LOOK_AGAIN);
            }
            connection = self.lock();
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use drover_disk::Buffer;
    use drover_stream::Stream;

    use super::*;
    use crate::budget::Ledger;
    use crate::frame::{HEAD_BYTES, Head, Io, kind};

    pub const BYTES: u32 = 512;

    /// A lane with a request of its own, from sending to its end.
    fn read(slot: &Slot, owner: u64) -> Ended {
        let span = ByteSpan::new(owner * u64::from(BYTES), BYTES.into());
        let work = Work::Read(Buffer::zeroed(BYTES as usize));
        slot.start_work(Owner { owner, id: owner }, span, work, Codec::None);
        slot.wait(owner, &mut |_, _| {})
    }

    /// Takes a request off the stream, and gives a good answer to it.
    pub fn answer(host: &mut UnixStream) {
        let mut request = [0; HEAD_BYTES + 44];
        host.read_exact(&mut request).unwrap();
        host.write_all(&answer_to(&request)).unwrap();
    }

    fn answer_to(request: &[u8]) -> Vec<u8> {
        let head = Head::decode(&request[..HEAD_BYTES]).ok().unwrap().unwrap();
        let asked = Io::decode(&request[HEAD_BYTES..]).ok().unwrap();
        let io = Io { handle: 0, at: 0, plain: BYTES, extra: BYTES, ..asked };
        let mut answer = Head { kind: kind::IO, payload: 44, op: head.op }.encode().to_vec();
        answer.extend(io.encode());
        answer.extend([(head.op as u8).wrapping_add(1); BYTES as usize]);
        answer
    }

    pub fn slot(ours: UnixStream) -> Arc<Slot> {
        let socket = Socket::Unix(ours);
        socket.set_timeout(Duration::from_secs(30)).unwrap();
        let connection = Connection::new(Stream::Plain(socket), 65536, Duration::from_secs(30), None);
        let folder = tempfile::tempdir().unwrap();
        let grant = Ledger::new(folder.path()).reserve("esx1", "nfc", u64::MAX, Duration::ZERO).unwrap();
        Slot::new(connection, grant).unwrap()
    }

    /// Each lane always has one request in flight, so each answer changes whose turn it is to receive.
    #[test]
    fn whoever_has_its_answer_hands_the_turn_to_receive_on_at_once() {
        const LANES: u64 = 3;
        const ROUNDS: u64 = 200;
        let (ours, mut host) = UnixStream::pair().unwrap();
        let slot = slot(ours);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let slot = &slot;
            for owner in 1..=LANES {
                scope.spawn(move || (0..ROUNDS).for_each(|_| assert!(read(slot, owner).result.is_ok())));
            }
            (0..LANES * ROUNDS).for_each(|_| answer(&mut host));
        });
        // A turn that is lost costs one pause each.
        assert!(started.elapsed() < LOOK_AGAIN * (ROUNDS as u32), "{:?}", started.elapsed());
    }

    /// A host that answers nothing until it has the requests of all lanes, and then the last one first.
    #[test]
    fn lanes_that_wait_do_not_keep_others_from_sending() {
        const LANES: usize = 3;
        let (ours, mut host) = UnixStream::pair().unwrap();
        let slot = slot(ours);
        std::thread::scope(|scope| {
            let slot = &slot;
            let lanes: Vec<_> =
                (1..=LANES as u64).map(|owner| scope.spawn(move || read(slot, owner))).collect();
            host.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut requests = [[0; HEAD_BYTES + 44]; LANES];
            requests.iter_mut().for_each(|request| host.read_exact(request).unwrap());
            requests.iter().rev().for_each(|request| host.write_all(&answer_to(request)).unwrap());
            for lane in lanes {
                let ended = lane.join().unwrap();
                assert!(ended.result.is_ok(), "{:?}", ended.result);
            }
        });
    }
}
