//! Lays out the lines that move on a terminal: as many as fit, each as wide as fits. Pure.

use drover_types::Bytes;

use crate::now::DiskNow;
use crate::text::{clean, clip, count, estimate, percent, width};

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    pub columns: usize,
    pub rows: usize,
    /// Whether it shows block characters.
    pub blocks: bool,
}

const GAP: &str = "  ";
const NAME_MIN: usize = 12;
const NAME_MAX: usize = 36;
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 24;

/// A part of a line that is left out where there is no room: columns it takes, and its text.
type Part = (usize, fn(&DiskNow) -> String);

/// What to leave out first. The share done stays always.
const PARTS: [Part; 5] = [
    (6, |disk| disk.activity.clone()),
    (21, |disk| {
        let (done, size) = disk.done();
        format!("{}/{}", Bytes(done), Bytes(size))
    }),
    (25, |disk| format!("waits for {}", disk.waits_text())),
    (13, |disk| format!("ETA {}", estimate(disk.left))),
    (9, |disk| disk.rate_text()),
];

/// Where each part stands on the line, from the left: its place in [`PARTS`].
const ORDER: [usize; 5] = [0, 1, 4, 3, 2];
const SHARE_COLUMNS: usize = 5;

/// Columns of a frame's lines: the name, the bar (none if 0), and the first part that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    name: usize,
    bar: usize,
    first_part: usize,
}

impl Layout {
    fn new(columns: usize, longest_name: usize, least: usize) -> Layout {
        let wish = longest_name.clamp(1, NAME_MAX);
        let parts = |first: usize| PARTS[first..].iter().map(|(wide, _)| wide + GAP.len()).sum::<usize>();
        let fits = |first: &usize| NAME_MIN.min(wish) + GAP.len() + SHARE_COLUMNS + parts(*first) <= columns;
        let first_part = (least..PARTS.len()).find(fits).unwrap_or(PARTS.len());
        let free = columns.saturating_sub(GAP.len() + SHARE_COLUMNS + parts(first_part));
        let name = wish.min(free);
        let bar = free.saturating_sub(name + GAP.len()).min(BAR_MAX);
        Layout { name, bar: if bar < BAR_MIN { 0 } else { bar }, first_part }
    }

    fn line(&self, disk: &DiskNow, screen: &Screen) -> String {
        let name = disk.name();
        let mut line = pad(&clip(&clean(&name), self.name), self.name);
        for (place, part) in ORDER.into_iter().enumerate() {
            // The bar and the share stand behind the activity.
            if place == 1 {
                line.push_str(&self.bar_and_share(disk.share(), screen));
            }
            if part >= self.first_part {
                let (columns, text) = PARTS[part];
                line.push_str(GAP);
                line.push_str(&pad(&clip(&text(disk), columns), columns));
            }
        }
        clip(line.trim_end(), screen.columns).into_owned()
    }

    fn bar_and_share(&self, share: f64, screen: &Screen) -> String {
        let bar = if self.bar == 0 { String::new() } else { bar(share, self.bar, screen.blocks) + GAP };
        format!("{GAP}{bar}{:>3} %", percent(share))
    }
}

/// A bar of which that share is full.
pub(crate) fn bar(share: f64, columns: usize, blocks: bool) -> String {
    let (full, empty) = if blocks { ("█", "░") } else { ("#", "-") };
    let filled = ((share.clamp(0.0, 1.0) * columns as f64) as usize).min(columns);
    full.repeat(filled) + &empty.repeat(columns - filled)
}

fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// The lines for these disks, for what else goes on, and the total below; never more than fit.
pub(crate) fn frame(
    disks: &[DiskNow],
    others: &[String],
    total: Option<&str>,
    screen: &Screen,
) -> Vec<String> {
    let longest = disks.iter().map(|disk| width(&clean(&disk.name()))).max().unwrap_or(0);
    // The last column stays free: some terminals wrap as soon as it is written. So does the last row,
    // where the cursor waits.
    let screen = Screen { columns: screen.columns.saturating_sub(1), ..*screen };
    let room = screen.rows.saturating_sub(1 + usize::from(total.is_some()));
    // A transfer on its own is named for what it does; that is not said twice.
    let least = usize::from(disks.iter().all(|disk| disk.disk.is_none()));
    let layout = Layout::new(screen.columns, longest, least);
    let lines: Vec<String> = disks.iter().map(|disk| layout.line(disk, &screen)).collect();
    let others = others.iter().map(|text| clip(&clean(text), screen.columns).into_owned());
    let mut lines = bounded(lines, others.collect(), room);
    lines.extend(total.map(|text| clip(text, screen.columns).into_owned()));
    lines.iter_mut().for_each(|line| *line = clip(line, screen.columns).into_owned());
    lines
}

