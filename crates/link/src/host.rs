//! What this host's kernel lacks for long, fast lines: what `drover tune` tells.

use std::fs;
use std::time::Duration;

/// The largest that any one socket's buffer may be set to, at least (128 MiB).
const SOCKET_BYTES: u64 = 128 << 20;

/// The largest that the kernel makes a socket's buffer by itself, at least (64 MiB): what 10 Gbit/s carries in
/// 53 ms.
const AUTOMATIC_BYTES: u64 = 64 << 20;

/// What is wanted of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A number, at least.
    Least(u64),
    /// Three numbers, of which the last one at least.
    Last(u64),
    /// One of these words; the first is the one to set.
    Word(&'static [&'static str]),
}

/// A setting of the host, and whether it will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as sysctl knows it.
    pub name: &'static str,
    /// What it is; empty if this kernel does not tell.
    pub value: String,
    /// What to set it to. The same as `value` if it will do.
    pub wanted: String,
    /// What it is good for.
    pub why: &'static str,
}

impl Setting {
    /// Whether it should be changed.
    pub fn is_lacking(&self) -> bool {
        self.value != self.wanted
    }
}

const SETTINGS: [(&str, &str); 7] = [
    ("net.core.rmem_max", "receive buffers that programs set, for what is under way on a long line"),
    ("net.core.wmem_max", "send buffers that programs set, likewise"),
    (
        "net.ipv4.tcp_rmem",
        "receive buffers that the kernel sizes: one connection carries no more than this in a round trip",
    ),
    ("net.ipv4.tcp_wmem", "send buffers that the kernel sizes, likewise"),
    ("net.ipv4.tcp_mtu_probing", "finds the largest packet where routers do not tell it"),
    ("net.core.default_qdisc", "spaces packets out, as BBR wants them"),
    (
        "net.ipv4.tcp_congestion_control",
        "loss does not slow BBR down; for programs that do not choose by themselves",
    ),
];

