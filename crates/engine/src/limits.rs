//! Limits of a plan, and orders that change them while it runs.

use std::fmt::Display;

use drover_plan::{AT_ONCE_MAX, Limits, Plan, Source};
use drover_types::DayLimit;
use serde::{Deserialize, Serialize};

use crate::error::{Cause, EngineError, ProviderError};
use crate::store::{PlanRow, PlanState, Store};

/// In place of a rate: as fast as it goes.
const NO_RATE: &str = "none";

/// As many limits by the hours are taken in one order.
const RATES_MAX: usize = 64;

/// What was ordered of a plan's limits; absent: as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsOrder {
    /// What may be read of the source, or go to the site, by the hours; none: as fast as it goes.
    pub rate_limit: Option<Vec<DayLimit>>,
    /// Disks at once in all.
    pub disks: Option<u32>,
    /// VMs of one host at once.
    pub vms_per_host: Option<u32>,
}

impl LimitsOrder {
    /// As somebody wrote it, in the words of plan keys. A rate is `RATE` or `WINDOW=RATE`, and `none` alone takes the limit away.
    ///
    /// # Errors
    /// Which limit makes no sense, and why.
    pub fn read(
        rate_limit: Option<&[String]>,
        disks: Option<i64>,
        vms_per_host: Option<i64>,
    ) -> Result<LimitsOrder, String> {
        let order = LimitsOrder {
            rate_limit: rate_limit.map(read_rates).transpose()?,
            disks: disks.map(|value| read_count("disks", value)).transpose()?,
            vms_per_host: vms_per_host.map(|value| read_count("vms_per_host", value)).transpose()?,
        };
        match order == LimitsOrder::default() {
            true => Err("no limit is named: rate_limit, disks or vms_per_host".into()),
            false => Ok(order),
        }
    }

    /// With what was ordered before of those that this one says nothing of.
    pub(crate) fn over(self, before: LimitsOrder) -> LimitsOrder {
        LimitsOrder {
            rate_limit: self.rate_limit.or(before.rate_limit),
            disks: self.disks.or(before.disks),
            vms_per_host: self.vms_per_host.or(before.vms_per_host),
        }
    }
}

fn read_rates(texts: &[String]) -> Result<Vec<DayLimit>, String> {
    if texts.len() > RATES_MAX {
        return Err(format!("rate_limit: {} limits, and at most {RATES_MAX} are taken", texts.len()));
    }
    match texts {
        [text] if text == NO_RATE => Ok(Vec::new()),
        texts => {
            let read = |text: &String| text.parse::<DayLimit>().map_err(|why| format!("rate_limit: {why}"));
            texts.iter().map(read).collect()
        }
    }
}

fn read_count(name: &str, value: i64) -> Result<u32, String> {
    let fits = u32::try_from(value).ok().filter(|value| (1..=AT_ONCE_MAX).contains(value));
    fits.ok_or_else(|| format!("{name}: '{value}' is not a number from 1 to {AT_ONCE_MAX}"))
}

/// Limits that may be changed by order, as they are at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsInForce {
    /// What may be read of the source, or go to the site, by the hours; none: as fast as it goes.
    #[serde(with = "rates")]
    pub rate_limit: Vec<DayLimit>,
    /// Disks at once in all.
    pub disks: u32,
    /// VMs of one host at once.
    pub vms_per_host: u32,
}

impl LimitsInForce {
    /// What a plan says.
    pub fn new(limits: &Limits, rate_limit: &[DayLimit]) -> LimitsInForce {
        let Limits { disks, vms_per_host, .. } = *limits;
        LimitsInForce { rate_limit: rate_limit.to_vec(), disks, vms_per_host }
    }

    /// With what was ordered.
    #[must_use]
    pub fn with(&self, order: &LimitsOrder) -> LimitsInForce {
        LimitsInForce {
            rate_limit: order.rate_limit.clone().unwrap_or_else(|| self.rate_limit.clone()),
            disks: order.disks.unwrap_or(self.disks),
            vms_per_host: order.vms_per_host.unwrap_or(self.vms_per_host),
        }
    }

    /// What a run of this plan keeps to.
    pub fn apply(self, plan: &mut Plan) {
        plan.target.rate_limit = self.rate_limit;
        (plan.limits.disks, plan.limits.vms_per_host) = (self.disks, self.vms_per_host);
    }

