//! One question of several plans that share a schedule.

use drover_schedule::{Budgets, TenantLimits};

use crate::foresee::{Line, Question};

/// Plans that run at the same time within the budgets that they share. Each question is that of one plan, with its own budgets, which
/// limit it within those of all; rates, moment and seed are those of the first.
pub fn together(questions: Vec<Question>, budgets: &Budgets) -> Question {
    let mut all = Question { budgets: budgets.clone(), ..Question::default() };
    for (number, question) in questions.into_iter().enumerate() {
        if number == 0 {
            (all.rates, all.start_ms, all.seed) = (question.rates, question.start_ms, question.seed);
        }
        all.plans.extend(question.plans);
        all.vms.extend(question.vms.into_iter().map(|vm| crate::FleetVm { plan: number, ..vm }));
        all.waves.extend(question.waves.into_values().map(|waves| (number, waves)));
        all.sites.extend(question.sites.into_values().map(|site| (number, site)));
        all.limits.insert(number, TenantLimits::within(&question.budgets, budgets));
        for (host, limits) in question.hosts {
            let known = all.hosts.entry(host).or_default();
            *known = known.within(limits);
        }
        question.lines.into_iter().for_each(|line| add_line(&mut all.lines, line, number));
    }
    all
}

/// Plans to the same site share its line.
fn add_line(lines: &mut Vec<Line>, line: Line, plan: usize) {
    match lines.iter_mut().find(|it| it.name == line.name) {
        Some(known) => known.plans.push(plan),
        None => lines.push(Line { plans: vec![plan], ..line }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use drover_schedule::HostLimits;
    use drover_types::DayLimit;

    use super::*;
    use crate::foresee::foresee_roughly;
    use crate::foresee::tests::question;

    /// A plan of its own with so many VMs on one host.
    fn plan(name: &str, vms: usize) -> Question {
        Question { plans: vec![name.into()], ..question(vms, 1, 20) }
    }

    #[test]
    fn plans_on_one_host_take_as_long_together_as_the_host_needs_for_both() {
        let (one, two) = (plan("one", 10), plan("two", 20));
        let budgets = Budgets::default();
        let alone = foresee_roughly(&one).makespan_s.p50;
        let both = foresee_roughly(&together(vec![one, two], &budgets));
        assert_eq!(both.plans, ["one", "two"]);
        let ends: Vec<f64> = both.plan_ends_s.iter().map(|it| it.unwrap().p50).collect();
        assert!(ends[0] > alone * 1.5, "{} alone, {ends:?} together", alone);
        assert!(ends[0] < ends[1] && ends[1] > alone * 2.5, "{} alone, {ends:?} together", alone);
        assert!((ends[1] - both.makespan_s.p50).abs() < 1.0, "{ends:?}, {:?}", both.makespan_s);
    }

    #[test]
    fn a_plan_keeps_its_own_limits_within_those_of_all() {
        let own = |disks| Budgets { disks, ..Budgets::default() };
        let one = Question { budgets: own(1), ..plan("one", 6) };
        let limited = together(vec![one.clone(), plan("two", 1)], &Budgets::default());
        assert_eq!(limited.limits[&0], TenantLimits { disks: Some(1), ..TenantLimits::default() });
        assert_eq!(limited.limits[&1], TenantLimits::default());
        let free = together(vec![Question { budgets: own(200), ..one }, plan("two", 1)], &Budgets::default());
        let ends = [&limited, &free].map(|it| foresee_roughly(it).plan_ends_s[0].unwrap().p50);
        assert!(ends[0] > ends[1] * 1.5, "one disk at once, then all: {ends:?}");
    }

    #[test]
    fn hosts_have_the_least_that_is_told_and_plans_to_one_site_share_its_line() {
        let host = |disks| {
            BTreeMap::from([("esx0".to_string(), HostLimits { disks: Some(disks), ..HostLimits::default() })])
        };
        let line =
            || Line { name: "limit of site b".into(), limits: vec![DayLimit::always(1)], plans: vec![0] };
        let sites = [(0, "b".to_string())].into();
        let one = Question { hosts: host(4), lines: vec![line()], ..plan("one", 1) };
        let two = Question { hosts: host(9), lines: vec![line()], sites, ..plan("two", 2) };
        let all = together(vec![one, two], &Budgets::default());
        assert_eq!(all.hosts, host(4));
        assert_eq!(all.sites, [(1, "b".to_string())].into());
        assert_eq!(all.lines, [Line { plans: vec![0, 1], ..line() }]);
        assert_eq!(all.vms.iter().map(|vm| vm.plan).collect::<Vec<_>>(), [0, 1, 1]);
    }
}
