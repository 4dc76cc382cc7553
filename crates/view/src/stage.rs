//! The thread that shows things. Whoever tells it something never waits for the terminal.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drover_types::count;

use crate::canvas::Canvas;
use crate::clock;
use crate::frame::{Screen, frame};
use crate::mode::DisplayMode;
use crate::now::{DiskNow, TotalNow};
use crate::tally::Line;

/// Lines that wait to be shown; a terminal that is held (Ctrl-S) must not hold a migration.
const LINES_MAX: usize = 100_000;
/// Used where the terminal does not tell.
const SCREEN: (u16, u16) = (80, 24);
/// Between progress lines of a log.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

/// What is to be seen.
pub(crate) trait Scene: Send {
    /// Looks at it afresh.
    fn look(&mut self, now: Instant);
    /// Disks at work, as of the last look.
    fn disks(&self) -> Vec<DiskNow>;
    /// What else goes on.
    fn others(&self, now: Instant) -> Vec<String>;
    /// All together.
    fn total(&self) -> Option<TotalNow>;
}

/// A running show.
#[derive(Debug)]
pub(crate) struct Stage {
    shared: Arc<Shared>,
    mode: DisplayMode,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Line>,
    left_out: usize,
    stopping: bool,
}

impl Stage {
    /// Opens on standard error, or standard output for machines.
    pub(crate) fn open(mode: DisplayMode, scene: impl Scene + 'static) -> Stage {
        let out: Box<dyn Write + Send> = match mode {
            DisplayMode::Json => Box::new(std::io::stdout()),
            DisplayMode::Terminal | DisplayMode::Plain | DisplayMode::Quiet => Box::new(std::io::stderr()),
        };
        Stage::open_on(mode, scene, out)
    }

    pub(crate) fn open_on(
        mode: DisplayMode,
        scene: impl Scene + 'static,
        out: Box<dyn Write + Send>,
    ) -> Stage {
        let shared = Arc::new(Shared::default());
        let colour = std::io::stderr().is_terminal() && wants_colour(std::env::var_os("NO_COLOR"));
        let player = Player {
            shared: shared.clone(),
            mode,
            scene,
            canvas: Canvas::new(out, colour),
            plain_at: Instant::now(),
        };
        // Without a thread there is no display; the work it would show goes on.
        let thread = std::thread::Builder::new().name("display".into()).spawn(move || player.play()).ok();
        Stage { shared, mode, thread }
    }

    pub(crate) fn mode(&self) -> DisplayMode {
        self.mode
    }

    /// Shows what waits, and clears what moves; so does a drop.
    pub(crate) fn close(self) {
        drop(self);
    }

    /// Shows a line soon.
    pub(crate) fn tell(&self, lines: impl IntoIterator<Item = Line>) {
        let mut queue = self.shared.lock();
        for line in lines {
            if queue.lines.len() == LINES_MAX {
                queue.lines.pop_front();
                queue.left_out += 1;
            }
            queue.lines.push_back(line);
        }
        self.shared.wake.notify_one();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A display that panicked has nothing more to show.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines, the end, or the time; gives the lines, and whether it is the end.
    fn next(&self, until: Instant) -> (Vec<Line>, usize, bool) {
        let time = until.saturating_duration_since(Instant::now());
        let (mut queue, _) = self
            .wake
            .wait_timeout_while(self.lock(), time, |queue| queue.lines.is_empty() && !queue.stopping)
            .unwrap_or_else(PoisonError::into_inner);
        (queue.lines.drain(..).collect(), std::mem::take(&mut queue.left_out), queue.stopping)
    }
}

struct Player<S> {
    shared: Arc<Shared>,
    mode: DisplayMode,
    scene: S,
    canvas: Canvas<Box<dyn Write + Send>>,
    plain_at: Instant,
}

impl<S: Scene> Player<S> {
    fn play(mut self) {
        let period = match self.mode {
            DisplayMode::Terminal => Duration::from_millis(200),
            DisplayMode::Plain | DisplayMode::Json => Duration::from_secs(1),
            DisplayMode::Quiet => Duration::from_secs(3600),
        };
        let mut look_at = Instant::now() + period;
        self.scene.look(Instant::now());
        loop {
            let (mut lines, left_out, stopping) = self.shared.next(look_at);
            if left_out > 0 {
                lines.insert(0, self.left_out(left_out));
            }
            let now = Instant::now();
            let looks = now >= look_at;
            if looks {
                self.scene.look(now);
                look_at = now + period;
            }
            // A terminal that is gone stays gone: the work is worth more than its display.
            let _ = self.show(lines, looks, stopping, now);
            if stopping {
                return;
            }
        }
    }

