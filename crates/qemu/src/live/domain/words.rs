//! What `virsh migrate` is told, and was told by a run that is gone.

use std::fs;

use drover_live::Allowed;

use super::run::Move;
use crate::live::carried::Carried;
use crate::live::disks::NbdAt;

impl Move<'_> {
    /// For a move of so many connections.
    pub(super) fn words(&self, channels: u8) -> Vec<String> {
        let mut words = self.begin_words();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|word| word.to_string()));
        add(&["--abort-on-error"]);
        if self.core.rate_max().is_none() {
            // Else the daemon takes what was set for this domain last, perhaps the share of a run that was killed.
            add(&["--bandwidth", MIB_UNLIMITED]);
        }
        if let (Some((_, ends)), false) = (Carried::of_data(self.core.carried()), self.copied.is_empty())
            && let NbdAt::Unix(path) = &ends.disks
        {
            add(&["--disks-uri", &format!("unix://{}", path.display())]);
        }
        if let (Some(port), false) = (self.options.disks_port, self.copied.is_empty()) {
            add(&["--disks-port", &port.to_string()]);
        }
        if channels > 1 {
            add(&["--parallel", "--parallel-connections", &channels.to_string()]);
        }
        if self.core.wanted.allowed.throttle {
            add(&[THROTTLE]);
        }
        if self.core.wanted.allowed.postcopy {
            add(&[POSTCOPY]);
        }
        if !self.copied.is_empty() {
            let disks: Vec<&str> = self.copied.iter().map(|(disk, _)| disk.target.as_str()).collect();
            add(&["--copy-storage-all", "--migrate-disks", &disks.join(",")]);
        }
        words
    }

    /// For another line of one that went ahead.
    pub(super) fn resume_words(&self) -> Vec<String> {
        let mut words = self.begin_words();
        words.extend(["--postcopy", "--postcopy-resume"].map(str::to_string));
        words
    }

    fn begin_words(&self) -> Vec<String> {
        let mut words =
            ["migrate", &self.known.uuid, self.ends.target.uri(), "--live"].map(str::to_string).to_vec();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|word| word.to_string()));
        if self.was_persistent {
            add(&["--persistent"]);
        }
        if self.options.p2p {
            add(&["--p2p"]);
        }
        if let Some(name) = &self.options.tls {
            add(&["--tls"]);
            if !name.is_empty() {
                add(&["--tls-destination", name]);
            }
        }
        match (Carried::of_data(self.core.carried()), &self.options.uri) {
            (Some((_, ends)), _) => add(&["--migrateuri", &ends.memory.replacen("unix:", "unix://", 1)]),
            (None, Some(uri)) => add(&["--migrateuri", uri]),
            (None, None) => {}
        }
        if let Some(rate) = self.core.rate_max() {
            let mib = (rate >> 20).max(1).to_string();
            add(&["--bandwidth", &mib]);
            if self.core.wanted.allowed.postcopy {
                add(&["--postcopy-bandwidth", &mib]);
            }
        }
        words
    }
}

const THROTTLE: &str = "--auto-converge";
const POSTCOPY: &str = "--postcopy";

/// What the `virsh` on this host was told that moves this domain: it outlives the run that began it.
pub(super) fn words_at_work(uuid: &str) -> Option<Vec<String>> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| words_of(&line)).find(|words| moves(words, uuid))
}

/// The words of a process, as `/proc` tells them.
fn words_of(line: &[u8]) -> Vec<String> {
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn moves(words: &[String], uuid: &str) -> bool {
    let is_virsh = words.first().is_some_and(|word| word.rsplit('/').next() == Some("virsh"));
    is_virsh && words.windows(2).any(|pair| pair[0] == "migrate" && pair[1] == uuid)
}

/// What may be done in a move that was begun with these words.
pub(super) fn begun_with(words: &[String]) -> Allowed {
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    Allowed { throttle: has(THROTTLE), postcopy: has(POSTCOPY) }
}

/// What no line carries, in MiB a second.
const MIB_UNLIMITED: &str = "100000";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_move_under_way_was_begun_its_virsh_tells() {
        let line = b"/usr/bin/virsh\0-q\0-c\0qemu:///system\0migrate\0u-1\0qemu+ssh://b/system\0--live\0--postcopy\0";
        let words = words_of(line);
        assert!(moves(&words, "u-1") && !moves(&words, "u-2"));
        assert_eq!(begun_with(&words), Allowed { throttle: false, postcopy: true });
        assert!(!moves(&words_of(b"virsh\0migrate-setspeed\0u-1\0"), "u-1"));
        assert!(!moves(&words_of(b"grep\0migrate\0u-1\0"), "u-1"));
    }
}
