//! What an agent serves beside folders of files: block devices, NBD exports, pools of libvirt; and its systemd unit.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use drover_lab::{Drover, Output};
use drover_stage::loops::{Loop, ran};
use drover_stage::nbdkit::Nbdkit;
use drover_stage::process::EndsWithTest;
use drover_stage::sites::{Sites, done};
use drover_stage::{MIB, disk_file, same_bytes};
use serde_json::Value;

fn copy(sites: &Sites, source: &Path, target: &str, more: &[&str]) -> Output {
    sites.here.run(&[&["copy", "--json", source.to_str().unwrap(), target], more].concat()).unwrap()
}

/// Copies a place of the other site here and compares.
fn comes_back(sites: &Sites, place: &str, source: &Path) {
    let back = sites.path("back");
    let output = sites.here.run(&["copy", place, back.to_str().unwrap()]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    let (source, back) = (std::fs::read(source).unwrap(), std::fs::read(&back).unwrap());
    assert!(back.len() >= source.len() && back[..source.len()] == source);
    assert!(back[source.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_block_device_of_another_site_is_written_once_and_again_only_if_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::blank(folder.path(), "lun", 24 * MIB) else { return };
    let sites = Sites::paired_with(&["--device", &format!("lun7={}", device.device)]);
    let source = disk_file(folder.path(), "source", 24 * MIB);
    let report = done(&copy(&sites, &source, "agent://site-b/lun7", &["--verify", "full"]));
    assert_eq!(report["equal"], true, "{report}");
    assert!(device.starts_with(&source));
    comes_back(&sites, "agent://site-b/lun7", &source);
    let other = disk_file(folder.path(), "other", 20 * MIB);
    let refused = copy(&sites, &other, "agent://site-b/lun7", &[]);
    assert_eq!(refused.code, Some(7), "{}", refused.err);
    assert!(device.starts_with(&source), "nothing was written");
    done(&copy(&sites, &other, "agent://site-b/lun7", &["--force"]));
    assert!(device.starts_with(&other));
    let info = sites.here.run(&["agent", "info", "site-b", "--json"]).unwrap().json().unwrap();
    assert_eq!(info["agent"]["devices"][0], "lun7");
}

/// A file system that is in use, until this is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(device: &Loop, at: &Path) -> Option<Mounted> {
        std::fs::create_dir(at).unwrap();
        let good = |program: &str, args: &[&str]| ran(program, args).is_some_and(|it| it.status.success());
        let mounted = good("mkfs.ext4", &["-q", "-F", &device.device])
            && good("mount", &[&device.device, at.to_str().unwrap()]);
        if !mounted {
            println!("skipped: nothing can be mounted here");
            return None;
        }
        Some(Mounted(at.to_path_buf()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        ran("umount", &[self.0.to_str().unwrap()]);
    }
}

#[test]
fn a_block_device_that_is_in_use_there_is_refused_even_if_forced() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::blank(folder.path(), "lun", 24 * MIB) else { return };
    let Some(_mounted) = Mounted::new(&device, &folder.path().join("mnt")) else { return };
    let sites = Sites::paired_with(&["--device", &format!("lun7={}", device.device)]);
    let source = disk_file(folder.path(), "source", 24 * MIB);
    let refused = copy(&sites, &source, "agent://site-b/lun7", &["--force"]);
    assert_eq!(refused.code, Some(7), "{}", refused.err);
    assert!(refused.err.contains("in use") && refused.err.contains("mounted"), "{}", refused.err);
}

#[test]
fn an_export_of_somebody_elses_nbd_server_behind_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export");
    std::fs::File::create(&file).unwrap().set_len(24 * MIB).unwrap();
    let Some(server) = Nbdkit::start(folder.path(), &["file", file.to_str().unwrap()]) else { return };
    let sites = Sites::paired_with(&["--nbd", &format!("export={}", server.uri())]);
    let source = disk_file(folder.path(), "source", 24 * MIB);
    let report = done(&copy(&sites, &source, "agent://site-b/export", &["--verify", "full"]));
    assert_eq!(report["equal"], true, "{report}");
    assert!(same_bytes(&source, &file));
    comes_back(&sites, "agent://site-b/export", &source);
    let large = disk_file(folder.path(), "large", 25 * MIB);
    let refused = copy(&sites, &large, "agent://site-b/export", &[]);
    assert_eq!(refused.code, Some(7), "{}", refused.err);
}

#[test]
fn an_export_of_drovers_own_server_behind_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export.raw");
    std::fs::File::create(&file).unwrap().set_len(24 * MIB).unwrap();
    let host = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let args = ["serve-disk", file.to_str().unwrap(), "--json", "--exit-with-parent", "--writable"];
    let mut command = host.command(&args);
    command.env("XDG_RUNTIME_DIR", folder.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _server = EndsWithTest(child);
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("'{line}'"));
    let sites = Sites::paired_with(&["--nbd", &format!("export={}", said["uri"].as_str().unwrap())]);
    let source = disk_file(folder.path(), "source", 24 * MIB);
    let report = done(&copy(&sites, &source, "agent://site-b/export", &["--verify", "full"]));
    assert_eq!(report["equal"], true, "{report}");
    assert!(same_bytes(&source, &file));
}

/// libvirt's test driver knows pools from a file: their XML is what a true libvirtd says, their folder is this test's.
#[test]
fn a_pool_of_libvirt_is_its_folder() {
    if Command::new("virsh").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: virsh is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images & more");
    std::fs::create_dir(&images).unwrap();
    let host = folder.path().join("host.xml");
    let escaped = images.to_str().unwrap().replace('&', "&amp;");
    let pool = format!(
        "<node><pool type='dir'><name>images</name><uuid>dfe224cb-28fb-8dd0-c4b2-64eb3f0f4566</uuid>\
         <target><path>{escaped}</path></target></pool></node>"
    );
    std::fs::write(&host, pool).unwrap();
    let uri = format!("test://{}", host.display());
    let mut sites = Sites::not_started();
    sites.more = ["--libvirt-pool", "images"].map(str::to_string).to_vec();
    sites.env.push(("LIBVIRT_DEFAULT_URI".to_string(), uri));
    sites.start();
    sites.pair_at(&sites.address);
    let source = disk_file(folder.path(), "source", 8 * MIB);
    done(&copy(&sites, &source, "agent://site-b/images/web01.raw", &["--verify", "full"]));
    assert!(same_bytes(&source, &images.join("web01.raw")));
    let no_such = sites
        .there
        .command(&["agent", "run", "--libvirt-pool", "none"])
        .env("LIBVIRT_DEFAULT_URI", &sites.env[0].1)
        .output()
        .unwrap();
    assert_eq!(no_such.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&no_such.stderr).contains("libvirt pool none"));
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    drover_stage::units::assert_sound("drover-agent.service", "ExecStart=/usr/bin/drover agent run");
}
