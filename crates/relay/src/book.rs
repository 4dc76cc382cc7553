//! What the threads of a relay note of connections that no worker ever had.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use drover_tcp as tcp;

use crate::connection::Meta;
use crate::stats::{Refusal, Totals};

/// Refusals that are kept until somebody asks; later ones are only counted.
const TOLD_MAX: usize = 64;

/// A connection that came to nothing, and why, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Who connected.
    pub client: SocketAddr,
    /// Where to.
    pub target: String,
    /// Why.
    pub reason: Refusal,
    /// Why, for people.
    pub why: String,
}

#[derive(Debug, Default)]
struct Pages {
    totals: Totals,
    told: VecDeque<Refused>,
}

#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<Pages>);

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Each entry is made in one step, so what a panic left is as good as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a client that was refused for a reason that needs no words, and resets it.
    pub(crate) fn turn_away(&self, client: &OwnedFd, reason: Refusal) {
        // On a socket that is closed already there is nobody to tell.
        let _ = tcp::reset_on_close(client);
        self.count(reason);
    }

    /// Counts one that came to nothing.
    pub(crate) fn count(&self, reason: Refusal) {
        let mut pages = self.pages();
        pages.totals.accepted += 1;
        pages.totals.refuse(reason);
    }

    /// The same with words. Who sees it counted finds the words.
    pub(crate) fn refuse(&self, client: &OwnedFd, meta: &Meta, reason: Refusal, why: String) {
        self.tell(meta, reason, why);
        self.turn_away(client, reason);
    }

    /// Keeps why a connection came to nothing that is counted elsewhere.
    pub(crate) fn tell(&self, meta: &Meta, reason: Refusal, why: String) {
        let mut pages = self.pages();
        if pages.told.len() < TOLD_MAX {
            let (client, target) = (meta.client, meta.target.clone());
            pages.told.push_back(Refused { client, target, reason, why });
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.pages().totals.clone()
    }

    pub(crate) fn take_told(&self) -> Vec<Refused> {
        self.pages().told.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_sees_a_refusal_counted_finds_its_words() {
        let client = OwnedFd::from(UnixStream::pair().unwrap().0);
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let meta =
            Meta { id: 1, client: address, target: "x:1".into(), rule: None, accepted_at: Instant::now() };
        for _ in 0..40 {
            let book = Book::default();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..TOLD_MAX).for_each(|_| book.refuse(&client, &meta, Refusal::Link, "no link".into()));
                });
                let mut told = 0;
                while told < TOLD_MAX {
                    let counted = book.totals().refused.get(&Refusal::Link).map_or(0, |it| *it as usize);
                    told += book.take_told().len();
                    assert!(told >= counted, "{counted} are counted, and {told} told");
                }
            });
        }
    }
}
