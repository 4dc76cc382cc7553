//! Signatures of reports, by OpenSSH's `ssh-keygen`: keys in files, in agents and on tokens work as they do for `git`.
//!
//! The signature of `FILE` lies in `FILE.sig`, in OpenSSH's format. Whose it is says a file of allowed signers (`man ssh-keygen`).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use drover_child::Kind;
use drover_view::clean;

use crate::exit::{Exit, Failure};

/// What is signed, so that a signature made for something else is none of a report.
const NAMESPACE: &str = "drover-report";

/// Where the signature of a file lies.
pub fn path_of(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".sig");
    name.into()
}

/// Refuses a key that cannot be read, before hours are spent on what it shall sign.
pub fn check_key(key: &Path) -> Result<(), Failure> {
    File::open(key).map(|_| ()).map_err(|error| {
        Failure::new(Exit::Access, format!("signing key {}: {error}", key.display()))
            .advise("name a private key of OpenSSH, or the public key of one that ssh-agent holds")
    })
}

/// Signs a file; an older signature of it is replaced.
pub fn sign(file: &Path, key: &Path) -> Result<PathBuf, Failure> {
    check_key(key)?;
    let mut command = ssh_keygen(["sign", "-n", NAMESPACE]);
    let made = output(command.arg("-f").arg(key), file)?;
    if !made.status.success() {
        let text = format!("signing {} with {}: {}", file.display(), key.display(), words(&made));
        return Err(Failure::new(Exit::Access, text));
    }
    let path = path_of(file);
    let write = || -> io::Result<()> {
        let mut out = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        out.write_all(&made.stdout)?;
        out.sync_all()
    };
    write().map_err(|error| Failure::new(Exit::Target, format!("writing {}: {error}", path.display())))?;
    Ok(path)
}

/// Whose signature a file has, out of those in a file of allowed signers.
///
/// # Errors
/// With [`Exit::Verification`] if it has none, or none of these, or was changed since.
pub fn verify(file: &Path, signers: &Path) -> Result<String, Failure> {
    let signature = path_of(file);
    for path in [file, signers] {
        File::open(path)
            .map_err(|error| Failure::new(Exit::Source, format!("{}: {error}", path.display())))?;
    }
    if let Err(error) = File::open(&signature) {
        return Err(Failure::new(Exit::Verification, format!("{}: {error}", signature.display()))
            .advise("the signature lies beside the file it is for; `--sign KEY` of `drover hash` and `drover report` makes it"));
    }
    let with = |mut command: Command| {
        command.arg("-s").arg(&signature).arg("-f").arg(signers);
        command
    };
    let not_good = |made: &Output| {
        let (file, signers) = (file.display(), signers.display());
        let text =
            format!("the signature of {file} is not good for any signer in {signers}: {}", words(made));
        Failure::new(Exit::Verification, text)
    };
    let found = output(&mut with(ssh_keygen(["find-principals"])), file)?;
    let names = String::from_utf8_lossy(&found.stdout).into_owned();
    let Some(signer) = names.lines().next().map(str::trim).filter(|name| !name.is_empty()) else {
        return Err(not_good(&found));
    };
    let mut command = with(ssh_keygen(["verify", "-n", NAMESPACE]));
    let checked = output(command.arg("-I").arg(signer), file)?;
    if !checked.status.success() {
        return Err(not_good(&checked));
    }
    Ok(clean(signer).into_owned())
}

fn ssh_keygen<const N: usize>(words: [&str; N]) -> Command {
    let mut command = drover_child::command("ssh-keygen", Kind::Ssh);
    command.arg("-Y").args(words);
    command
}

/// Runs it with the file for its input. Who signs may have to type or to touch a token: that takes the time it takes.
fn output(command: &mut Command, file: &Path) -> Result<Output, Failure> {
    let input = File::open(file)
        .map_err(|error| Failure::new(Exit::Source, format!("{}: {error}", file.display())))?;
    command.stdin(Stdio::from(input)).output().map_err(|error| {
        let failure = Failure::new(Exit::Source, format!("ssh-keygen cannot be run: {error}"));
        failure.advise("install OpenSSH's client (openssh-client, openssh-clients), version 8.2 or later")
    })
}

/// What it said of its failure: its last line.
fn words(made: &Output) -> String {
    let said = String::from_utf8_lossy(&made.stderr);
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
    clean(last.unwrap_or("ssh-keygen gave no reason")).into_owned()
}
