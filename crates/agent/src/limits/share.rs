//! Who gets how much of a limit. Pure.
//!
//! Each looks every second or so at what the others want and take, and finds its own share by the same arithmetic. Who
//! is to have less takes less at once; who is to have more takes what the others have left by then. So all together
//! take no more than the limit, but for the least parts of those that have just come.

use std::time::Duration;

/// Nobody gets less than one of so many parts of an equal share: who was idle needs some to show that it wants more.
const LEAST: u64 = 16;

/// Who owes this much to its limit is held back by it.
const DEBT_HELD: Duration = Duration::from_secs(1);

/// What one that keeps to a limit tells the others, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// What it would send.
    pub wants: u64,
    /// What it keeps to.
    pub takes: u64,
}

/// What one sent since it looked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes a second, on average.
    pub bytes_per_second: u64,
    /// How long it has to wait now, because it sent ahead.
    pub debt: Duration,
}

/// What one wants of a limit, by what it sent with its part: all that can be had where that held it back, else twice
/// as much as it sent. A pause halves it with each look, so that a disk that is slow for a moment loses little.
pub fn wanted(limit: u64, part: Part, sent: Sent) -> u64 {
    let most = part.takes - part.takes / 4;
    let is_held = sent.debt >= DEBT_HELD || (sent.bytes_per_second >= most && most > 0);
    let now = if is_held { limit } else { sent.bytes_per_second.saturating_mul(2) };
    now.max(part.wants / 2).min(limit)
}

/// What one that wants so much may take beside the others, in bytes a second, at least 1.
pub fn share(limit: u64, wants: u64, others: &[Part]) -> u64 {
    let taken = others.iter().fold(0u64, |sum, part| sum.saturating_add(part.takes));
    let free = limit.saturating_sub(taken);
    fair(limit, wants, others).min(free).max(least(limit, others.len()))
}

fn least(limit: u64, others: usize) -> u64 {
    (limit / LEAST / (others as u64 + 1)).max(1)
}

