//! Windows as spans of time, and waves that do not fit theirs.

use std::time::Duration;

use drover_types::{Opening, Wave, WaveWindow, Window, count, duration, utc_moment};
use serde::Serialize;

use crate::foresee::{Forecast, WaveForecast};
use crate::quantile::Spread;

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

/// The window of a wave, the one that is open or comes next, that closes before any of its VMs is likely to be ready to move over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissedWindow {
    /// When it closes, on the clock of its zone.
    pub closes: String,
    /// When they are likely to move over instead, in a later window; absent: they fail as it closes.
    pub moves: Option<String>,
}

impl MissedWindow {
    /// Of a wave of warm VMs by when it begins; `start_ms` is on the clock of its window. What a wave waits for that is after
    /// others is not known here.
    pub(crate) fn of(wave: &Wave, start_ms: u64, begin_s: Option<Spread>) -> Option<MissedWindow> {
        let closes_ms = first_closing(&wave.window, start_ms).filter(|_| wave.after.is_empty())?;
        let begins_ms = begin_s.map(|begin| start_ms + (begin.p50 * 1000.0) as u64);
        let is_missed = begins_ms.is_none_or(|begins| begins >= closes_ms);
        is_missed.then(|| MissedWindow {
            closes: wave.window.moment(closes_ms),
            moves: begins_ms.map(|begins| wave.window.moment(begins)),
        })
    }

    /// What becomes of its VMs.
    pub fn then(&self) -> String {
        match &self.moves {
            Some(moves) => format!("move over from {moves} on"),
            None => "fail then".to_string(),
        }
    }
}

/// When the window closes that is open at a moment or comes next, if it ever does.
fn first_closing(window: &WaveWindow, start_ms: u64) -> Option<u64> {
    let opening = match window.at(start_ms) {
        Opening::At(opens) => window.at(opens),
        now => now,
    };
    match opening {
        Opening::Open { until_ms } => until_ms,
        Opening::At(_) | Opening::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::WarmWish;
    use crate::foresee::foresee_roughly;
    use crate::foresee::tests::question;

    #[test]
    fn a_window_is_missed_by_what_is_ready_after_it_closed() {
        // 2026-11-30, a Monday, 16:46 UTC.
        let start = 20_787 * DAY_MS + (16 * 60 + 46) * 60_000;
        let windows = drover_types::Windows(vec!["16:00-17:15".parse().unwrap()]);
        let daily = WaveWindow { windows, ..WaveWindow::default() };
        let wave = |window: &WaveWindow| Wave { window: window.clone(), ..Wave::default() };
        let begins = |seconds| Some(Spread { p10: 0.0, p50: seconds, p90: seconds });
        let of = |window: &WaveWindow, begin_s| MissedWindow::of(&wave(window), start, begin_s);
        let closes = daily.moment(start + 29 * 60_000);
        assert_eq!(of(&daily, begins(1_000.0)), None, "it is ready 12 minutes before");
        let tomorrow = of(&daily, begins(23.5 * 3600.0)).unwrap();
        assert_eq!(tomorrow.closes, closes);
        let words = format!("move over from {} on", daily.moment(start + 84_600_000));
        assert_eq!(tomorrow.then(), words);
        let once = WaveWindow { until_ms: Some(start + 60_000), ..WaveWindow::default() };
        assert_eq!(of(&once, None).unwrap().then(), "fail then");
        assert_eq!(of(&once, begins(59.0)), None);
        // One that opens later is missed only by what is not ready in it.
        let later = WaveWindow { from_ms: Some(start + 2 * 60_000), until_ms: Some(start + 240_000), ..once };
        assert_eq!(of(&later, begins(121.0)), None);
        assert!(of(&later, None).is_some());
        assert_eq!(of(&WaveWindow::default(), begins(1e6)), None, "it never closes");
        let after = Wave { after: vec!["one".into()], ..wave(&daily) };
        assert_eq!(MissedWindow::of(&after, start, begins(23.5 * 3600.0)), None);
    }

    #[test]
    fn a_forecast_tells_a_window_that_closes_before_its_warm_vms_are_ready() {
        let mut asked = question(1, 1, 20);
        let warm = WarmWish { interval_ms: 3_600_000, downtime_ms: 300_000, ..WarmWish::default() };
        (asked.vms[0].wave, asked.vms[0].warm) = (Some("one".into()), Some(warm));
        let mut until = |seconds: u64| {
            let until_ms = Some(asked.start_ms + seconds * 1000);
            let window = WaveWindow { until_ms, ..WaveWindow::default() };
            let one = Wave { name: "one".into(), window, ..Wave::default() };
            asked.waves = [(0, vec![one])].into();
            foresee_roughly(&asked).waves.remove(0)
        };
        // 20 GiB take some 200 s, and two deltas with their pauses another 200 s and more.
        let (met, missed) = (until(7_200), until(100));
        assert_eq!((met.fits, &met.missed), (Some(1.0), &None));
        assert!(met.begin_s.is_some_and(|begin| begin.p50 < 1_800.0), "the interval is an hour: {met:?}");
        assert_eq!((missed.fits, missed.begin_s), (Some(0.0), None));
        assert_eq!(missed.missed.unwrap().moves, None);
    }

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
