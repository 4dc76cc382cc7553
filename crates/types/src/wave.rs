//! Waves: parts of a plan that move one after the other, each in its window. Pure.

use drover_window::{Opening, Window, Windows, utc_moment};
use serde::{Deserialize, Serialize};

/// A wave of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// Its name, which no other wave of the plan has.
    pub name: String,
    /// When its VMs may move.
    pub window: WaveWindow,
    /// Names of the waves that have to be over before it.
    pub after: Vec<String>,
    /// What becomes of the waves after it if one of its VMs fails.
    pub if_failed: IfFailed,
}

/// What becomes of the waves after one of which a VM failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfFailed {
    /// They wait for an operator's word.
    #[default]
    Wait,
    /// They go on.
    GoOn,
    /// They do not begin in this run.
    Stop,
}

/// When the VMs of a wave may move: in its windows, from one moment until another, and not in a freeze. What is absent is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveWindow {
    /// Windows of which one has to be open; none: it may be any time.
    #[serde(default)]
    pub windows: Windows,
    /// Dates in which it is closed.
    #[serde(default)]
    pub freezes: Windows,
    /// Not before this moment, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Before this moment, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// The moment that a virtual clock has as 0, in milliseconds since 1970: by it go the moments of [`WaveWindow::at`].
    #[serde(skip)]
    pub zero_ms: u64,
}

impl WaveWindow {
    /// Whether it is always open.
    pub fn is_always(&self) -> bool {
        self.windows.is_empty()
            && self.freezes.is_empty()
            && self.from_ms.is_none()
            && self.until_ms.is_none()
    }

    /// What it is at a moment, in milliseconds since 1970.
    pub fn at(&self, now_ms: u64) -> Opening {
        let now_ms = now_ms.saturating_add(self.zero_ms);
        let since = |ms: u64| ms.saturating_sub(self.zero_ms);
        let mut opens = now_ms.max(self.from_ms.unwrap_or(0));
        // Each round goes on to the next window, or past a freeze, of which each comes once.
        let until = loop {
            let closes = match self.windows.at(opens) {
                _ if self.until_ms.is_some_and(|until| until <= opens) => return Opening::Never,
                _ if self.windows.is_empty() => None,
                Opening::Open { until_ms } => until_ms,
                Opening::At(next) => {
                    opens = next;
                    continue;
                }
                Opening::Never => return Opening::Never,
            };
            match self.freezes.at(opens) {
                Opening::Open { until_ms: Some(thaws) } => opens = thaws,
                Opening::Open { until_ms: None } => return Opening::Never,
                Opening::At(freezes) => break closes.into_iter().chain([freezes]).min(),
                Opening::Never => break closes,
            }
        };
        match opens > now_ms {
            true => Opening::At(since(opens)),
            false => Opening::Open { until_ms: until.into_iter().chain(self.until_ms).min().map(since) },
        }
    }

    /// The moment from which on it is closed for good, if there is one, by the same clock as [`WaveWindow::at`].
    pub fn ends_ms(&self) -> Option<u64> {
        let ends = self.until_ms.into_iter().chain(self.windows.end_ms()).min();
        ends.map(|ends| ends.saturating_sub(self.zero_ms))
    }

    /// When it opens next if it is closed, on the clock of its zone: `Sat 2026-12-05 22:00 Europe/Berlin`.
    pub fn opens(&self, now_ms: u64) -> Option<String> {
        match self.at(now_ms) {
            Opening::At(opens) => Some(self.moment(opens)),
            Opening::Open { .. } | Opening::Never => None,
        }
    }

    /// The window by whose clock people go: its first, or else its first freeze.
    pub fn clock(&self) -> Option<&Window> {
        self.windows.0.first().or(self.freezes.0.first())
    }

