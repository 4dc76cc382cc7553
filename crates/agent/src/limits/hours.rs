//! Keeping to limits by the hours that belong to no site.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use drover_link::RateLimit;

use super::DayLimits;
use crate::now;
use crate::trust::{DayLimit, limit_at};

/// How often it is looked which of them hold.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lowest of `limits` that hold, within a wider one. It changes as the day goes on, for as long as anybody keeps to it.
pub fn by_hours(limits: Vec<DayLimit>, wider: Option<Arc<RateLimit>>, say: fn(&str)) -> Arc<RateLimit> {
    if limits.iter().all(|limit| limit.window.is_none()) {
        return Arc::new(RateLimit::within(wider, limit_at(&limits, now())));
    }
    by_changing_hours(DayLimits::new(limits), wider, say)
}

/// The same of limits that may be changed meanwhile.
pub fn by_changing_hours(limits: DayLimits, wider: Option<Arc<RateLimit>>, say: fn(&str)) -> Arc<RateLimit> {
    let limit = Arc::new(RateLimit::within(wider, limits.at(now())));
    let kept = Arc::downgrade(&limit);
    let follow = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            match kept.upgrade() {
                Some(limit) => limit.set(limits.at(now())),
                None => return,
            }
        }
    };
    if let Err(error) = Builder::new().name("limits".to_string()).spawn(follow) {
        say(&format!("warning: the rate limit stays as it is now: {error}"));
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_that_holds_is_kept_within_the_wider_one() {
        let limits =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<DayLimit>>();
        let wider = Arc::new(RateLimit::new(Some(30_000)));
        let limit =
            by_hours(limits(&["400k", "2020-01-01=8k", "00:00-24:00=160k"]), Some(wider.clone()), |_| {});
        assert_eq!((limit.bytes_per_second(), limit.least_bytes_per_second()), (Some(20_000), Some(20_000)));
        assert_eq!((limit.take(7), wider.used().bytes), (Ok(()), 7));
        wider.set(Some(9000));
        assert_eq!(limit.least_bytes_per_second(), Some(9000));
        let over = by_hours(limits(&["2020-01-01=8k"]), None, |_| {});
        assert_eq!(over.bytes_per_second(), None);
    }

    #[test]
    fn limits_that_are_changed_hold_with_the_next_look() {
        let limits = DayLimits::new(vec![DayLimit::always(7)]);
        let limit = by_changing_hours(limits.clone(), None, |_| {});
        assert_eq!(limit.bytes_per_second(), Some(7));
        let until = |rate: Option<u64>| {
            limits.set(rate.map(DayLimit::always).into_iter().collect());
            let looks = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(20))).take(1500);
            looks.map(|()| limit.bytes_per_second()).any(|now| now == rate)
        };
        assert!(until(Some(9000)) && until(None) && until(Some(8)));
    }
}
