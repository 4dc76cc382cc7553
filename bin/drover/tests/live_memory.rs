//! `drover live`: memory that is encrypted by QEMU, compressed, or sent by what changed in it; set on both sides and back.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use drover_lab::{Output, Pulse, PulseOptions};
use drover_stage::certificates::certificates;
use drover_stage::moves::{self, ask, busy, events, say, say_with, with_disks, written_sectors};
use drover_stage::pair::Pair;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder that no test shares.
fn folder() -> TempDir {
    tempfile::Builder::new().prefix("drover-tls-").tempdir().unwrap()
}

/// A key of 32 bytes for the user `qemu`, each of them this one.
fn shared_key(folder: &Path, byte: &str) -> String {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("keys.psk"), format!("qemu:{}\n", byte.repeat(32))).unwrap();
    folder.display().to_string()
}

/// A guest whose QEMU has credentials from the start.
fn with_key(guest: &PulseOptions, endpoint: &str, folder: &str) -> PulseOptions {
    let user = if endpoint == "client" { ",username=qemu" } else { "" };
    let object = format!("tls-creds-psk,id=tls0,endpoint={endpoint},dir={folder}{user}");
    PulseOptions { more: vec!["-object".into(), object], ..guest.clone() }
}

fn parameters(guest: &Pulse) -> Value {
    ask(guest, "query-migrate-parameters", Value::Null)
}

fn names_in_objects(guest: &Pulse) -> Vec<Value> {
    let objects = ask(guest, "qom-list", json!({"path": "/objects"}));
    objects.as_array().unwrap().iter().map(|object| object["name"].clone()).collect()
}

/// Nothing of this move is left where the guest is.
#[track_caller]
fn is_as_before(guest: &Pulse) {
    let parameters = parameters(guest);
    for (name, value) in [
        ("tls-creds", json!("")),
        ("tls-hostname", json!("")),
        ("multifd-compression", json!("none")),
        ("xbzrle-cache-size", json!(64 << 20)),
        ("max-bandwidth", json!(128 << 20)),
    ] {
        assert_eq!(parameters[name], value, "{name}");
    }
    let capabilities = ask(guest, "query-migrate-capabilities", Value::Null);
    for name in ["multifd", "xbzrle", "auto-converge"] {
        assert!(
            capabilities.as_array().unwrap().contains(&json!({"capability": name, "state": false})),
            "{name}"
        );
    }
    assert!(!names_in_objects(guest).contains(&json!("drover-tls")), "credentials are left");
}

#[track_caller]
fn is_refused(output: &Output, words: &[&str]) {
    assert_eq!(output.code, Some(3), "{output:?}");
    for word in words {
        assert!(output.err.contains(word), "{word}: {}", output.err);
    }
}

#[test]
fn memory_goes_by_a_key_that_both_have() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    for channels in ["1", "4"] {
        let guest = busy().traced();
        let Some(mut pair) = Pair::new(&guest) else { return };
        let output = pair.live(&["--channels", channels, "--tls-psk", &key]);
        pair.has_moved(&output);
        assert!(output.out.contains("memory goes encrypted by QEMU"), "{}", output.out);
        for side in ["a", "b"] {
            assert!(pair.was_told(side, "tls-creds").contains(&json!("drover-tls")), "{side}");
        }
        is_as_before(&pair.target);
        assert!(!names_in_objects(&pair.source).contains(&json!("drover-tls")));
    }
}

#[test]
fn memory_and_disks_go_by_objects_that_both_have() {
    let (keys, disks) = (folder(), folder());
    let key = shared_key(keys.path(), "a5");
    let [here, there] = with_disks(disks.path(), &busy());
    let (here, there) = (with_key(&here, "client", &key), with_key(&there, "server", &key));
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    let nbd = format!("unix:{}", pair.path("nbd.sock").display());
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd, "--tls-creds", "tls0"]);
    pair.has_moved(&output);
    is_as_before(&pair.target);
    assert!(names_in_objects(&pair.target).contains(&json!("tls0")), "it is not drover's to remove");
    pair.target.kill();
    assert!(written_sectors(disks.path()) > 0, "the guest wrote nothing");
}

/// That the offer of disks is encrypted, too, shows where the keys differ: not even the mirror begins.
#[test]
fn keys_that_differ_leave_the_guest_where_it_was() {
    let (keys, disks) = (folder(), folder());
    let ours = shared_key(&keys.path().join("ours"), "a5");
    let theirs = shared_key(&keys.path().join("theirs"), "5a");
    for mirrors in [false, true] {
        let [here, there] = with_disks(disks.path(), &busy());
        let (here, there) = match mirrors {
            true => (here, there),
            false => (PulseOptions { disk: None, ..here }, PulseOptions { disk: None, ..there }),
        };
        let (here, there) = (with_key(&here, "client", &ours), with_key(&there, "server", &theirs));
        let Some(mut pair) = Pair::unlike(&here, &there) else { return };
        let nbd = format!("unix:{}", pair.path("nbd.sock").display());
        let disks = ["--disks", "mirror", "--nbd", &nbd];
        let more = if mirrors { &disks[..] } else { &[] };
        let output = pair.live(&[&["--tls-creds", "tls0"], more].concat());
        assert_eq!(output.code, Some(7), "{output:?}");
        assert!(!events(&output).iter().any(|event| event["event"] == "disk"), "a mirror began: {output:?}");
        assert!(
            output.err.contains("TLS") && output.err.contains("the guest is at the source, as it was"),
            "{}",
            output.err
        );
        pair.has_stayed();
        is_as_before(&pair.source);
    }
}

