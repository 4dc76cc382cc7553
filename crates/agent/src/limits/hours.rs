//! Keeping to limits by the hours that belong to no site.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use drover_link::RateLimit;

use crate::now;
use crate::trust::{DayLimit, limit_at};

/// How often it is looked which of them hold.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lowest of `limits` that hold, within a wider one. It changes as the day goes on, for as long as anybody keeps to it.
pub fn by_hours(limits: Vec<DayLimit>, wider: Option<Arc<RateLimit>>, say: fn(&str)) -> Arc<RateLimit> {
    let limit = Arc::new(RateLimit::within(wider, limit_at(&limits, now())));
    if limits.iter().all(|limit| limit.window.is_none()) {
        return limit;
    }
    let kept = Arc::downgrade(&limit);
    let follow = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            match kept.upgrade() {
                Some(limit) => limit.set(limit_at(&limits, now())),
                None => return,
            }
        }
    };
    if let Err(error) = Builder::new().name("limits".to_string()).spawn(follow) {
        say(&format!("warning: the rate limit stays as it is at this hour: {error}"));
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
}
