//! `ssh://` sources, by OpenSSH's own server behind a stand-in for ssh.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use drover_stage::{MIB, disk_file, same_bytes};

const SERVER: &str = "/usr/lib/openssh/sftp-server";

fn drover(folder: &Path, args: &[&str]) -> Output {
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    Command::new(env!("CARGO_BIN_EXE_drover")).args(args).env("PATH", path).output().unwrap()
}

fn put_ssh(folder: &Path, body: &str) {
    let program = folder.join("bin/ssh");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    drover_lab::put_script(&program, body).unwrap();
}

#[test]
fn a_file_of_another_host_is_copied_verified_and_hashed() {
    if !Path::new(SERVER).exists() {
        println!("skipped: OpenSSH's sftp-server is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    put_ssh(folder.path(), &format!("exec {SERVER}"));
    let source = disk_file(folder.path(), "source", 9 * MIB + 77);
    let target = folder.path().join("target");
    let uri = format!("ssh://user@kvm1:2222{}", source.display());
    let output = drover(folder.path(), &["copy", &uri, target.to_str().unwrap(), "--verify", "source"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(same_bytes(&source, &target));
    let output = drover(folder.path(), &["verify", &uri, target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let output = drover(folder.path(), &["copy", source.to_str().unwrap(), &uri]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_file_that_changes_on_its_host_during_a_copy_is_noticed_at_its_end() {
    if !Path::new(SERVER).exists() {
        println!("skipped: OpenSSH's sftp-server is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, calls) = (disk_file(folder.path(), "source", MIB), folder.path().join("calls"));
    // One connection to look at it, one to read it: with the third, all was read.
    let change = format!(
        "[ $(wc -l <{calls}) -lt 3 ] || touch -d @1000000000 {}",
        source.display(),
        calls = calls.display()
    );
    put_ssh(folder.path(), &format!("echo >>{}; {change}; exec {SERVER}", calls.display()));
    let uri = format!("ssh://kvm1{}", source.display());
    let target = folder.path().join("target");
    let output = drover(folder.path(), &["copy", &uri, target.to_str().unwrap(), "--lanes", "1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("changed on its host while it was read"), "{said}");
}

#[test]
fn failures_of_ssh_have_their_exit_codes_and_its_words() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let to = target.to_str().unwrap();
    for (body, uri, code, words) in [
        ("echo 'u@h: Permission denied (publickey).' >&2; exit 255", "ssh://h/x", 4, "Permission denied"),
        (
            "echo 'Host key verification failed.' >&2; exit 255",
            "ssh://h/x",
            4,
            "Host key verification failed",
        ),
        ("echo 'connect to host h port 22: No route' >&2; exit 255", "ssh://h/x", 5, "No route"),
        ("touch run", "ssh://-oProxyCommand=x/x", 2, "starts with a dash"),
        ("touch run", "ssh://user:secret@h/x", 2, "a password has no place"),
    ] {
        put_ssh(folder.path(), body);
        let output = drover(folder.path(), &["copy", uri, to]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{body}: {said}");
        assert!(said.contains(words) && !said.contains("secret"), "{said}");
        assert!(!target.exists());
    }
}