    /// The rates as they may be written in a plan; `none` if there is no limit.
    pub fn rate_text(&self) -> String {
        let texts: Vec<String> = self.rate_limit.iter().map(DayLimit::text).collect();
        if texts.is_empty() { NO_RATE.into() } else { texts.join(", ") }
    }

    /// What becomes different: `rate_limit 1KiB -> none, disks 4 -> 8`; empty if nothing does.
    pub fn changes_to(&self, next: &LimitsInForce) -> String {
        let mut changes = Vec::new();
        let mut tell = |name: &str, is_new: bool, from: &dyn Display, to: &dyn Display| {
            if is_new {
                changes.push(format!("{name} {from} -> {to}"));
            }
        };
        tell("rate_limit", self.rate_limit != next.rate_limit, &self.rate_text(), &next.rate_text());
        tell("disks", self.disks != next.disks, &self.disks, &next.disks);
        tell("vms_per_host", self.vms_per_host != next.vms_per_host, &self.vms_per_host, &next.vms_per_host);
        changes.join(", ")
    }
}

/// Rates as texts of a plan.
mod rates {
    use drover_types::DayLimit;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(limits: &[DayLimit], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(limits.iter().map(DayLimit::text))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<DayLimit>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// The limits of a plan in force, and what the plan itself says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLimits {
    /// In force.
    pub now: LimitsInForce,
    /// In the plan.
    pub plan: LimitsInForce,
}

impl PlanLimits {
    /// What an order made different; empty if nothing is.
    pub fn changes(&self) -> String {
        self.plan.changes_to(&self.now)
    }
}

/// The limits of a plan that was begun; an order about one that is over holds no more.
///
/// # Errors
/// If the state cannot be read, or the plan as it was begun cannot be read any more.
pub fn plan_limits(store: &Store, row: &PlanRow) -> Result<PlanLimits, EngineError> {
    limits_of(store, row, &as_begun(row)?)
}

fn as_begun(row: &PlanRow) -> Result<Plan, EngineError> {
    Plan::parse(&row.text).map_err(|problems| {
        let why = problems.first().map(ToString::to_string).unwrap_or_default();
        let what = format!("the limits of plan {}: its text cannot be read: {why}", row.name);
        ProviderError::new(Cause::Plan, what).advise("use the version of drover that began it").into()
    })
}

fn limits_of(store: &Store, row: &PlanRow, own: &Plan) -> Result<PlanLimits, EngineError> {
    let plan = LimitsInForce::new(&own.limits, &own.target.rate_limit);
    let order = match is_over(row) {
        true => LimitsOrder::default(),
        false => store.limits_order(&row.name)?.unwrap_or_default(),
    };
    Ok(PlanLimits { now: plan.with(&order), plan })
}

fn is_over(row: &PlanRow) -> bool {
    matches!(row.state, PlanState::Done | PlanState::Cancelled)
}

/// Orders that limits of a plan are these from now on. A running drover keeps to them at once, else the next one that goes on with the
/// plan. Gives what they were, and what they are.
///
/// # Errors
/// If the plan is over, or has not begun, if one of them has no effect, or the state cannot be read or written.
pub fn ask_limits(
    store: &Store,
    plan: &str,
    order: &LimitsOrder,
) -> Result<(LimitsInForce, LimitsInForce), EngineError> {
    let refuse = |what: String, advice: String| {
        Err(EngineError::from(ProviderError::new(Cause::Plan, what).advise(advice)))
    };
    let row = match store.plan(plan)? {
        Some(row) => row,
        None => {
            let advice = format!("wait until it moves VMs: see `drover status {plan}`");
            return refuse(format!("plan {plan} has not begun"), advice);
        }
    };
    if is_over(&row) {
        let advice = "set them in its file before it is begun anew".to_string();
        return refuse(format!("plan {plan} is over, and has no limits to change"), advice);
    }
    let own = as_begun(&row)?;
    if order.rate_limit.is_some() && matches!(own.source, Source::Ova(_)) && !own.target.is_far() {
        let what = format!(
            "rate_limit: it limits what goes over the network, and the appliance of plan {plan} is read where it lies"
        );
        return refuse(what, "leave it out".into());
    }
    let before = limits_of(store, &row, &own)?.now;
    store.ask_limits(plan, order)?;
    let after = before.with(order);
    Ok((before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn an_order_that_makes_no_sense_is_told_by_the_name_of_the_limit() {
        for (rate, disks, vms, told) in [
            (None, None, None, "no limit is named"),
            (Some(rates(&["fast"])), None, None, "rate_limit: "),
            (Some(rates(&["none", "1m"])), None, None, "rate_limit: "),
            (Some(rates(&["25:00-26:00=1m"])), None, None, "rate_limit: "),
            (Some(rates(&["1m"; 65])), None, None, "rate_limit: 65 limits"),
            (None, Some(0), None, "disks: '0' is not a number from 1 to 1000"),
            (None, Some(1001), Some(3), "disks: '1001' is not"),
            (None, None, Some(-1), "vms_per_host: '-1' is not"),
        ] {
            let why = LimitsOrder::read(rate.as_deref(), disks, vms).unwrap_err();
            assert!(why.starts_with(told), "{why}");
        }
    }

    #[test]
    fn what_is_ordered_counts_and_the_rest_is_as_the_plan_says() {
        let plan = LimitsInForce { rate_limit: vec![DayLimit::always(1024)], disks: 200, vms_per_host: 20 };
        let read = |rate: Option<&[&str]>, disks| {
            let rate = rate.map(rates);
            LimitsOrder::read(rate.as_deref(), disks, None).unwrap()
        };
        let first = read(Some(&["none"]), None);
        let now = plan.with(&first);
        assert_eq!(plan.changes_to(&now), "rate_limit 1KiB -> none");
        let both = read(None, Some(8)).over(first);
        let now = plan.with(&both);
        assert_eq!(plan.changes_to(&now), "rate_limit 1KiB -> none, disks 200 -> 8");
        assert_eq!(now.changes_to(&now), "");
        let hours = plan.with(&read(Some(&["12MiB", "08:00-18:00=2MiB"]), None));
        assert_eq!(hours.rate_text(), "12MiB, 08:00-18:00 UTC=2MiB");
        let told = serde_json::json!(hours);
        assert_eq!(told["rate_limit"][1], "08:00-18:00 UTC=2MiB");
        assert_eq!(serde_json::from_value::<LimitsInForce>(told).unwrap(), hours);
    }

    #[test]
    fn an_order_about_a_plan_that_is_over_or_has_not_begun_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let order = LimitsOrder { disks: Some(4), ..LimitsOrder::default() };
        assert!(ask_limits(&store, "p", &order).unwrap_err().chain().contains("has not begun"));
        let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                    target: {type: qemu, folder: /vms}\nvms: [{name: a}]\nlimits: {disks: 9}\n";
        store.begin_plan("p", text, std::path::Path::new("/")).unwrap();
        let (before, after) = ask_limits(&store, "p", &order).unwrap();
        assert_eq!((before.disks, after.disks), (9, 4));
        let changes = || plan_limits(&store, &store.plan("p").unwrap().unwrap()).unwrap().changes();
        assert_eq!(changes(), "disks 9 -> 4");
        let ova = "version: 1\nname: q\nsource: {type: ova, path: /srv/web.ova}\n\
                   target: {type: qemu, folder: /vms}\nvms: [{name: a}]\n";
        store.begin_plan("q", ova, std::path::Path::new("/")).unwrap();
        let rate = LimitsOrder { rate_limit: Some(Vec::new()), ..order.clone() };
        assert!(ask_limits(&store, "q", &rate).unwrap_err().chain().starts_with("rate_limit: "));
        assert_eq!(store.limits_order("q").unwrap(), None);
        assert_eq!(ask_limits(&store, "q", &order).unwrap().1.disks, 4);
        store.end_plan("p", PlanState::Incomplete).unwrap();
        assert_eq!(changes(), "disks 9 -> 4");
        for over in [PlanState::Done, PlanState::Cancelled] {
            store.end_plan("p", over).unwrap();
            assert!(ask_limits(&store, "p", &order).unwrap_err().chain().contains("is over"));
            assert_eq!(changes(), "", "and what was ordered holds no more");
        }
    }
}
