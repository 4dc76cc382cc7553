//! What the converter said. It ends successfully where it found no drivers for Windows, so its end proves nothing.

/// What is worth knowing of a converter's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Whether the guest has virtio drivers now; absent if the log does not tell.
    pub(super) drivers: Option<bool>,
    /// What it warned of, each in one line.
    pub(super) warnings: Vec<String>,
    /// Why it failed, in one line; absent if it names no error.
    pub(super) cause: Option<String>,
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
        let kept = log.lines().filter_map(|line| line.strip_prefix(KEEPS));
        let kept = kept.map(|text| plain(text, WARNING_CHARS_MAX)).collect();
        Said { drivers, warnings: warnings(log), cause: cause(log), kept }
    }
}

/// What follows the last error, up to the advice on bug reports. Messages are wrapped at 80 columns and not indented.
///
/// Source: `error` and `wrap` of libguestfs-common `mltools/tools_utils.ml`.
fn cause(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().collect();
    let of = |line: &str| Some(line.strip_prefix(PROGRAM)?.split_once(": error: ")?.1.to_string());
    let (at, first) = lines.iter().enumerate().rev().find_map(|(at, &line)| Some((at, of(line)?)))?;
    let rest = lines[at + 1..].iter().map(|line| line.trim()).take_while(|line| !line.starts_with(ADVICE));
    let text =
        rest.filter(|line| !line.is_empty()).fold(first.trim().to_string(), |text, line| text + " " + line);
    Some(plain(&text, CAUSE_CHARS_MAX))
}

/// A warning goes on up to an empty line, or one that begins something else.
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
            && !begins(line)
            && let Some(last) = found.last_mut()
        {
            *last = format!("{last} {}", line.trim());
        } else {
            is_open = false;
        }
    }
    found.into_iter().map(|text| plain(&text, WARNING_CHARS_MAX)).collect()
}

/// Whether a line begins something new: nothing, a step (`[   9.0] Converting`), or the words of a program (`virt-v2v: ...`).
fn begins(line: &str) -> bool {
    let of_program = line.split_once(": ").is_some_and(|(name, _)| !name.trim().contains(' '));
    line.trim().is_empty() || line.starts_with("[ ") || of_program
}

/// Without what a terminal would act on.
fn plain(text: &str, chars_max: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(chars_max).collect()
}

/// Begins the name of each of the converters.
const PROGRAM: &str = "virt-v2v";
const ADVICE: &str = "If reporting bugs";
const WITH: &str = "This guest has virtio drivers installed";
const WITHOUT: &str = "This guest does not have virtio drivers installed";
const WARNINGS_MAX: usize = 10;
const WARNING_CHARS_MAX: usize = 400;
/// libguestfs quotes QEMU's and libvirt's words at length.
const CAUSE_CHARS_MAX: usize = 1000;

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
    fn the_cause_of_a_failure_is_all_of_the_last_error_and_no_advice() {
        let log = format!("[   0.0] Setting up the source\n{LIBGUESTFS}");
        assert_eq!(
            Said::of(&log).cause.unwrap(),
            "libguestfs error: could not create appliance through libvirt. Try running qemu directly without libvirt using this \
             environment variable: export LIBGUESTFS_BACKEND=direct Original error from libvirt: Cannot access backing file \
             '/images/web01.qcow2' of storage file '/convert/disk0.qcow2' (as uid:107, gid:107): Permission denied \
             [code=38 domain=18]"
        );
        // A converter that was run once more: the last error counts.
        let twice =
            format!("{log}drover: once more\nvirt-v2v: error: no root device\n\nIf reporting bugs, run it\n");
        assert_eq!(Said::of(&twice).cause.unwrap(), "no root device");
        assert_eq!(Said::of("supermin: error: no kernel\n").cause, None);
    }

    const LIBGUESTFS: &str = "virt-v2v-in-place: error: libguestfs error: could not create appliance through \n\
        libvirt.\n\nTry running qemu directly without libvirt using this environment variable:\n\
        export LIBGUESTFS_BACKEND=direct\n\n\
        Original error from libvirt: Cannot access backing file \n\
        '/images/web01.qcow2' of storage file \n\
        '/convert/disk0.qcow2' (as uid:107, gid:107): Permission denied \n\
        [code=38 domain=18]\n\n\
        If reporting bugs, run virt-v2v-in-place with debugging enabled and include \n\
        the complete output:\n\n  virt-v2v-in-place -v -x [...]\n";

    #[test]
    fn warnings_are_told_in_one_line_each() {
        let log = "[   0.0] Setting up the source\nvirt-v2v-in-place: warning: there are no virtio drivers \navailable for this \
                   version\n[   1.0] Next\nvirt-v2v-in-place: warning: no \x1b[1magent\n";
        assert_eq!(
            Said::of(log).warnings,
            ["there are no virtio drivers available for this version", "no [1magent"]
        );
        let many = "x: warning: y\n".repeat(100);
        assert_eq!(Said::of(&many).warnings.len(), WARNINGS_MAX);
    }
}