/// Looks at this host's settings. `line` is the rate in bytes a second and the round trip to be filled by one
/// connection; without it, what fits 10 Gbit/s across a continent.
pub fn settings(line: Option<(u64, Duration)>) -> Vec<Setting> {
    judge(line, has_fq(), |name| {
        fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/")))
            .ok()
            .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// Whether this kernel has BBR now, or could load it.
pub fn has_bbr() -> bool {
    drover_tcp::available_congestion().is_ok_and(|all| all.iter().any(|it| it == drover_tcp::BBR))
}

/// Whether this kernel has the queue `fq`, or a module of it, as far as its files tell.
fn has_fq() -> bool {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let folder = format!("/lib/modules/{}", release.trim());
    ["modules.builtin", "modules.dep"]
        .iter()
        .any(|file| fs::read_to_string(format!("{folder}/{file}")).is_ok_and(|modules| names_fq(&modules)))
}

/// Whether a list of modules has it, packed or not.
fn names_fq(modules: &str) -> bool {
    modules.lines().any(|line| line.split(':').next().unwrap_or_default().contains("/sch_fq.ko"))
}

fn judge(line: Option<(u64, Duration)>, has_fq: bool, read: impl Fn(&str) -> Option<String>) -> Vec<Setting> {
    let (socket, automatic) = match line {
        None => (SOCKET_BYTES, AUTOMATIC_BYTES),
        Some((rate, rtt)) => {
            // Twice what is under way: what is lost stays until it was sent again.
            let bytes = (rate as f64 * rtt.as_secs_f64() * 2.0) as u64;
            let bytes = bytes.clamp(4 << 20, 1 << 30).next_power_of_two();
            (bytes, bytes)
        }
    };
    SETTINGS
        .iter()
        .map(|(name, why)| {
            let wanted = match *name {
                "net.core.rmem_max" | "net.core.wmem_max" => Wanted::Least(socket),
                "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" => Wanted::Last(automatic),
                "net.ipv4.tcp_mtu_probing" => Wanted::Word(&["1", "2"]),
                "net.core.default_qdisc" if has_fq => Wanted::Word(&["fq"]),
                // To set what the kernel lacks fails. BBR spaces out by itself then, at some more processor time.
                "net.core.default_qdisc" => Wanted::Word(&[]),
                _ => Wanted::Word(&["bbr"]),
            };
            let value = read(name).unwrap_or_default();
            Setting { name, wanted: wanted.given(&value), value, why }
        })
        .collect()
}

impl Wanted {
    /// What it should be, given what it is: nothing is made smaller.
    fn given(self, value: &str) -> String {
        match self {
            Wanted::Least(least) if value.parse::<u64>().is_ok_and(|it| it >= least) => value.to_string(),
            Wanted::Least(least) => least.to_string(),
            Wanted::Word(words) if words.contains(&value) => value.to_string(),
            // As it is, where there is none to set.
            Wanted::Word(words) => words.first().map_or(value, |word| *word).to_string(),
            Wanted::Last(least) => {
                let mut parts: Vec<&str> = value.split_whitespace().collect();
                let (last, least_text) =
                    (parts.last().and_then(|it| it.parse::<u64>().ok()), least.to_string());
                match last {
                    Some(last) if parts.len() == 3 && last >= least => value.to_string(),
                    Some(_) if parts.len() == 3 => {
                        parts[2] = &least_text;
                        parts.join(" ")
                    }
                    _ => format!("4096 131072 {least}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debian(name: &str) -> Option<String> {
        let value = match name {
            "net.core.rmem_max" | "net.core.wmem_max" => "212992",
            "net.ipv4.tcp_rmem" => "4096 131072 6291456",
            "net.ipv4.tcp_wmem" => "4096 16384 4194304",
            "net.ipv4.tcp_mtu_probing" => "0",
            "net.core.default_qdisc" => "pfifo_fast",
            _ => "cubic",
        };
        Some(value.to_string())
    }

    fn wanted(all: &[Setting], name: &str) -> String {
        all.iter().find(|it| it.name == name).unwrap().wanted.clone()
    }

    #[test]
    fn a_queue_that_the_kernel_lacks_is_not_proposed() {
        let all = judge(None, false, debian);
        let queue = all.iter().find(|it| it.name == "net.core.default_qdisc").unwrap();
        assert!(!queue.is_lacking() && queue.wanted == "pfifo_fast", "{queue:?}");
        assert!(names_fq("kernel/net/sched/sch_cbs.ko.xz:\nkernel/net/sched/sch_fq.ko.xz:\n"));
        assert!(names_fq("kernel/net/sched/sch_fq.ko\n"));
        assert!(!names_fq("kernel/net/sched/sch_fq_codel.ko: kernel/net/sched/sch_fq.ko\n"));
    }

    #[test]
    fn a_host_as_installed_lacks_all_and_is_told_what_to_set() {
        let all = judge(None, true, debian);
        assert!(all.iter().all(Setting::is_lacking));
        assert_eq!(wanted(&all, "net.core.rmem_max"), "134217728");
        assert_eq!(wanted(&all, "net.ipv4.tcp_wmem"), "4096 16384 67108864");
        assert_eq!(wanted(&all, "net.ipv4.tcp_congestion_control"), "bbr");
    }

    #[test]
    fn a_host_that_was_tuned_lacks_nothing() {
        let first = judge(None, true, debian);
        let again = judge(None, true, |name| Some(wanted(&first, name)));
        assert!(!again.iter().any(Setting::is_lacking), "{again:?}");
    }

    #[test]
    fn nothing_is_made_smaller_and_a_line_that_is_named_counts() {
        let large = |name: &str| match name {
            "net.core.rmem_max" => Some((1_u64 << 31).to_string()),
            "net.ipv4.tcp_mtu_probing" => Some("2".into()),
            name => debian(name),
        };
        let all = judge(Some((1_250_000_000, Duration::from_millis(100))), true, large);
        assert_eq!(wanted(&all, "net.core.rmem_max"), (1_u64 << 31).to_string());
        assert_eq!(wanted(&all, "net.ipv4.tcp_mtu_probing"), "2");
        assert_eq!(wanted(&all, "net.ipv4.tcp_rmem"), "4096 131072 268435456");
        let short = judge(Some((125_000_000, Duration::from_millis(1))), true, debian);
        assert_eq!(wanted(&short, "net.ipv4.tcp_rmem"), "4096 131072 6291456");
    }

    #[test]
    fn what_a_kernel_does_not_tell_is_lacking() {
        let none = judge(None, true, |_| None);
        assert!(none.iter().all(Setting::is_lacking));
        assert_eq!(wanted(&none, "net.ipv4.tcp_rmem"), "4096 131072 67108864");
    }
}
