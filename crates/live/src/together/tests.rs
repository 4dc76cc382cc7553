use std::collections::VecDeque;
use std::time::Duration;

use drover_types::Estimate;
use proptest::prelude::*;

use super::*;
use crate::choose::Allowed;
use crate::forecast::{Facts, Promise, SoFar};

const MIB: u64 = 1 << 20;
const MB: f64 = 1e6;

fn guest(name: &str, memory_mib: u64, dirty: f64) -> Guest {
    let bytes = memory_mib * MIB;
    Guest {
        name: name.into(),
        facts: Facts {
            used_bytes: bytes,
            memory_bytes: bytes,
            dirty: Estimate { likely: dirty, spread: 0.0 },
            working_set_bytes: bytes,
            rate: Estimate::default(),
            overhead: Estimate { likely: 0.03, spread: 0.0 },
            so_far: SoFar::default(),
        },
        promise: Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(3600) },
        allowed: Allowed::default(),
        channels: 4,
        disk_bytes: 0,
        rate_max: None,
        is_under_way: false,
        pace: Pace { prepares_s: 0.0, aside_s: 1.5, beside_s: 0.0 },
    }
}

fn alike(number: usize, memory_mib: u64, dirty: f64) -> Vec<Guest> {
    (0..number).map(|number| guest(&format!("web{number}"), memory_mib, dirty)).collect()
}

fn pipe(line: f64) -> Pipe {
    Pipe {
        line: Estimate { likely: line, spread: line * 0.1 },
        rate_max: None,
        connection: None,
        share_min: MIB,
        at_once_max: None,
    }
}

fn chosen(guests: &[Guest], pipe: &Pipe) -> Foreseen {
    let schedule = schedule(guests, pipe);
    let words: Vec<String> = schedule.looked_at.iter().map(ToString::to_string).collect();
    schedule.chosen.unwrap_or_else(|| panic!("{words:?}"))
}

#[test]
fn busy_guests_go_one_after_the_other_on_a_line_that_one_fills() {
    let guests = alike(4, 4096, 40.0 * MB);
    let schedule = schedule(&guests, &pipe(200.0 * MB));
    let chosen = schedule.chosen.unwrap();
    assert_eq!(chosen.way, "one after the other");
    // A quarter of the line each: what they write meanwhile is almost what is sent.
    let at_once = schedule.looked_at.last().unwrap();
    assert!(at_once.total.likely > chosen.total.likely * 1.5, "{at_once}");
}

#[test]
fn small_guests_go_at_once_since_looking_takes_longer_than_sending() {
    let found = chosen(&alike(6, 64, 0.0), &pipe(1000.0 * MB));
    assert_eq!(found.way, "all at once");
    assert!(found.total.likely < 3.0, "{found}");
}

#[test]
fn over_a_link_as_many_go_at_once_as_do_not_make_the_others_wait_too_long() {
    let over = |downtime_ms, beside_s| {
        let mut guests = alike(8, 64, 0.0);
        for guest in &mut guests {
            guest.facts.overhead.likely = 0.18;
            guest.promise.downtime_max = Duration::from_millis(downtime_ms);
            guest.pace = Pace { prepares_s: 0.9, aside_s: 0.3, beside_s };
        }
        chosen(&guests, &pipe(1000.0 * MB))
    };
    assert_eq!([over(300, 0.1).width, over(200, 0.1).width], [2, 1]);
    assert_eq!([over(1000, 0.1).width, over(300, 0.0).width], [8, 8]);
    assert!((over(300, 0.1).downtime_most() - 0.28).abs() < 0.02);
}

#[test]
fn the_first_are_prepared_while_nobody_sends_and_the_others_meanwhile() {
    let mut guests = alike(3, 100, 0.0);
    guests.iter_mut().for_each(|guest| guest.pace = Pace { prepares_s: 5.0, aside_s: 0.5, beside_s: 1.0 });
    let found = chosen(&guests, &pipe(104.8576 * MB));
    assert_eq!(found.way, "one after the other");
    let all_s = 5.0 + 3.0 * (0.5 + 1.0 + 0.03);
    assert!((found.total.likely - all_s).abs() < 0.1, "{found}");
}

