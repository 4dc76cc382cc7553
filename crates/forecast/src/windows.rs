//! Windows of each day as spans of time.

use drover_types::Hours;

/// A fleet that needs more days has to be planned otherwise.
pub const WINDOW_DAYS_MAX: u64 = 120;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;

/// The same hours (UTC) of each day that end after `start_ms`, from and to in milliseconds since 1970.
pub fn daily_windows(hours: &[Hours], start_ms: u64) -> Vec<(u64, u64)> {
    let midnight = start_ms - start_ms % DAY_MS;
    // A window that goes through midnight may have begun the day before.
    let first = midnight.saturating_sub(DAY_MS);
    let of_day = |day: u64| {
        hours.iter().map(move |it| {
            let (from, to) = (u64::from(it.from) * MINUTE_MS, u64::from(it.to) * MINUTE_MS);
            let to = if to <= from { to + DAY_MS } else { to };
            (first + day * DAY_MS + from, first + day * DAY_MS + to)
        })
    };
    (0..=WINDOW_DAYS_MAX).flat_map(of_day).filter(|(_, to)| *to > start_ms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_through_midnight_is_open_in_the_small_hours() {
        let hours: Hours = "22:00-06:00".parse().unwrap();
        let hour = 3_600_000;
        let windows = daily_windows(&[hours], 100 * DAY_MS + 3 * hour);
        assert_eq!(windows[0], (99 * DAY_MS + 22 * hour, 100 * DAY_MS + 6 * hour));
        assert_eq!(windows[1], (100 * DAY_MS + 22 * hour, 101 * DAY_MS + 6 * hour));
        assert_eq!(daily_windows(&[hours], 100 * DAY_MS + 7 * hour)[0].0, 100 * DAY_MS + 22 * hour);
        assert_eq!(daily_windows(&[], 0), []);
    }
}
