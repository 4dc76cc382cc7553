//! How busy this host is, by its kernel's word.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How busy a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLoad {
    /// Processors, at least one.
    pub processors: u32,
    /// A hundred times the threads that ran or wanted to, on average over the last minute.
    pub load_percent: u32,
    /// Percent of the last ten seconds in which some thread waited for a processor, where the kernel tells.
    #[serde(default)]
    pub waiting_percent: Option<u8>,
}

/// Where the kernel's figures of the host are, if not in `/proc`: in a container that has them elsewhere.
pub const PROC: &str = "DROVER_PROC";

impl HostLoad {
    /// Of this host, where its kernel tells.
    pub fn here() -> Option<HostLoad> {
        let proc = std::env::var_os(PROC).map_or_else(|| PathBuf::from("/proc"), PathBuf::from);
        HostLoad::read(&proc)
    }

    fn read(proc: &Path) -> Option<HostLoad> {
        let text = |name: &str| fs::read_to_string(proc.join(name)).ok();
        let is_processor = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
        };
        let processors = text("stat")?.lines().filter(is_processor).count();
        let load = text("loadavg")?.split_whitespace().next()?.parse::<f64>().ok()?;
        // Kernels without pressure figures have no such file, or one that cannot be read.
        let waiting = text("pressure/cpu").and_then(|text| waiting(&text));
        Some(HostLoad {
            processors: u32::try_from(processors).ok().filter(|processors| *processors > 0)?,
            load_percent: (load * 100.0) as u32,
            waiting_percent: waiting.map(|percent| percent.clamp(0.0, 100.0) as u8),
        })
    }
}

/// `some avg10=1.53 avg60=...`, in percent.
fn waiting(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(stat: &str, loadavg: &str, pressure: Option<&str>) -> Option<HostLoad> {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("stat", stat);
        put("loadavg", loadavg);
        fs::create_dir(folder.path().join("pressure")).unwrap();
        pressure.into_iter().for_each(|text| put("pressure/cpu", text));
        HostLoad::read(folder.path())
    }

    #[test]
    fn the_words_of_a_kernel_are_read() {
        let stat = "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nctxt 7\ncpufreq 1\n";
        let pressure = "some avg10=53.70 avg60=1.00 avg300=0.50 total=1\nfull avg10=0.00 avg60=0.00\n";
        let told = HostLoad { processors: 2, load_percent: 725, waiting_percent: Some(53) };
        assert_eq!(host(stat, "7.25 6.0 5.0 3/400 1\n", Some(pressure)), Some(told));
        let told = HostLoad { waiting_percent: None, ..told };
        assert_eq!(host(stat, "7.25 6.0 5.0 3/400 1\n", None), Some(told));
        assert_eq!(host(stat, "7.25", Some("some avg10=?")), Some(told));
        assert!(HostLoad::read(Path::new("/proc")).is_some());
    }

    #[test]
    fn a_kernel_that_does_not_tell_is_no_idle_one() {
        assert_eq!(host("", "1.0", None), None);
        assert_eq!(host("cpu0 1\n", "", None), None);
        assert_eq!(HostLoad::read(Path::new("/nowhere")), None);
    }
}