    fn left_out(&self, lines: usize) -> Line {
        let text = match self.mode {
            DisplayMode::Json => serde_json::json!({ "event": "left_out", "lines": lines }).to_string(),
            _ => format!("... {} left out", count(lines, "line")),
        };
        Line { text, bad: false }
    }

    fn show(
        &mut self,
        mut lines: Vec<Line>,
        looks: bool,
        stopping: bool,
        now: Instant,
    ) -> std::io::Result<()> {
        match self.mode {
            DisplayMode::Terminal => {
                let moving = if stopping { Vec::new() } else { self.moving(now) };
                return self.canvas.draw(&lines, &moving);
            }
            DisplayMode::Json if looks && !stopping => lines.extend(self.json_lines()),
            DisplayMode::Plain if looks && !stopping && now >= self.plain_at + PLAIN_PERIOD => {
                self.plain_at = now;
                lines.extend(self.plain_lines());
            }
            _ => {}
        }
        if lines.is_empty() { Ok(()) } else { self.canvas.log(&lines) }
    }

    fn moving(&self, now: Instant) -> Vec<String> {
        let total = self.scene.total().map(|total| format!("total  {}", total.plain()));
        frame(&self.scene.disks(), &self.scene.others(now), total.as_deref(), &screen())
    }

    fn json_lines(&self) -> Vec<Line> {
        let disks = self.scene.disks().into_iter().map(|disk| disk.json(clock::now_utc()));
        let lines = disks.chain(self.scene.total().map(|total| total.json(clock::now_utc())));
        lines.map(|text| Line { text, bad: false }).collect()
    }

    fn plain_lines(&self) -> Vec<Line> {
        let disks = self.scene.disks().into_iter().map(|disk| disk.plain());
        let lines = disks.chain(self.scene.total().map(|total| format!("total  {}", total.plain())));
        lines.map(|text| stamped(Line { text, bad: false })).collect()
    }
}

/// The line with the time before it.
pub(crate) fn stamped(line: Line) -> Line {
    Line { text: format!("{}  {}", clock::local(clock::now_ms()), line.text), ..line }
}

fn screen() -> Screen {
    let size = terminal_size::terminal_size_of(std::io::stderr())
        .or_else(|| terminal_size::terminal_size_of(std::io::stdout()));
    let (columns, rows) = size.map_or(SCREEN, |(columns, rows)| (columns.0, rows.0));
    // Some terminals (serial lines, some CI) say 0 for "not known".
    let or = |told: u16, usual: u16| usize::from(if told == 0 { usual } else { told });
    Screen { columns: or(columns, SCREEN.0), rows: or(rows, SCREEN.1), blocks: shows_blocks() }
}

/// Columns of the terminal on standard output, if that is one.
pub fn terminal_columns() -> Option<usize> {
    let (columns, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(usize::from(columns.0)).filter(|columns| *columns > 0)
}

/// Whether that is the `NO_COLOR` of somebody who has colours. Source: no-color.org, "when present and not an empty string".
fn wants_colour(no_color: Option<OsString>) -> bool {
    no_color.is_none_or(|it| it.is_empty())
}

/// Whether the terminal's locale has block characters.
pub(crate) fn shows_blocks() -> bool {
    is_utf8(|name| std::env::var(name).ok())
}

/// The first variable that is set and not empty tells the locale, as in POSIX.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_takes_colours_away_unless_it_is_empty() {
        assert_eq!(
            [None, Some(""), Some("1")].map(|it| wants_colour(it.map(OsString::from))),
            [true, true, false]
        );
    }

    #[test]
    fn blocks_are_for_locales_in_utf_8_alone() {
        let is = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_string()))
        };
        assert!(is(&[("LANG", "de_DE.UTF-8")]) && is(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(
            !is(&[])
                && !is(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")])
                && !is(&[("LANG", "de_DE.ISO-8859-1")])
        );
    }
}
