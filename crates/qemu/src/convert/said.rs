//! What the converter said. It ends successfully where it found no drivers for Windows, so its end proves nothing.

/// What is worth knowing of a converter's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Whether the guest has virtio drivers now; absent if the log does not tell.
    pub(super) drivers: Option<bool>,
    /// What it warned of, each in one line.
    pub(super) warnings: Vec<String>,
    /// Names of interfaces that it was told to keep, as drover itself wrote there.
    pub(super) kept: Vec<String>,
}

/// Begins a line of drover's own about a name that is kept.
pub(super) const KEEPS: &str = "drover: keeps the interface name ";

impl Said {
    /// Source: virt-v2v `convert/convert.ml`, the same words from 2.2 to 2.10. In English, as the converter is started so.
    pub(super) fn of(log: &str) -> Said {
        let drivers = if log.contains(WITHOUT) {
            Some(false)
        } else if log.contains(WITH) {
            Some(true)
        } else {
            None
        };
        let kept = log.lines().filter_map(|line| line.strip_prefix(KEEPS)).map(plain).collect();
        Said { drivers, warnings: warnings(log), kept }
    }
}

/// A warning goes on over indented lines.
fn warnings(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in log.lines() {
        if let Some((_, text)) = line.split_once(": warning: ") {
            is_open = found.len() < WARNINGS_MAX;
            if is_open {
                found.push(text.trim().to_string());
            }
        } else if is_open
            && line.starts_with(' ')
            && !line.trim().is_empty()
            && let Some(last) = found.last_mut()
        {
            *last = format!("{last} {}", line.trim());
        } else {
            is_open = false;
        }
    }
    found.into_iter().map(|text| plain(&text)).collect()
}

/// Without what a terminal would act on.
fn plain(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(WARNING_CHARS_MAX).collect()
}

const WITH: &str = "This guest has virtio drivers installed";
const WITHOUT: &str = "This guest does not have virtio drivers installed";
const WARNINGS_MAX: usize = 10;
const WARNING_CHARS_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_count_only_if_the_log_says_so() {
        assert_eq!(
            Said::of("[ 9.0] Converting\nvirt-v2v: This guest has virtio drivers installed.\n").drivers,
            Some(true)
        );
        assert_eq!(
            Said::of("virt-v2v: This guest does not have virtio drivers installed.\n").drivers,
            Some(false)
        );
        assert_eq!(Said::of("[ 9.0] Finishing off\n").drivers, None);
    }

    #[test]
    fn warnings_are_told_in_one_line_each() {
        let log = "[   0.0] Setting up the source\nvirt-v2v-in-place: warning: there are no virtio drivers\n  available for this \
                   version\n[   1.0] Next\nvirt-v2v-in-place: warning: no \x1b[1magent\n";
        assert_eq!(
            Said::of(log).warnings,
            ["there are no virtio drivers available for this version", "no [1magent"]
        );
        let many = "x: warning: y\n".repeat(100);
        assert_eq!(Said::of(&many).warnings.len(), WARNINGS_MAX);
    }
}
