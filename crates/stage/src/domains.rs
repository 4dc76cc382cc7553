//! Two hosts with a libvirt daemon each, and a guest that beats at the first of them.

use crate::program;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command};

use drover_lab::{Drover, Hosts, Output, PulseOptions, Voice, put_script};
use serde_json::Value;
use tempfile::TempDir;

use crate::MIB;
use crate::certificates::certificates;
use crate::moves;

pub const NAME: &str = "beat";

/// MiB a second that libvirt has a move send at most where nobody said otherwise.
const SPEED: &str = "8796093022207";

/// A guest that writes less than what is sent of it by [`Pair::begin`], 2 MiB a second: a page of 4 KiB, 100 times a second.
pub fn calm() -> PulseOptions {
    PulseOptions { pages_per_beat: 1, ..PulseOptions::default() }
}

/// Two hosts, the first with a guest that beats.
pub struct Pair {
    pub hosts: Hosts,
    pub voice: Voice,
    pub drover: Drover,
    pub folder: TempDir,
}

impl Pair {
    /// A busy guest with a disk that both hosts have.
    pub fn shared() -> Option<Pair> {
        Pair::new(|hosts| {
            let disk = hosts.shared().join("disk.raw");
            std::fs::write(&disk, vec![0x5a; 8 * MIB as usize]).unwrap();
            PulseOptions { disk: Some(disk), ..calm() }
        })
    }

    /// A busy guest with a disk that only the first host has, in a folder that is a storage pool of the second.
    pub fn apart() -> Option<Pair> {
        Pair::new(|hosts| {
            for host in ["a", "b"] {
                std::fs::create_dir_all(hosts.run_folder(host).join("vms")).unwrap();
            }
            hosts.virsh("b", &["pool-create-as", "vms", "dir", "--target", "/run/vms"]).unwrap();
            std::fs::write(hosts.run_folder("a").join("vms/disk.raw"), vec![0x5a; 8 * MIB as usize]).unwrap();
            PulseOptions { disk: Some(PathBuf::from("/run/vms/disk.raw")), ..calm() }
        })
    }

    pub fn new(options: impl FnOnce(&Hosts) -> PulseOptions) -> Option<Pair> {
        Pair::in_folder(tempfile::Builder::new().prefix("drover-hosts-").tempdir().unwrap(), options)
    }

    /// Two hosts with certificates of one CA for their QEMUs, both in the name of `host-b`.
    pub fn certified(options: impl FnOnce(&Hosts) -> PulseOptions) -> Option<Pair> {
        let folder = tempfile::Builder::new().prefix("drover-hosts-").tempdir().unwrap();
        let made = folder.path().join("certificates");
        std::fs::create_dir(&made).unwrap();
        certificates(&made);
        for host in ["a", "b"] {
            let place = folder.path().join(host).join("etc/pki/qemu");
            std::fs::create_dir_all(&place).unwrap();
            for file in std::fs::read_dir(&made).unwrap().map(Result::unwrap) {
                std::fs::copy(file.path(), place.join(file.file_name())).unwrap();
            }
        }
        Pair::in_folder(folder, options)
    }

    fn in_folder(folder: TempDir, options: impl FnOnce(&Hosts) -> PulseOptions) -> Option<Pair> {
        let hosts = Hosts::start(folder.path()).unwrap()?;
        hosts.define("a", NAME, &options(&hosts)).unwrap();
        hosts.virsh("a", &["start", NAME]).unwrap();
        let voice = hosts.voice("a", NAME).unwrap();
        voice.beat(3).unwrap();
        let drover = Drover::new(program(), folder.path().join("state"));
        Some(Pair { hosts, voice, drover, folder })
    }

    pub fn command(&self, from: &str, to: &str, more: &[&str]) -> Command {
        let (from, to) = (self.hosts.uri(from), self.hosts.uri(to));
        let mut command = self.drover.command(&["live", NAME, "--connect", &from, "--to", &to, "--json"]);
        command.args(["--deadline", "10m"]).args(more);
        self.hosts.equip(&mut command);
        command
    }

    /// With a `virsh` that does this first (shell), in this pair's folder, and then what `virsh` does.
    pub fn command_by(&self, first: &str, more: &[&str]) -> Command {
        let mut command = self.command("a", "b", more);
        let folder = self.folder.path().join("bin");
        std::fs::create_dir(&folder).unwrap();
        let here = self.folder.path().display();
        let script = format!("#!/bin/sh\nPATH=${{PATH#*:}}\ncd {here}\n{first}\nexec virsh \"$@\"\n");
        put_script(&folder.join("virsh"), &script).unwrap();
        let path = command.get_envs().find_map(|(name, value)| value.filter(|_| name == "PATH")).unwrap();
        let path = [folder.as_os_str(), path].join(OsStr::new(":"));
        command.env("PATH", path);
        command
    }

    pub fn live(&self, more: &[&str]) -> Output {
        moves::run(self.command("a", "b", more))
    }

