//! The waves of a plan as a table.

use drover_engine::{WaveReport, WaveState};
use drover_types::{IfFailed, WaveWindow};

use crate::clock::utc_minute;
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clean, clip};

const NAME_COLUMNS: usize = 20;
/// Longer windows have lines of their own below the table.
const WINDOW_COLUMNS: usize = 30;

/// How far the waves of a plan are; nothing if it has none.
pub fn waves_text(waves: &[WaveReport]) -> String {
    use Align::{Left, Right};
    if waves.is_empty() {
        return String::new();
    }
    let columns = [
        ("WAVE", Left),
        ("STATE", Left),
        ("VMS", Right),
        ("DONE", Right),
        ("AT WORK", Right),
        ("FAILED", Right),
        ("CANCELLED", Right),
        ("SKIPPED", Right),
        ("WINDOW", Left),
    ];
    // Of most plans nothing was given up or left out.
    let is_told = |name: &&str| match *name {
        "CANCELLED" => waves.iter().any(|it| it.cancelled > 0),
        "SKIPPED" => waves.iter().any(|it| it.skipped > 0),
        _ => true,
    };
    let told: Vec<_> = columns.into_iter().filter(|(name, _)| is_told(name)).collect();
    let mut table = Table::new(&told).fitted();
    for it in waves {
        let cells = [
            clip(&it.wave.name, NAME_COLUMNS).into_owned(),
            wave_state(it.state).into(),
            it.vms.to_string(),
            it.done.to_string(),
            it.running.to_string(),
            it.failed.to_string(),
            it.cancelled.to_string(),
            it.skipped.to_string(),
            clip(&window_words(&it.wave.window), WINDOW_COLUMNS).into_owned(),
        ];
        let cells = columns.iter().zip(cells).filter(|((name, _), _)| is_told(name));
        table.row(cells.map(|(_, cell)| cell));
    }
    let after = |it: &&WaveReport| !it.wave.after.is_empty();
    let line = |it: &WaveReport| {
        let then = match it.wave.if_failed {
            IfFailed::Wait => "",
            IfFailed::GoOn => "; those after it go on if it fails",
            IfFailed::Stop => "; those after it stop if it fails",
        };
        format!("wave {} is after {}{then}\n", clean(&it.wave.name), clean(&it.wave.after.join(", ")))
    };
    let may_go_on = waves.iter().filter(|it| it.may_go_on && it.failed > 0);
    let words =
        may_go_on.map(|it| format!("those after wave {} go on: somebody said so\n", clean(&it.wave.name)));
    let windows = waves.iter().filter_map(|it| {
        let words = window_words(&it.wave.window);
        let is_long = crate::text::width(&words) > WINDOW_COLUMNS;
        is_long.then(|| format!("wave {} may move {words}\n", clean(&it.wave.name)))
    });
    let opens = waves.iter().filter_map(|it| {
        Some(format!("wave {} waits: its window opens {}\n", clean(&it.wave.name), it.opens.as_ref()?))
    });
    let lines = waves.iter().filter(after).map(line).chain(words).chain(windows).chain(opens);
    let lines: String = lines.collect();
    format!("\n{table}{lines}")
}

pub(crate) fn wave_state(state: WaveState) -> &'static str {
    match state {
        WaveState::Queued => "queued",
        WaveState::Running => "running",
        WaveState::Done => "done",
        WaveState::Failed => "failed",
        WaveState::Skipped => "skipped",
        WaveState::Cancelled => "cancelled",
    }
}

/// `Sat 22:00-06:00 Europe/Berlin from 2026-12-01 22:00 UTC until ...`; `any time` for one that is always open.
pub(crate) fn window_words(window: &WaveWindow) -> String {
    if window.is_always() {
        return "any time".into();
    }
    let windows = (!window.windows.is_empty()).then(|| window.windows.to_string());
    let from = window.from_ms.map(|ms| format!("from {}", moment(ms)));
    let until = window.until_ms.map(|ms| format!("until {}", moment(ms)));
    let freezes = (!window.freezes.is_empty()).then(|| format!("not in {}", window.freezes));
    [windows, from, until, freezes].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn moment(ms: u64) -> String {
    i64::try_from(ms).map_or(UNKNOWN.into(), |ms| format!("{} UTC", utc_minute(ms)))
}

#[cfg(test)]
mod tests {
    use drover_types::{Wave, Windows};

    use super::*;
    use crate::sample::wave;

    #[test]
    fn waves_say_how_far_they_are_and_what_they_wait_for() {
        let wave = |name: &str, after: &[&str]| WaveReport {
            wave: Wave {
                name: name.into(),
                after: after.iter().map(|it| it.to_string()).collect(),
                window: WaveWindow { from_ms: Some(1_796_162_400_000), ..wave().wave.window },
                ..Wave::default()
            },
            opens: (!after.is_empty()).then(|| "Tue 2026-12-01 22:00 UTC".to_string()),
            ..wave()
        };
        let text = waves_text(&[wave("pilot", &[]), wave("web", &["pilot"])]);
        for part in [
            "wave web may move 22:00-06:00 UTC from 2026-12-01 22:00 UTC",
            "wave web is after pilot",
            "those after wave pilot go on",
            "wave web waits: its window opens Tue 2026-12-01 22:00 UTC\n",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("wave pilot waits"), "{text}");
        assert!(text.lines().all(|line| crate::text::width(line) <= 100), "{text}");
        assert!(!text.contains("CANCELLED") && !text.contains("SKIPPED"), "{text}");
        let given_up =
            WaveReport { state: WaveState::Cancelled, done: 0, failed: 0, cancelled: 2, ..wave("web", &[]) };
        let text = waves_text(&[wave("pilot", &[]), given_up]);
        let row = text.lines().find(|line| line.starts_with("web ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().take(7).collect();
        assert_eq!(cells, ["web", "cancelled", "2", "0", "0", "0", "2"], "{text}");
        assert!(text.contains("FAILED  CANCELLED  WINDOW"), "{text}");
        assert_eq!(waves_text(&[]), "");
        assert_eq!(window_words(&WaveWindow::default()), "any time");
        let windows = |texts: &[&str]| Windows(texts.iter().map(|it| it.parse().unwrap()).collect());
        let window = WaveWindow {
            windows: windows(&["Sat 22:00-06:00 Europe/Berlin", "2026-12-12"]),
            freezes: windows(&["2026-12-20 - 2027-01-03"]),
            ..WaveWindow::default()
        };
        let words = "Sat 22:00-06:00 Europe/Berlin, 2026-12-12 00:00 - 2026-12-13 00:00 UTC \
                     not in 2026-12-20 00:00 - 2027-01-04 00:00 UTC";
        assert_eq!(window_words(&window), words);
    }
}