#[test]
fn memory_goes_by_certificates_whose_name_is_the_targets() {
    let files = folder();
    certificates(files.path());
    let at = files.path().to_str().unwrap();
    let Some(mut pair) = Pair::new(&busy()) else { return };
    is_refused(&pair.live(&["--tls-x509", at]), &["unix socket", "--tls-hostname"]);
    let output = pair.live(&["--tls-x509", at, "--tls-hostname", "host-b"]);
    pair.has_moved(&output);
    is_as_before(&pair.target);

    let Some(mut pair) = Pair::new(&busy()) else { return };
    let output = pair.live(&["--tls-x509", at, "--tls-hostname", "host-c"]);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(
        output.err.contains("host-c") && output.err.contains("the guest is at the source, as it was"),
        "{}",
        output.err
    );
    pair.has_stayed();
    is_as_before(&pair.source);
}

#[test]
fn credentials_that_a_side_lacks_are_told_before_anything_is_done() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    let Some(mut pair) = Pair::unlike(&with_key(&busy(), "client", &key), &busy()) else { return };
    let output = pair.live(&["--tls-creds", "tls0", "--dry-run"]);
    is_refused(&output, &["the target's QEMU has no TLS credentials tls0", "endpoint=server"]);
    let output = pair.live(&["--tls-creds", "tls1"]);
    is_refused(&output, &["source's QEMU has no", "target's QEMU has no"]);
    let nowhere = keys.path().join("nowhere");
    let output = pair.live(&["--tls-psk", nowhere.to_str().unwrap()]);
    is_refused(
        &output,
        &["the source's QEMU cannot make TLS credentials", "the target's QEMU cannot", "keys.psk"],
    );
    is_as_before(&pair.source);
    is_as_before(&pair.target);
    let output = pair.live(&["--tls-hostname", "host-b"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    pair.has_stayed();
}

#[test]
fn a_side_that_somebody_set_to_encrypt_is_not_sent_to_in_the_clear() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    let guest = |endpoint| with_key(&busy(), endpoint, &key);
    let Some(mut pair) = Pair::unlike(&guest("client"), &guest("server")) else { return };
    say_with(&pair.target, "migrate-set-parameters", json!({"tls-creds": "tls0"}));
    is_refused(&pair.live(&[]), &["target's QEMU is set to encrypt", "--tls-creds tls0"]);
    let output = pair.live(&["--tls-creds", "tls0"]);
    pair.has_moved(&output);
    assert_eq!(parameters(&pair.target)["tls-creds"], "tls0", "it was so before");
}

#[test]
fn memory_goes_compressed() {
    for (how, level) in [("zstd", "multifd-zstd-level"), ("zlib", "multifd-zlib-level")] {
        let Some(mut pair) = Pair::new(&moves::idle().traced()) else { return };
        let channels = if how == "zstd" { "4" } else { "1" };
        let output = pair.live(&["--compress", how, "--compress-level", "3", "--channels", channels]);
        pair.has_moved(&output);
        for side in ["a", "b"] {
            assert_eq!(pair.was_told(side, "multifd-compression")[0], how, "{side}");
            assert_eq!(pair.was_told(side, level)[0], 3, "{side}");
        }
        is_as_before(&pair.target);
    }
}

#[test]
fn compressed_memory_does_not_go_with_postcopy_where_qemu_says_so() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let output = pair.live(&["--compress", "zstd", "--allow", "postcopy"]);
    // 10.1 and later can.
    if output.code != Some(0) {
        is_refused(&output, &["do not compress with post-copy", "--compress"]);
        pair.has_stayed();
        is_as_before(&pair.source);
        is_as_before(&pair.target);
    }
}

#[test]
fn memory_goes_by_what_changed_in_it() {
    let Some(mut pair) = Pair::new(&busy().traced()) else { return };
    is_refused(&pair.live(&["--xbzrle", "32m", "--channels", "4"]), &["one plain connection"]);
    is_refused(&pair.live(&["--xbzrle", "32m", "--compress", "zstd"]), &["one plain connection"]);
    let output = pair.live(&["--xbzrle", "32m"]);
    pair.has_moved(&output);
    let told = ask(&pair.source, "query-migrate", Value::Null);
    assert_eq!(told["xbzrle-cache"]["cache-size"], 32 << 20, "{told}");
    assert_eq!(pair.was_told("b", "xbzrle-cache-size")[0], 32 << 20);
    is_as_before(&pair.target);
}