    /// A moment of [`WaveWindow::at`] on the clock of the window that is open then, or else of its first.
    pub fn moment(&self, ms: u64) -> String {
        let ms = ms.saturating_add(self.zero_ms);
        let Windows(windows) = &self.windows;
        let window = windows.iter().find(|it| it.is_open(ms)).or(self.clock());
        window.map_or_else(|| utc_moment(ms), |window| window.moment(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;

    fn windows(texts: &[&str]) -> Windows {
        Windows(texts.iter().map(|it| it.parse().unwrap()).collect())
    }

    #[test]
    fn a_window_has_hours_and_moments() {
        let day = 100 * DAY;
        let window = WaveWindow {
            windows: windows(&["22:00-06:00"]),
            from_ms: Some(day),
            until_ms: Some(day + 47 * HOUR),
            ..WaveWindow::default()
        };
        assert_eq!(window.at(day - DAY), Opening::At(day), "in the middle of a night");
        assert_eq!(window.at(day + 6 * HOUR), Opening::At(day + 22 * HOUR));
        assert_eq!(window.at(day + 23 * HOUR), Opening::Open { until_ms: Some(day + 30 * HOUR) });
        assert_eq!(window.at(day + 46 * HOUR), Opening::Open { until_ms: Some(day + 47 * HOUR) });
        assert_eq!(window.at(day + 47 * HOUR), Opening::Never);
        let short = WaveWindow { until_ms: Some(day + 20 * HOUR), ..window };
        assert_eq!(short.at(day + 7 * HOUR), Opening::Never, "its hours do not come again");
        assert_eq!(WaveWindow::default().at(7), Opening::Open { until_ms: None });
        let whole = WaveWindow { windows: windows(&["01:00-01:00"]), ..WaveWindow::default() };
        assert_eq!(whole.at(day), Opening::Open { until_ms: None }, "a whole day has no end");
    }

    /// 2026-12-18, a Friday, at midnight UTC.
    const FRIDAY: u64 = 20_805 * DAY;

    #[test]
    fn a_freeze_closes_a_window_and_what_is_after_it_opens_it() {
        let freeze = "2026-12-20 - 2027-01-03 Europe/Berlin";
        let wave = |texts: &[&str], freezes: &[&str]| WaveWindow {
            windows: windows(texts),
            freezes: windows(freezes),
            ..WaveWindow::default()
        };
        let weekends = wave(&["Fri-Sun 22:00-06:00 Europe/Berlin"], &[freeze]);
        // The night of Saturday to Sunday ends at the midnight at which the freeze begins.
        let freezes = FRIDAY + 2 * DAY - HOUR;
        assert_eq!(weekends.at(FRIDAY + DAY + 21 * HOUR), Opening::Open { until_ms: Some(freezes) });
        // That of Sunday, January 3rd, goes on when it is over.
        let thaws = FRIDAY + 17 * DAY - HOUR;
        assert_eq!(weekends.at(freezes), Opening::At(thaws));
        assert_eq!(weekends.opens(freezes).as_deref(), Some("Mon 2027-01-04 00:00 Europe/Berlin"));
        assert_eq!(weekends.at(thaws), Opening::Open { until_ms: Some(thaws + 6 * HOUR) });
        // Two freezes one after the other, and no windows.
        let any_time = wave(&[], &["2027-01-04 - 2027-01-05 Europe/Berlin", freeze]);
        assert!(!any_time.is_always());
        assert_eq!(any_time.at(FRIDAY), Opening::Open { until_ms: Some(freezes) });
        assert_eq!(any_time.at(freezes), Opening::At(thaws + 2 * DAY));
        assert_eq!(any_time.at(thaws + 2 * DAY), Opening::Open { until_ms: None });
        // A freeze over the only date there is.
        let once = wave(&["2026-12-24 20:00-23:00 Europe/Berlin"], &[freeze]);
        assert_eq!(once.at(FRIDAY), Opening::Never);
        let until = WaveWindow { until_ms: Some(thaws), ..any_time };
        assert_eq!(until.at(freezes), Opening::Never, "it is over before the freeze is");
    }

    #[test]
    fn a_virtual_clock_has_the_same_windows_from_its_zero_on() {
        let real = WaveWindow {
            windows: windows(&["Sat 22:00-06:00 Europe/Berlin"]),
            freezes: windows(&["2026-12-20"]),
            from_ms: Some(FRIDAY + HOUR),
            until_ms: Some(FRIDAY + 20 * DAY),
            zero_ms: 0,
        };
        let virtually = WaveWindow { zero_ms: FRIDAY, ..real.clone() };
        let since = |opening: Opening| match opening {
            Opening::Open { until_ms } => Opening::Open { until_ms: until_ms.map(|it| it - FRIDAY) },
            Opening::At(at) => Opening::At(at - FRIDAY),
            Opening::Never => Opening::Never,
        };
        for hour in 0..22 * 24 {
            assert_eq!(virtually.at(hour * HOUR), since(real.at(FRIDAY + hour * HOUR)), "{hour}");
        }
        assert_eq!((real.ends_ms(), virtually.ends_ms()), (Some(FRIDAY + 20 * DAY), Some(20 * DAY)));
        assert_eq!(virtually.opens(0), real.opens(FRIDAY));
        let dates = windows(&["2026-12-19 20:00-23:00", "2026-12-18"]);
        let dates = WaveWindow { windows: dates, until_ms: None, ..virtually };
        assert_eq!(dates.ends_ms(), Some(DAY + 23 * HOUR), "the last of its dates");
        assert_eq!(WaveWindow { until_ms: None, ..real }.ends_ms(), None);
        assert_eq!(WaveWindow::default().moment(FRIDAY), "Fri 2026-12-18 00:00 UTC");
    }
}