/// What is one's own once all have looked: nobody has more than it wants while another has less than it wants and less
/// than the first. What nobody wants is given to all alike.
fn fair(limit: u64, wants: u64, others: &[Part]) -> u64 {
    let least = least(limit, others.len());
    let own = wants.max(least);
    let mut all: Vec<u64> = others.iter().map(|part| part.wants.max(least)).collect();
    all.push(own);
    all.sort_unstable();
    let count = all.len() as u64;
    let mut left = limit;
    for (wants, who) in all.into_iter().zip((1..=count).rev()) {
        let level = left / who;
        if wants > level {
            return own.min(level);
        }
        left -= wants;
    }
    own.saturating_add(left / count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 1_600_000;

    /// What each gets in the end of those that want so much.
    fn settled(wants: &[u64]) -> Vec<u64> {
        let mut parts: Vec<Part> = wants.iter().map(|wants| Part { wants: *wants, takes: 0 }).collect();
        for at in (0..parts.len()).cycle().take(3 * parts.len()) {
            look(&mut parts, at);
        }
        parts.iter().map(|part| part.takes).collect()
    }

    fn look(parts: &mut [Part], at: usize) {
        let mut others = parts.to_vec();
        others.remove(at);
        parts[at].takes = share(LIMIT, parts[at].wants, &others);
    }

    fn sum(parts: &[Part]) -> u64 {
        parts.iter().map(|part| part.takes).sum()
    }

    #[test]
    fn busy_ones_share_alike_and_idle_ones_have_little() {
        assert_eq!(settled(&[0]), [LIMIT], "alone");
        assert_eq!(settled(&[LIMIT]), [LIMIT], "alone and busy");
        assert_eq!(settled(&[LIMIT, LIMIT]), [800_000; 2]);
        assert_eq!(settled(&[0, 0]), [800_000; 2], "what nobody wants");
        assert_eq!(settled(&[LIMIT, 0]), [1_550_000, 50_000]);
        assert_eq!(settled(&[200_000, LIMIT, LIMIT, 0]), [200_000, 687_500, 687_500, 25_000]);
        assert_eq!(settled(&[u64::MAX, 400_000]), [1_200_000, 400_000]);
    }

    #[test]
    fn one_that_comes_takes_its_half_once_the_other_has_looked() {
        let busy = |takes| Part { wants: LIMIT, takes };
        let mut parts = vec![busy(LIMIT), busy(0)];
        look(&mut parts, 1);
        assert_eq!(parts[1].takes, 50_000, "the least there is");
        look(&mut parts, 0);
        look(&mut parts, 1);
        assert_eq!(parts, [busy(800_000); 2]);
        parts.remove(0);
        look(&mut parts, 0);
        assert_eq!(parts, [busy(LIMIT)], "the other was killed");
    }

    #[test]
    fn who_is_held_back_wants_all_and_who_is_not_twice_what_it_sends() {
        let part = Part { wants: 0, takes: 1000 };
        let sent = |bytes_per_second| Sent { bytes_per_second, debt: Duration::ZERO };
        assert_eq!(wanted(LIMIT, part, sent(750)), LIMIT);
        assert_eq!(wanted(LIMIT, part, sent(749)), 1498);
        assert_eq!(wanted(LIMIT, part, Sent { debt: DEBT_HELD, ..Sent::default() }), LIMIT);
        assert_eq!(wanted(LIMIT, Part::default(), sent(0)), 0, "just come");
        assert_eq!(wanted(LIMIT, part, sent(u64::MAX)), LIMIT);
        // A pause.
        let mut part = Part { wants: LIMIT, takes: LIMIT };
        let looks = (0..).take_while(|_| {
            part.wants = wanted(LIMIT, part, sent(0));
            part.wants > LIMIT / LEAST
        });
        assert_eq!(looks.count(), 3);
    }

    #[test]
    fn a_limit_smaller_than_those_that_share_it_stops_nobody() {
        assert_eq!(share(0, 5, &[Part { wants: 7, takes: 9 }]), 1);
        assert_eq!(share(1, u64::MAX, &[Part { wants: u64::MAX, takes: u64::MAX }; 3]), 1);
        assert_eq!(share(u64::MAX, u64::MAX, &[]), u64::MAX);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Comes,
        Goes(usize),
        Looks { who: usize, wants: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Comes),
            1 => (0..8usize).prop_map(Step::Goes),
            9 => (0..8usize, prop_oneof![Just(0), Just(LIMIT), 0..LIMIT])
                .prop_map(|(who, wants)| Step::Looks { who, wants }),
        ]
    }

    fn take(step: Step, parts: &mut Vec<Part>) {
        match step {
            Step::Comes if parts.len() < 8 => {
                let at = parts.len();
                parts.push(Part::default());
                look(parts, at);
            }
            Step::Goes(who) if who < parts.len() => drop(parts.remove(who)),
            Step::Looks { who, wants } if who < parts.len() => {
                parts[who].wants = wants;
                look(parts, who);
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn together_they_take_no_more_than_the_limit_and_waste_nothing_of_it(
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut parts = Vec::new();
            for step in steps {
                take(step, &mut parts);
                // Beyond it are only the least parts of those that came.
                prop_assert!(sum(&parts) <= LIMIT + LIMIT / LEAST * 3, "{parts:?}");
            }
            (0..parts.len()).for_each(|at| look(&mut parts, at));
            prop_assert!(sum(&parts) <= LIMIT, "once all have looked: {parts:?}");
            (0..parts.len()).for_each(|at| look(&mut parts, at));
            let count = parts.len() as u64;
            prop_assert!(parts.is_empty() || sum(&parts) >= LIMIT - count, "once more: {parts:?}");
            for (one, other) in parts.iter().flat_map(|one| parts.iter().map(move |other| (one, other))) {
                prop_assert!(one.wants < other.wants || one.takes >= other.takes, "{one:?} {other:?}");
            }
        }
    }
}