#[test]
fn no_more_go_at_once_than_was_said() {
    let two = Pipe { at_once_max: Some(2), ..pipe(1000.0 * MB) };
    let schedule = schedule(&alike(6, 64, 0.0), &two);
    assert_eq!(schedule.looked_at.iter().map(|one| one.width).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(schedule.chosen.unwrap().way, "2 at a time");
}

#[test]
fn guests_whose_connections_do_not_fill_the_line_go_at_once() {
    let slow = Pipe { connection: Some(5_000_000), ..pipe(125.0 * MB) };
    let found = chosen(&alike(4, 4096, MB), &slow);
    assert_eq!(found.way, "all at once");
    assert!(found.turns.iter().all(|turn| (turn.rate_least - 20.0 * MB).abs() < 1.0), "{found:?}");
}

#[test]
fn as_many_go_at_once_as_keep_their_promise() {
    // Beside one other each has 40 MB/s and converges; beside two it does not.
    let slow = Pipe { connection: Some(10_000_000), ..pipe(80.0 * MB) };
    let schedule = schedule(&alike(6, 1024, 30.0 * MB), &slow);
    let chosen = schedule.chosen.unwrap();
    assert_eq!(chosen.way, "2 at a time");
    let third = schedule.looked_at[2].to_string();
    assert!(
        third.starts_with("3 at a time: ") && third.contains("but web0 does not converge with 26.7 MB/s"),
        "{third}"
    );
}

#[test]
fn a_promise_is_to_be_kept_with_the_least_share_though_it_grows() {
    let guests = [guest("idle", 512, 0.0), guest("busy", 2048, 30.0 * MB)];
    let at_once = schedule(&guests, &pipe(50.0 * MB)).looked_at.pop().unwrap();
    assert!(at_once.to_string().contains("but busy does not converge with 25.0 MB/s"), "{at_once}");
}

#[test]
fn one_that_keeps_no_promise_even_alone_is_named() {
    let guests = [guest("db", 1024, 500.0 * MB), guest("web", 1024, 0.0)];
    let schedule = schedule(&guests, &pipe(100.0 * MB));
    assert_eq!(schedule.chosen, None);
    assert!(schedule.alone[0].course.is_none() && schedule.alone[1].course.is_some());
    assert!(schedule.looked_at.iter().all(|found| found.to_string().contains("but db does not converge")));
    let allowed = Allowed { throttle: false, postcopy: true };
    let may = [Guest { allowed, ..guests[0].clone() }, guests[1].clone()];
    chosen(&may, &pipe(100.0 * MB));
}

#[test]
fn the_longest_begins_first_and_those_under_way_before_it() {
    let mut guests = vec![guest("small", 64, 0.0), guest("large", 4096, 0.0), guest("other", 64, 0.0)];
    guests[2].is_under_way = true;
    let found = chosen(&guests, &pipe(100.0 * MB));
    let order: Vec<usize> = found.turns.iter().map(|turn| turn.guest).collect();
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn a_budget_bounds_the_sum_and_the_number() {
    let budget = Pipe { rate_max: Some(3 * MIB), ..pipe(1000.0 * MB) };
    let schedule = schedule(&alike(8, 16, 0.0), &budget);
    assert_eq!(schedule.looked_at.len(), 3, "a share of a MiB/s each");
    assert_eq!(schedule.excess(), Some(3 * 2_621_440), "QEMU bounds in steps");
    let all_s = 8.0 * 16.0 / 3.0;
    let chosen = schedule.chosen.unwrap();
    assert!(chosen.total.likely >= all_s && chosen.total.likely < all_s + 6.0, "{chosen}");
}

#[test]
fn steps_that_are_little_beside_the_budget_are_not_told() {
    let budget = Pipe { rate_max: Some(1_000_000_000), ..pipe(1000.0 * MB) };
    assert_eq!(schedule(&alike(8, 64, 0.0), &budget).excess(), None);
}

#[test]
fn disks_and_bounds_of_a_guests_own_count() {
    let mut guests = alike(2, 64, 0.0);
    guests[0].disk_bytes = 1000 * 1_000_000;
    guests[1].rate_max = Some(10_000_000);
    let schedule = schedule(&guests, &pipe(100.0 * MB));
    assert_eq!((schedule.caps[1], schedule.excess()), (10_000_000, None));
    let chosen = schedule.chosen.unwrap();
    assert_eq!(chosen.way, "all at once");
    let disk = chosen.turns.iter().find(|turn| turn.guest == 0).unwrap();
    assert!(disk.takes_s > 11.0 && disk.takes_s < 14.0, "{disk:?}");
}

#[test]
fn guests_that_fit_one_by_one_may_not_fit_together() {
    let guests = [("web01", 600 * MIB), ("web02", 600 * MIB)];
    assert_eq!(room_obstacle("host-b", &guests, 1200 * MIB), None);
    assert_eq!(room_obstacle("host-b", &guests[..1], 0), None, "each is looked at by itself");
    let told = room_obstacle("host-b", &guests, 1000 * MIB).unwrap().to_string();
    assert!(
        told.contains("web01, web02 have 1200 MiB") && told.contains("1000 are free at host-b"),
        "{told}"
    );
}

#[test]
fn a_share_is_free_when_the_one_that_had_it_says_so() {
    let mut together = Together::new(Some(100), 2, vec![0, 1, 2], &[60, 90, 90], &[false; 3]);
    assert_eq!(together.steps(), [Step::Begin(0, Some(50)), Step::Begin(1, Some(50))]);
    together.ended(0);
    assert_eq!(together.steps(), [Step::Begin(2, Some(50))]);
    together.ended(1);
    assert_eq!(together.steps(), [Step::Share(2, 90)]);
    // A fourth could not begin yet.
    let mut together = Together::new(Some(100), 2, vec![0, 1], &[100, 100], &[false, true]);
    together.moves[0].state = State::Goes { share: 100, until_kept: None };
    assert_eq!(together.steps(), [Step::Share(0, 50)]);
    together.keeps(0, 100);
    assert_eq!(together.steps(), [], "it still sends as much as before");
    together.keeps(0, 50);
    assert_eq!(together.steps(), [Step::Begin(1, Some(50))]);
}

#[test]
fn one_that_has_sent_all_makes_way_and_is_waited_for() {
    let mut together = Together::new(Some(100), 1, vec![0, 1], &[100, 100], &[false; 2]);
    assert_eq!(together.steps(), [Step::Begin(0, Some(100))]);
    assert_eq!(together.next_ones(), [1]);
    together.sent(1);
    assert_eq!(together.steps(), [], "it has not begun");
    together.sent(0);
    assert_eq!(together.steps(), [Step::Begin(1, Some(100))]);
    together.ended(1);
    assert!(!together.is_over(), "the first has not ended");
    together.ended(0);
    assert!(together.is_over());
    together.sent(0);
    assert!(together.is_over());
}

#[test]
fn a_budget_that_grows_is_shared_at_once_and_never_shrinks() {
    let mut together = Together::new(Some(100), 2, vec![0, 1], &[100, 100], &[false; 2]);
    assert_eq!(together.steps(), [Step::Begin(0, Some(50)), Step::Begin(1, Some(50))]);
    together.widen(60);
    assert_eq!(together.steps(), []);
    together.widen(180);
    assert_eq!(together.steps(), [Step::Share(0, 90), Step::Share(1, 90)]);
    let mut boundless = Together::new(None, 1, vec![0], &[100], &[false]);
    boundless.widen(10);
    assert_eq!(boundless.steps(), [Step::Begin(0, None)]);
}

#[test]
fn nothing_begins_after_it_was_stopped() {
    let mut together = Together::new(None, 1, vec![0, 1], &[1, 1], &[false; 2]);
    assert_eq!(together.steps(), [Step::Begin(0, None)]);
    assert!(!together.is_stopped());
    together.stop();
    together.ended(0);
    assert_eq!(together.steps(), []);
    assert!(together.is_stopped() && together.is_over());
    assert_eq!(together.waiting(), [1]);
}

/// Moves that do as they are told, late.
struct World {
    together: Together,
    budget: u64,
    width: usize,
    /// Those that an earlier run began may be more.
    most: usize,
    /// What each may really send.
    real: Vec<Option<u64>>,
    /// Orders that have not come to their moves yet.
    late: Vec<VecDeque<u64>>,
    begun: Vec<usize>,
}

impl World {
    fn new(budget: u64, width: usize, caps: &[u64], under_way: usize) -> World {
        let number = caps.len();
        let under_way: Vec<bool> = (0..number).map(|one| one < under_way).collect();
        let order = (0..number).collect();
        World {
            together: Together::new(Some(budget), width, order, caps, &under_way),
            budget,
            width,
            most: width.max(under_way.iter().filter(|is| **is).count()),
            real: vec![None; number],
            late: vec![VecDeque::new(); number],
            begun: Vec::new(),
        }
    }

    fn step(&mut self) {
        for step in self.together.steps() {
            match step {
                Step::Begin(one, share) => {
                    self.real[one] = share;
                    self.begun.push(one);
                }
                Step::Share(one, share) => self.late[one].push_back(share),
            }
            self.check();
        }
    }

    /// The next order comes to one that goes.
    fn obey(&mut self, one: usize) {
        if let Some(share) = self.late[one].pop_front() {
            self.real[one] = Some(share);
            self.together.keeps(one, share);
        }
        self.check();
    }

    fn end(&mut self, one: usize) {
        self.real[one] = None;
        self.late[one].clear();
        self.together.ended(one);
    }

    fn check(&self) {
        let sum: u64 = self.real.iter().flatten().sum();
        assert!(sum <= self.budget, "{sum} of {}", self.budget);
        assert!(self.real.iter().flatten().all(|share| *share > 0), "one starves: {:?}", self.real);
        assert!(self.real.iter().flatten().count() <= self.most);
        assert!(self.begun.windows(2).all(|pair| pair[0] < pair[1]), "out of order: {:?}", self.begun);
    }

    /// All orders have come: nothing of the budget is left that somebody could use.
    fn check_settled(&mut self, caps: &[u64]) {
        while self.late.iter().any(|orders| !orders.is_empty()) {
            (0..caps.len()).for_each(|one| self.obey(one));
            self.step();
        }
        let going: Vec<usize> = (0..caps.len()).filter(|one| self.real[*one].is_some()).collect();
        let sum: u64 = self.real.iter().flatten().sum();
        let are_full = going.iter().all(|one| self.real[*one] == Some(caps[*one]));
        assert!(are_full || sum + going.len() as u64 > self.budget, "{sum} of {}", self.budget);
        let room = self.together.waiting().is_empty() || going.len() >= self.width;
        assert!(room, "one waits that could begin");
    }
}

proptest! {
    #[test]
    fn shares_are_never_more_than_the_budget_and_all_come_to_their_end(
        budget in 100u64..10_000,
        width in 1usize..6,
        caps in prop::collection::vec(1u64..6_000, 1..12),
        under_way in 0usize..4,
        events in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..60),
    ) {
        let mut world = World::new(budget, width, &caps, under_way.min(caps.len()));
        world.step();
        for (ends, which) in events {
            let one = which.index(caps.len());
            match ends && world.real[one].is_some() {
                true => world.end(one),
                false => world.obey(one),
            }
            world.step();
        }
        while !world.together.is_over() {
            world.check_settled(&caps);
            let one = world.together.going()[0];
            world.end(one);
            world.step();
        }
        prop_assert_eq!(world.begun.len(), caps.len());
    }

    #[test]
    fn every_schedule_is_one_that_can_be_told_and_kept(
        memory in prop::collection::vec((16u64..4096, 0.0f64..50.0, 0u64..2), 1..9),
        line in 10.0f64..2000.0,
        rate_max in prop::option::of(2u64..2000),
    ) {
        let guests: Vec<Guest> = memory.iter().enumerate().map(|(number, (mib, dirty, disk))| Guest {
            disk_bytes: disk << 30,
            ..guest(&number.to_string(), *mib, dirty * MB)
        }).collect();
        let pipe = Pipe { rate_max: rate_max.map(|rate| rate * 1_000_000), ..pipe(line * MB) };
        let schedule = schedule(&guests, &pipe);
        for found in &schedule.looked_at {
            prop_assert_eq!(found.turns.len(), guests.len());
            prop_assert!(found.total.likely.is_finite() && found.total.spread.is_finite());
            prop_assert!(found.turns.windows(2).all(|pair| pair[0].begins_s <= pair[1].begins_s));
            // No faster than the line carries all that must go at least once.
            let bytes: u64 = guests.iter().map(|guest| guest.facts.used_bytes + guest.disk_bytes).sum();
            let least = bytes as f64 / (line * MB).min(pipe.rate_max.map_or(f64::INFINITY, |rate| rate as f64));
            prop_assert!(found.total.likely >= least * 0.999, "{} of {least}", found.total.likely);
        }
        if let Some(chosen) = &schedule.chosen {
            prop_assert!(chosen.keeps());
            let best = schedule.looked_at.iter().filter(|found| found.keeps());
            let best = best.map(|found| found.total.likely).fold(f64::INFINITY, f64::min);
            prop_assert!(chosen.total.likely <= best * 1.03);
        }
        let is_possible_alone = schedule.alone.iter().all(|choice| choice.course.is_some());
        prop_assert_eq!(is_possible_alone, schedule.looked_at[0].keeps());
    }
}

#[test]
fn what_is_left_is_foreseen_from_the_line_that_was_measured() {
    let guests = alike(3, 1000, 0.0);
    let pipe = pipe(100.0 * MB);
    let left = |so_far: [Progress; 3], width| foreseen_on_the_way(&guests, &so_far, &pipe, width).likely;
    let one = guests[0].facts.used_bytes as f64 / (100.0 * MB);
    let is_about = |found: f64, likely: f64| assert!((found - likely).abs() < 0.2, "{found}, not {likely}");
    is_about(left([Progress::Over, Progress::Waits, Progress::Over], 1), 1.5 + one);
    let half = Progress::Goes { left_bytes: 500 * MIB };
    is_about(left([Progress::Over, half, Progress::Waits], 1), 3.0 + one * 1.5);
    is_about(left([Progress::Over, half, half], 2), 1.5 + one);
    is_about(left([Progress::Over; 3], 1), 0.0);
}
