//! What the sessions of a listener may hold in memory, and what each peer may have of it. Pure.
//!
//! A session gets a sixth of what is left for its peer, so the first ones are as large as a long line asks for and
//! later ones take less; none gets less than a small share, and when there is not even that no more are let in.

use drover_wire::Credits;

use crate::core::{Limits, MESSAGES_CREDIT_FIRST};

/// What all sessions may hold, if nothing else is said.
pub const BYTES_MAX: u64 = 4 << 30;

/// A session gets one of so many parts of what is left.
const PARTS: u64 = 6;

/// Less credit than two channels of messages have at first is of no use.
const CREDIT_MIN: u64 = 2 * MESSAGES_CREDIT_FIRST;

/// What a session can hold at most under these limits: what arrived and is not read, what was taken and is not
/// acknowledged, and buffers that are kept for reuse. Memory for them may be an eighth more: buffers have few sizes.
pub fn bytes_of(limits: &Limits) -> u64 {
    limits.credits.session + limits.held_bytes_max + limits.pool_bytes_max()
}

/// The limits of a further session, which can hold no more than its share of what is left; `None` if that is too
/// little.
pub fn share(asked: &Limits, left: u64) -> Option<Limits> {
    let least = CREDIT_MIN + CREDIT_MIN / 8 * 5;
    // Who asks for less gets that.
    if bytes_of(asked) <= left.min(least) {
        return Some(*asked);
    }
    if left < least {
        return None;
    }
    let bytes = (left / PARTS).max(least).min(bytes_of(asked));
    // Of 13 parts 4 for what is sent, and one for the buffers of that.
    let limits = Limits { held_bytes_max: asked.held_bytes_max.min(bytes / 13 * 4), ..*asked };
    let session = asked.credits.session.min(bytes - limits.held_bytes_max - limits.pool_bytes_max());
    Some(Limits { credits: Credits { session, ..asked.credits }, ..limits })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a peer gets that asks for as many sessions as it can have.
    fn greedy(asked: &Limits, all: u64) -> Vec<Limits> {
        let (mut left, mut got) = (all, Vec::new());
        while let Some(limits) = share(asked, left) {
            assert!(bytes_of(&limits) <= left, "more than there was");
            left -= bytes_of(&limits);
            got.push(limits);
            assert!(got.len() < 10_000);
        }
        got
    }

    #[test]
    fn the_first_sessions_are_large_the_last_ones_small_and_together_they_keep_the_bound() {
        let got = greedy(&Limits::default(), 2 << 30);
        assert!(got[0].credits.session > 200 << 20, "{:?}", got[0]);
        assert!((15..40).contains(&got.len()), "{}", got.len());
        assert!(got.iter().all(|it| it.credits.session >= CREDIT_MIN && it.held_bytes_max >= CREDIT_MIN / 2));
        assert!(got.is_sorted_by_key(|it| std::cmp::Reverse(it.credits.session)));
        assert!(got.iter().map(bytes_of).sum::<u64>() <= 2 << 30);
    }

    #[test]
    fn who_asks_for_little_gets_it_as_long_as_there_is_any() {
        let mut small = Limits { held_bytes_max: 1 << 20, ..Limits::default() };
        small.credits.session = 1 << 20;
        assert_eq!(greedy(&small, 63 << 20).len(), 28, "of 2.25 MiB each");
        assert_eq!(share(&Limits::default(), 1 << 20), None);
        assert_eq!(
            share(&Limits::default(), 1 << 40),
            Some(Limits::default()),
            "never more than was asked for"
        );
    }
}
