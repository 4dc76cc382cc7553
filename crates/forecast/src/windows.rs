//! Windows as spans of time, and waves that do not fit theirs.

use std::time::Duration;

use drover_types::{Window, count, duration, utc_moment};

use crate::foresee::{Forecast, WaveForecast};

/// A fleet that needs more days has to be planned otherwise.
pub const WINDOW_DAYS_MAX: u64 = 120;

const DAY_MS: u64 = 86_400_000;

/// The spans of windows that are not over at `start_ms`, in the order in which they begin: from and to in milliseconds since 1970.
pub fn spans_of(windows: &[Window], start_ms: u64) -> Vec<(u64, u64)> {
    let until_ms = start_ms + WINDOW_DAYS_MAX * DAY_MS;
    let mut spans: Vec<(u64, u64)> = windows.iter().flat_map(|it| it.spans(start_ms, until_ms)).collect();
    spans.sort_unstable();
    spans
}

/// A wave that is not likely to be over before its window closes.
#[derive(Clone, Debug, PartialEq)]
pub struct TightWave<'a> {
    /// The wave.
    pub wave: &'a WaveForecast,
    /// With which chance all its VMs arrive in its window.
    pub chance: f64,
}

/// Waves that begin and fit their windows with less than a chance (0 to 1). Below a half the likely time (P50) is too long.
pub fn tight_waves(forecast: &Forecast, chance: f64) -> Vec<TightWave<'_>> {
    let begins = forecast.waves.iter().filter(|wave| wave.begin_s.is_some());
    let tight = begins.filter_map(|wave| Some(TightWave { wave, chance: wave.fits? }));
    tight.filter(|it| it.chance < chance).collect()
}

impl TightWave<'_> {
    /// What is to be known first.
    pub fn finding(&self) -> String {
        format!("wave {} does not fit its window", self.wave.name)
    }

    /// By which figures.
    pub fn evidence(&self) -> String {
        let WaveForecast { vms, begin_s, end_s, open_s, window, .. } = self.wave;
        let vms = count(*vms, "VM");
        let time = |seconds: f64| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let takes = match (begin_s, end_s) {
            (Some(begin), Some(end)) => format!("takes {} (P50)", time((end.p50 - begin.p50).max(0.0))),
            _ => "never ends".to_string(),
        };
        let windows = match (window.windows.is_empty(), window.until_ms) {
            (false, _) => window.windows.to_string(),
            (true, Some(until_ms)) => format!("until {}", utc_moment(until_ms)),
            (true, None) => "up to its freeze".to_string(),
        };
        let open = open_s.map_or("not open".into(), |open| format!("open for {}", time(open)));
        let chance = self.chance * 100.0;
        format!("{vms}: it {takes}, and its window ({windows}) is {open} then; a chance of {chance:.0} %")
    }

    /// What to try.
    pub fn advice(&self) -> &'static str {
        "make it smaller, its window longer, or move its VMs warm: `drover plan waves` proposes waves that fit"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_spans_in_their_order_and_one_through_midnight_is_open_in_the_small_hours() {
        let window = |text: &str| text.parse::<Window>().unwrap();
        let hour = 3_600_000;
        // A Saturday.
        let start = 20_001 * DAY_MS + 3 * hour;
        let spans = spans_of(&[window("22:00-06:00"), window("Sat 12:00-14:00")], start);
        assert_eq!(spans[0], (20_000 * DAY_MS + 22 * hour, 20_001 * DAY_MS + 6 * hour));
        assert_eq!(spans[1], (20_001 * DAY_MS + 12 * hour, 20_001 * DAY_MS + 14 * hour));
        assert_eq!(spans[2].0, 20_001 * DAY_MS + 22 * hour);
        assert_eq!(spans_of(&[window("22:00-06:00")], start).len(), 1 + WINDOW_DAYS_MAX as usize);
        assert_eq!(spans_of(&[], 0), []);
    }
}
