//! How many guests are down for their cutovers at once: of all Plans, and of each. The one scheduler says so, as on one machine.

use std::collections::BTreeMap;

use drover_schedule::{Budgets, Ended, Job, JobId, Scheduler, Tenant, TenantLimits};

/// Migrations whose guests are down for their cutovers, and those that ask for that.
#[derive(Clone, Debug)]
pub struct Cutovers {
    scheduler: Scheduler,
    jobs: BTreeMap<String, One>,
    /// By their UIDs, each with how many of its Migrations are there.
    plans: BTreeMap<String, (Tenant, usize)>,
    next_tenant: u64,
}

#[derive(Clone, Debug)]
struct One {
    id: JobId,
    plan: String,
    /// Whether it asks now, or did when it was admitted.
    asks: bool,
    is_admitted: bool,
    /// Whether its guest was down when it came: it was admitted beside all limits.
    was_down: bool,
}

impl Cutovers {
    /// With nothing in it.
    pub fn new(budgets: Budgets) -> Cutovers {
        let scheduler = Scheduler::new(budgets);
        Cutovers { scheduler, jobs: BTreeMap::new(), plans: BTreeMap::new(), next_tenant: 0 }
    }

    /// Whether its guest may be shut down.
    pub fn may(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|one| one.is_admitted)
    }

    /// A Migration of a Plan that lets so many guests be down asks to move over. One whose guest is down waits for nobody.
    pub fn want(&mut self, name: &str, plan: &str, most: Option<u32>, is_down: bool, now_ms: u64) {
        self.limit(plan, most);
        let known = self.jobs.get_mut(name);
        if let Some(one) = known.filter(|one| one.plan == plan && (one.is_admitted || !is_down)) {
            if !std::mem::replace(&mut one.asks, true) {
                // Whether it may is asked in its turn.
                let _ = self.scheduler.may_move_over(one.id, now_ms);
            }
            return;
        }
        self.leave(name, now_ms);
        self.limit(plan, most);
        let Some((tenant, count)) = self.plans.get_mut(plan) else { return };
        *count += 1;
        let job = Job { name: name.to_string(), is_warm: true, goes_on: is_down, ..Job::default() };
        if let Some(id) = self.scheduler.add(*tenant, vec![job], now_ms).first().copied() {
            // It stands in the order of those that ask from now on.
            let _ = self.scheduler.may_move_over(id, now_ms);
            let is_admitted = is_down && self.scheduler.ask_cutover(id, now_ms).is_ok();
            let one = One { id, plan: plan.to_string(), asks: true, is_admitted, was_down: is_down };
            self.jobs.insert(name.to_string(), one);
        }
    }

    /// Has the scheduler keep to what a Plan says now.
    fn limit(&mut self, plan: &str, most: Option<u32>) {
        let (tenant, _) = self.plans.entry(plan.to_string()).or_insert_with(|| {
            self.next_tenant += 1;
            (Tenant(self.next_tenant), 0)
        });
        let cutovers = Some(most.unwrap_or(u32::MAX));
        self.scheduler.set_tenant(*tenant, TenantLimits { cutovers, ..TenantLimits::default() });
    }

    /// It makes a pass, and asks again after that: until then another may move over in its place, and it keeps its own among those that
    /// ask. One that never asked has none.
    pub fn pause(&mut self, name: &str, now_ms: u64) {
        let Some(one) = self.jobs.get_mut(name) else { return };
        if one.was_down {
            return self.leave(name, now_ms);
        }
        (one.asks, one.is_admitted) = (false, false);
        self.scheduler.give_back_cutover(one.id);
        self.scheduler.pause_cutover(one.id);
    }

    /// It asks no more, and its guest is not down.
    pub fn leave(&mut self, name: &str, now_ms: u64) {
        let Some(one) = self.jobs.remove(name) else { return };
        self.scheduler.finished(one.id, Ended::LeftOut, now_ms);
        self.scheduler.forget_job(one.id);
        if let Some((tenant, count)) = self.plans.get_mut(&one.plan) {
            *count -= 1;
            if *count == 0 {
                self.scheduler.forget(*tenant);
                self.plans.remove(&one.plan);
            }
        }
    }

    /// Those that may move over from now on.
    pub fn admit(&mut self, now_ms: u64) -> Vec<String> {
        let mut fresh = Vec::new();
        for (name, one) in self.jobs.iter_mut().filter(|(_, one)| one.asks && !one.is_admitted) {
            one.is_admitted = self.scheduler.ask_cutover(one.id, now_ms).is_ok();
            if one.is_admitted {
                fresh.push(name.clone());
            }
        }
        fresh
    }

    /// Those that ask, and those whose guests are down or may be shut down.
    pub fn counts(&self) -> (usize, usize) {
        let admitted = self.jobs.values().filter(|one| one.is_admitted).count();
        let asking = self.jobs.values().filter(|one| one.asks && !one.is_admitted).count();
        (asking, admitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cutovers: u32) -> Cutovers {
        Cutovers::new(Budgets { cutovers, ..Budgets::default() })
    }

    #[test]
    fn no_more_guests_are_down_than_all_and_their_plan_let() {
        let mut all = of(3);
        for name in ["a", "b", "c"] {
            all.want(name, "p", Some(1), false, 0);
        }
        for name in ["d", "e", "f"] {
            all.want(name, "q", None, false, 0);
            all.want(name, "q", None, false, 0);
        }
        assert_eq!(all.admit(0), ["a", "d", "e"], "of each Plan as many as it says, in the order of asking");
        assert!(all.admit(1).is_empty() && all.may("a") && !all.may("b") && !all.may("nobody"));
        assert_eq!(all.counts(), (3, 3));
        all.leave("d", 2);
        assert_eq!(all.admit(2), ["f"]);
        all.leave("a", 3);
        all.leave("a", 3);
        assert_eq!(all.admit(3), ["b"]);
        // The Plan was edited.
        all.leave("e", 4);
        all.want("c", "p", Some(2), false, 4);
        assert_eq!(all.admit(4), ["c"]);
        ["a", "b", "c", "d", "e", "f"].iter().for_each(|name| all.leave(name, 5));
        assert!(all.plans.is_empty() && all.jobs.is_empty() && all.scheduler.is_done());
    }

    #[test]
    fn one_that_makes_a_pass_has_no_place_meanwhile_and_is_the_next_after_it() {
        let mut all = of(1);
        for name in ["a", "b", "c"] {
            all.want(name, "p", None, false, 0);
        }
        assert_eq!(all.admit(0), ["a"]);
        all.pause("a", 1);
        all.pause("a", 1);
        all.pause("never asked", 1);
        assert_eq!((all.may("a"), all.admit(1)), (false, vec!["b".to_string()]));
        assert_eq!(all.counts(), (1, 1));
        // One that waits keeps its turn, too.
        all.pause("c", 2);
        all.want("d", "p", None, false, 2);
        for name in ["a", "c"] {
            all.want(name, "p", None, false, 3);
        }
        let mut order = Vec::new();
        for name in ["b", "a", "c"] {
            all.leave(name, 4);
            order.extend(all.admit(4));
        }
        assert_eq!(order, ["a", "c", "d"]);
        // One whose guest was down before goes beside no limit any more.
        all.want("down", "p", None, true, 5);
        all.pause("down", 5);
        all.want("down", "p", None, false, 5);
        assert!(all.admit(5).is_empty() && !all.may("down"));
        ["d", "down"].iter().for_each(|name| all.leave(name, 6));
        assert!(all.plans.is_empty() && all.scheduler.is_done());
    }

    #[test]
    fn a_guest_that_is_down_counts_and_waits_for_nobody() {
        let mut all = of(1);
        all.want("a", "p", Some(1), false, 0);
        assert_eq!(all.admit(0), ["a"]);
        all.want("asks", "p", Some(1), false, 0);
        // Workers of an operator before asked nobody.
        all.want("old", "p", Some(1), true, 0);
        all.want("asks", "p", Some(1), true, 0);
        assert!(all.may("old") && all.may("asks"));
        all.want("waits", "p", Some(1), false, 0);
        for name in ["a", "old"] {
            all.leave(name, 1);
            assert!(all.admit(1).is_empty());
        }
        all.leave("asks", 2);
        assert_eq!(all.admit(2), ["waits"]);
    }
}