    pub fn told(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Begins a slow move and waits until this is told of it.
    pub fn begin(&self, more: &[&str], is_it: impl Fn(&Value) -> bool) -> Child {
        let more = [&["--rate-max", "17m", "--channels", "1"][..], more].concat();
        let child = moves::spawn(self.command("a", "b", &more), &self.told());
        assert!(moves::is_told(&self.told(), is_it), "nothing is sent");
        child
    }

    pub fn state(&self, host: &str) -> String {
        // A daemon that does not have it says so by failing.
        self.hosts.virsh(host, &["domstate", NAME, "--reason"]).unwrap_or_default()
    }

    /// Whether its daemons can make a line of post-copy anew: libvirt 11.2 and 11.3 crash.
    pub fn can_resume(&self) -> bool {
        let told = self.hosts.virsh("b", &["version", "--daemon"]).unwrap();
        let can = !["11.2.", "11.3."].iter().any(|bad| told.contains(&format!("against daemon: {bad}")));
        if !can {
            println!("skipped: this libvirt crashes when it resumes ({told})");
        }
        can
    }

    pub fn job(&self, host: &str) -> String {
        self.hosts.virsh(host, &["domjobinfo", NAME]).unwrap()
    }

    pub fn uuid(&self, host: &str) -> String {
        self.hosts.virsh(host, &["domuuid", NAME]).unwrap()
    }

    /// It runs at the other host and nowhere else, is what it was, and both daemons say so.
    #[track_caller]
    pub fn has_moved(&mut self, from: &str, to: &str) {
        assert_eq!(self.state(to), "running (migrated)");
        assert_eq!(self.state(from), "shut off (migrated)");
        assert_eq!(self.hosts.virsh(from, &["migrate-getspeed", NAME]).unwrap(), SPEED);
        assert_eq!(self.uuid(from), self.uuid(to));
        assert!(self.hosts.virsh(to, &["dominfo", NAME]).unwrap().contains("Persistent:     yes"));
        let mut there = self.hosts.voice(to, NAME).unwrap();
        there.beat(20).unwrap();
        let (last, first) = (self.voice.beats().last().unwrap().1, there.beats()[0].1);
        assert!(first > last, "beat {last}, then {first}");
        let verdict = there.verify().unwrap();
        assert!(verdict.is_sound(), "{verdict:?}");
        self.voice = there;
    }

    /// It runs at the first host, and the second knows nothing of it.
    #[track_caller]
    pub fn runs_on(&mut self) {
        assert!(self.state("a").starts_with("running"), "{}", self.state("a"));
        assert_eq!(self.state("b"), "");
        self.voice.beat(20).unwrap();
        let verdict = self.voice.verify().unwrap();
        assert!(verdict.is_sound(), "{verdict:?}");
    }

    /// The same, as if nothing had been.
    #[track_caller]
    pub fn has_stayed(&mut self) {
        self.runs_on();
        assert_eq!(self.hosts.virsh("a", &["migrate-getmaxdowntime", NAME]).unwrap(), "300");
        assert_eq!(self.hosts.virsh("a", &["migrate-getspeed", NAME]).unwrap(), SPEED);
    }

    /// Refused before anything was done, for all of these reasons.
    #[track_caller]
    pub fn is_refused(&mut self, output: &Output, reasons: &[&str]) {
        assert_eq!(output.code, Some(3), "{output:?}");
        for reason in reasons {
            assert!(output.err.contains(reason), "{reason:?} in {}", output.err);
        }
        self.voice.beat(3).unwrap();
        assert!(self.state("a").starts_with("running"), "{}", self.state("a"));
    }

    /// The disk of [`Pair::apart`] at the second host has what the guest wrote to that of the first, or later.
    #[track_caller]
    pub fn has_the_disk_of_the_source(&self) {
        let bytes = |host: &str| std::fs::read(self.hosts.run_folder(host).join("vms/disk.raw")).unwrap();
        let (ours, theirs) = (bytes("a"), bytes("b"));
        assert_eq!(ours.len(), theirs.len());
        assert!(ours[1025 * 512..] == theirs[1025 * 512..]);
        // Sectors hold the number of the beat that wrote them.
        let number =
            |bytes: &[u8], sector: usize| u32::from_le_bytes(bytes[sector * 512..][..4].try_into().unwrap());
        let fill = u32::from_le_bytes([0x5a; 4]);
        for sector in 0..=1024 {
            let (one, other) = (number(&ours, sector), number(&theirs, sector));
            assert!(one == other || one == fill || other > one, "sector {sector}: {one:x}, {other:x}");
        }
    }

    /// So many bytes of memory are sent in a second in post-copy that nobody waits for; 0: all.
    pub fn send_ahead(&self, bytes: u64) {
        let order = format!(
            r#"{{"execute": "migrate-set-parameters", "arguments": {{"max-postcopy-bandwidth": {bytes}}}}}"#
        );
        self.hosts.virsh("a", &["qemu-monitor-command", NAME, &order]).unwrap();
    }
}
