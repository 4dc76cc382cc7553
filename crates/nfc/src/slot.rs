use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_stream::Socket;

use crate::budget::{Buffers, Grant};
use crate::connection::Connection;
use crate::pending::Ended;

/// How long anybody waits before looking again: who sends takes in what is there, too, and wakes nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection that lanes take in turns, and its share of the host's memory. The connection ends first.
///
/// Nobody waits for the host with the connection in hand: the others could not send meanwhile, and each request of theirs
/// would wait for an answer to another. One of those that wait looks at the socket, and whoever takes in an answer tells.
pub struct Slot {
    /// Held while waiting, so that who came first gets it first.
    queue: Mutex<()>,
    connection: Mutex<Connection>,
    grant: Mutex<Option<Grant>>,
    socket: Socket,
    /// Whether somebody waits at the socket.
    is_watched: AtomicBool,
    /// Something was taken in, or nobody waits at the socket any more.
    news: Condvar,
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
            is_watched: AtomicBool::new(false),
            news: Condvar::new(),
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

    /// Waits until a request of `owner` ends, of which one has to be in flight. What comes is shown to `seen` as it comes.
    pub fn wait(&self, owner: u64, seen: &mut dyn FnMut(u64, &[u8])) -> Ended {
        loop {
            let mut connection = self.lock();
            if let Some(ended) = connection.take(owner) {
                drop(connection);
                self.news.notify_all();
                return ended;
            }
            if connection.receive_ready() {
                // Who looks long at bytes would keep others from theirs.
                if !connection.others_wait(owner)
                    && let Some((id, bytes)) = connection.arriving(owner)
                {
                    seen(id, bytes);
                }
                // Between two reads of the stream others may have it.
                drop(connection);
                self.news.notify_all();
                continue;
            }
            if self.is_watched.swap(true, Ordering::SeqCst) {
                let waited = self.news.wait_timeout(connection, LOOK_AGAIN);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(connection);
            // What is wrong with the socket shows itself by what the next receive returns.
            let _ = self.socket.wait_to_receive(LOOK_AGAIN);
            self.is_watched.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use drover_disk::{Buffer, Work};
    use drover_stream::Stream;
    use drover_types::ByteSpan;

    use super::*;
    use crate::budget::Ledger;
    use crate::codec::Codec;
    use crate::frame::{HEAD_BYTES, Head, Io, kind};
    use crate::pending::Owner;

    const BYTES: u32 = 512;

    /// A lane with a request of its own, from sending to its end.
    fn read(slot: &Slot, owner: u64) -> Ended {
        let span = ByteSpan::new(owner * u64::from(BYTES), BYTES.into());
        let work = Work::Read(Buffer::zeroed(BYTES as usize));
        slot.lock().start_work(Owner { owner, id: owner }, span, work, Codec::None);
        slot.wait(owner, &mut |_, _| {})
    }

    /// A host that answers nothing until it has the requests of all lanes, and then the last one first.
    #[test]
    fn lanes_that_wait_do_not_keep_others_from_sending() {
        const LANES: usize = 3;
        let (ours, mut host) = UnixStream::pair().unwrap();
        let socket = Socket::Unix(ours);
        socket.set_timeout(Duration::from_secs(30)).unwrap();
        let connection = Connection::new(Stream::Plain(socket), 65536, Duration::from_secs(30), None);
        let folder = tempfile::tempdir().unwrap();
        let grant = Ledger::new(folder.path()).reserve("esx1", "nfc", u64::MAX, Duration::ZERO).unwrap();
        let slot = Slot::new(connection, grant).unwrap();
        std::thread::scope(|scope| {
            let slot = &slot;
            let lanes: Vec<_> =
                (1..=LANES as u64).map(|owner| scope.spawn(move || read(slot, owner))).collect();
            host.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut requests = [[0; HEAD_BYTES + 44]; LANES];
            requests.iter_mut().for_each(|request| host.read_exact(request).unwrap());
            for request in requests.iter().rev() {
                let head = Head::decode(&request[..HEAD_BYTES]).ok().unwrap().unwrap();
                let asked = Io::decode(&request[HEAD_BYTES..]).ok().unwrap();
                let io = Io { handle: 0, at: 0, plain: BYTES, extra: BYTES, ..asked };
                let mut answer = Head { kind: kind::IO, payload: 44, op: head.op }.encode().to_vec();
                answer.extend(io.encode());
                answer.extend([head.op as u8 + 1; BYTES as usize]);
                host.write_all(&answer).unwrap();
            }
            for lane in lanes {
                let ended = lane.join().unwrap();
                assert!(ended.result.is_ok(), "{:?}", ended.result);
            }
        });
    }
}