fn bounded(disks: Vec<String>, others: Vec<String>, room: usize) -> Vec<String> {
    let all = disks.len() + others.len();
    let shown = if all <= room { room } else { room.saturating_sub(1) };
    let (more_disks, kept_disks) = (disks.len().saturating_sub(shown), disks.len().min(shown));
    let more_others = others.len().saturating_sub(shown - kept_disks);
    let mut lines: Vec<String> = disks.into_iter().chain(others).take(shown).collect();
    let rest = match (more_disks, more_others) {
        (0, 0) => return lines,
        (disks, 0) => format!("... and {}", count(disks, "more disk")),
        (0, vms) => format!("... and {}", count(vms, "more VM")),
        (disks, vms) => format!("... and {} and {}", count(disks, "more disk"), count(vms, "more VM")),
    };
    if room > 0 {
        lines.push(rest);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::now::tests::copying;

    fn screen(columns: usize, rows: usize) -> Screen {
        Screen { columns, rows, blocks: false }
    }

    fn disks() -> Vec<DiskNow> {
        vec![copying("web01", "Hard disk 1", 0.5), copying("db", "Hard disk 10", 0.999)]
    }

    #[test]
    fn a_wide_terminal_shows_all() {
        let lines = frame(&disks(), &["mail  power off  3 s".into()], Some("total"), &screen(140, 24));
        assert_eq!(
            lines,
            [
                "web01/Hard disk 1  copy    ############------------   50 %  10 GiB/20 GiB          812 MB/s   ETA 0:12       waits for source 71 %",
                "db/Hard disk 10    copy    #######################-   99 %  20.0 GiB/20 GiB        812 MB/s   ETA 0:12       waits for source 71 %",
                "mail  power off  3 s",
                "total",
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_leaves_out_what_matters_least() {
        let line = |columns| frame(&disks()[..1], &[], None, &screen(columns, 24)).remove(0);
        assert_eq!(
            line(90),
            "web01/Hard disk 1  #####-----   50 %  812 MB/s   ETA 0:12       waits for source 71 %"
        );
        assert_eq!(line(52), "web01/Hard disk 1   50 %  812 MB/s   ETA 0:12");
        assert_eq!(line(31), "web01/Hard ~   50 %  812 MB/s");
        assert_eq!(line(20), "web01/Hard ~   50 %");
        assert_eq!(line(10), "w~   50 %");
    }

    #[test]
    fn nothing_wraps_and_nothing_scrolls_on_any_terminal() {
        let mut disks: Vec<DiskNow> = (0..40)
            .map(|n| copying("倉庫-web-with-a-name-that-does-not-end", &format!("Hard disk {n}"), 0.3))
            .collect();
        disks[3].left = Some(std::time::Duration::from_secs(86_400 * 99));
        disks[4].look =
            drover_mover::Snapshot { size: u64::MAX, settled: u64::MAX / 3, ..Default::default() };
        disks[5].rate = Some(f64::MAX);
        let others = vec!["x".repeat(300); 5];
        for columns in 0..200 {
            for rows in 0..60 {
                let lines = frame(&disks, &others, Some(&"total ".repeat(40)), &screen(columns, rows));
                assert!(
                    lines.iter().all(|line| width(line) < columns.max(1)),
                    "{columns} columns: {lines:#?}"
                );
                assert!(lines.len() <= rows.saturating_sub(1).max(1), "{rows} rows: {}", lines.len());
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let disks: Vec<DiskNow> = (0..15).map(|n| copying("web01", &n.to_string(), 0.1)).collect();
        let lines = frame(&disks, &[], Some("total"), &screen(100, 6));
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[3..], ["... and 12 more disks", "total"]);
        let lines = frame(&disks[..2], &["a".into(), "b".into(), "c".into()], Some("total"), &screen(100, 6));
        assert_eq!(lines[3..], ["... and 2 more VMs", "total"]);
    }

    #[test]
    fn a_transfer_on_its_own_is_named_for_what_it_does() {
        let disk = DiskNow { vm: None, disk: None, ..copying("", "", 0.25) };
        let line = frame(&[disk], &[], None, &screen(140, 24)).remove(0);
        assert!(line.starts_with("copy  ######------------------   25 %  5 GiB/20 GiB"), "{line}");
    }

    #[test]
    fn an_empty_run_is_only_its_total() {
        assert_eq!(frame(&[], &[], Some("total"), &screen(80, 24)), ["total"]);
        assert!(frame(&[], &[], None, &screen(80, 24)).is_empty());
    }
}
