//! Which changes of what VMs wait for are worth telling. Pure: looks and times come from outside.
//!
//! VMs that wait for slots wait for another kind of them at nearly every look: those of their host, those of all disks, their turn.
//! With thousands of VMs, each told twice a second, these words would fill the state and tell nothing.

use std::collections::BTreeMap;

use drover_schedule::Wait;

/// Another kind of slots is told once it has been waited for, look after look, for so long.
const SETTLED_MS: i64 = 30_000;

/// What was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(BTreeMap<usize, One>);

#[derive(Clone, Debug)]
struct One {
    told: Wait,
    /// What it waits for now, if that is something else, and since when.
    now: Option<(Wait, i64)>,
}

impl Waits {
    /// Takes in what VMs wait for now, by their places; gives what is to be told. A caller that could not tell it keeps the
    /// state of before.
    pub(crate) fn look(&mut self, waits: Vec<(usize, Wait)>, now_ms: i64) -> Vec<(usize, Wait)> {
        let mut before = std::mem::take(&mut self.0);
        let mut news = Vec::new();
        for (at, wait) in waits {
            let one = match before.remove(&at) {
                Some(one) if !one.is_news(&wait, now_ms) => one.after(wait, now_ms),
                _ => {
                    news.push((at, wait.clone()));
                    One { told: wait, now: None }
                }
            };
            self.0.insert(at, one);
        }
        news
    }
}

impl One {
    /// Counts change all the time, and so does the kind of slots; what else is waited for does not.
    fn is_news(&self, wait: &Wait, now_ms: i64) -> bool {
        let is_settled = self
            .now
            .as_ref()
            .is_some_and(|(now, since)| now.is_for_same(wait) && now_ms - since >= SETTLED_MS);
        !self.told.is_for_same(wait) && (is_settled || !(self.told.is_for_slots() && wait.is_for_slots()))
    }

    fn after(self, wait: Wait, now_ms: i64) -> One {
        let now = match self.now {
            _ if self.told.is_for_same(&wait) => None,
            Some((now, since)) if now.is_for_same(&wait) => Some((now, since)),
            _ => Some((wait, now_ms)),
        };
        One { now, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> Wait {
        Wait::Turn { host: "esx1".into(), waiting: 3 }
    }

    fn disks(held: u32) -> Wait {
        Wait::Disks { held, of: 200, needs: 2 }
    }

    fn window() -> Wait {
        Wait::Window { opens_ms: 5, opens: String::new() }
    }

    /// What is told of one VM that waits for this from half a second to the next.
    fn told(looks: impl IntoIterator<Item = Wait>) -> Vec<Wait> {
        let mut waits = Waits::default();
        let looks = looks.into_iter().zip((0..).step_by(500));
        looks.flat_map(|(wait, now_ms)| waits.look(vec![(7, wait)], now_ms)).map(|(_, wait)| wait).collect()
    }

    #[test]
    fn slots_that_change_with_every_look_are_told_once() {
        let looks = (0..5000).map(|look| if look % 2 == 0 { turn() } else { disks(look) });
        assert_eq!(told(looks), [turn()]);
    }

    #[test]
    fn other_slots_are_told_when_they_stay_and_what_is_no_slot_at_once() {
        let mut stays = vec![turn()];
        stays.extend((0..59).map(disks));
        assert_eq!(told(stays.clone()), [turn()]);
        stays.extend([disks(60), disks(61), disks(62), window(), turn()]);
        assert_eq!(told(stays), [turn(), disks(61), window(), turn()]);
    }

    #[test]
    fn one_that_waits_again_is_told_again_and_others_are_not() {
        let mut waits = Waits::default();
        assert_eq!(waits.look(vec![(1, turn()), (2, turn())], 0).len(), 2);
        assert_eq!(waits.look(vec![(2, turn())], 500), []);
        assert_eq!(waits.look(vec![(1, turn()), (2, turn())], 1000), [(1, turn())]);
    }
}