#[test]
fn what_differs_at_the_target_is_made_the_same() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let many = json!({"capabilities": [{"capability": "multifd", "state": true}]});
    say_with(&pair.target, "migrate-set-capabilities", many);
    say_with(
        &pair.target,
        "migrate-set-parameters",
        json!({"multifd-channels": 7, "multifd-compression": "zlib"}),
    );
    let output = pair.live(&["--channels", "1"]);
    pair.has_moved(&output);
    let capabilities = ask(&pair.target, "query-migrate-capabilities", Value::Null);
    let is_on = json!({"capability": "multifd", "state": true});
    assert!(capabilities.as_array().unwrap().contains(&is_on), "it was so before");

    let Some(mut pair) = Pair::new(&busy()) else { return };
    say_with(
        &pair.target,
        "migrate-set-parameters",
        json!({"multifd-channels": 7, "multifd-compression": "zlib"}),
    );
    let output = pair.live(&["--channels", "3"]);
    pair.has_moved(&output);
    let after = parameters(&pair.target);
    assert_eq!((&after["multifd-channels"], &after["multifd-compression"]), (&json!(7), &json!("zlib")));
}

#[test]
fn writes_are_not_bounded_where_nobody_counts_them() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let output = pair.live(&["--allow", "throttle", "--throttle-by", "dirty-limit"]);
    is_refused(&output, &["dirty ring of KVM", "--throttle-by"]);
    pair.has_stayed();
    let output = pair.live(&["--allow", "throttle"]);
    pair.has_moved(&output);
}

#[test]
fn a_guest_goes_ahead_of_memory_that_is_encrypted() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    let hot = PulseOptions { pages_per_beat: 200, ..PulseOptions::default() };
    let Some(mut pair) = Pair::new(&hot) else { return };
    // 80 MB/s written to, 25 MB/s carried: nothing but post-copy ends.
    let ways = ["--line", "200m", "--rate-max", "200m", "--allow", "postcopy", "--tls-psk", &key];
    let output = pair.live(&ways);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.target.beat(20).unwrap();
    moves::is_silent(&pair.source);
    let verdict = pair.target.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
    is_as_before(&pair.target);
}

#[test]
fn a_run_that_takes_over_removes_the_credentials_of_the_one_that_was_killed() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    let Some(mut pair) = Pair::new(&moves::idle()) else { return };
    let mut child = pair.spawn(&[&moves::SLOWLY[..], &["--tls-psk", &key]].concat());
    pair.wait_until_sending();
    child.kill().unwrap();
    child.wait().unwrap();
    say_with(&pair.source, "migrate-set-parameters", json!({"max-bandwidth": 1 << 30}));
    let output = pair.live(&["--tls-psk", &key]);
    pair.has_moved(&output);
    assert_eq!(parameters(&pair.target)["tls-creds"], "");
    for guest in [&pair.source, &pair.target] {
        assert!(!names_in_objects(guest).contains(&json!("drover-tls")));
    }
}

#[test]
fn a_move_that_is_cancelled_leaves_the_source_as_it_was() {
    let keys = folder();
    let key: PathBuf = shared_key(keys.path(), "a5").into();
    let Some(mut pair) = Pair::new(&moves::idle()) else { return };
    let child = pair.spawn(&[&moves::SLOWLY[..], &["--tls-psk", key.to_str().unwrap()]].concat());
    pair.wait_until_sending();
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let output = pair.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    pair.has_stayed();
    is_as_before(&pair.source);
}

#[test]
fn a_move_that_is_taken_over_and_stopped_leaves_no_credentials() {
    let keys = folder();
    let key = shared_key(keys.path(), "a5");
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let wish = [&moves::SLOWLY[..], &["--tls-psk", &key]].concat();
    let mut child = pair.spawn(&wish);
    pair.wait_until_sending();
    child.kill().unwrap();
    child.wait().unwrap();
    let child = pair.spawn(&wish);
    pair.wait_until_sending();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = pair.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert!(output.out.contains("it is watched to its end"), "{}", output.out);
    pair.has_stayed();
    assert!(!names_in_objects(&pair.source).contains(&json!("drover-tls")), "credentials are left");
    assert_eq!(parameters(&pair.source)["tls-creds"], "");
}

/// KVM may be there and not run this guest, so it stands still: what is judged is what both QEMUs take, and that the guest
/// arrives.
#[test]
fn a_guest_of_kvm_has_its_writes_bounded_at_the_source_alone() {
    let under = |accel| PulseOptions { accel, ..busy() }.traced();
    // The target has no ring, and needs none.
    let Some(pair) = Pair::silent(&under("kvm,dirty-ring-size=4096"), &under("kvm")) else {
        println!("skipped: no KVM with a dirty ring");
        return;
    };
    say(&pair.source, "stop");
    let output = pair.live(&["--allow", "throttle", "--throttle-by", "dirty-limit"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(pair.was_told("a", "vcpu-dirty-limit")[0], 1 << 20, "no bound that is reached");
    assert_eq!(pair.was_told("b", "vcpu-dirty-limit"), [] as [Value; 0]);
    assert_eq!(ask(&pair.target, "query-status", Value::Null)["status"], "paused");
    assert_eq!(ask(&pair.source, "query-status", Value::Null)["status"], "postmigrate");
}
