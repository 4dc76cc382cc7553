//! The one place that makes child processes: each gets a named environment.
//!
//! Drover's own environment may hold passwords and tokens. What a child inherits can be read in
//! `/proc/PID/environ` for the child's whole life, and a guest's QEMU outlives drover. So a child gets the
//! variables that are named here, and what its maker sets itself.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod attended;

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a child is, which decides what it inherits besides [`EVERY_CHILD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program that needs nothing more: QEMU, its tools, `ip`, `nft`, a shell.
    Plain,
    /// The user's own `ssh`: its agent and its Kerberos tickets.
    Ssh,
    /// `virsh`: where libvirt's daemon is, and how it is reached.
    Libvirt,
    /// `virt-v2v-in-place`: settings of libguestfs, and where drivers for Windows lie.
    Converter,
}

/// Inherited by every child. A name that ends with `*` stands for all that begin so.
const EVERY_CHILD: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_RUNTIME_DIR",
];

const SSH: &[&str] = &["SSH_AUTH_SOCK", "SSH_AGENT_PID", "KRB5CCNAME", "KRB5_CONFIG"];

const LIBVIRT: &[&str] = &["LIBVIRT_*", "XDG_*", "DBUS_SESSION_BUS_ADDRESS", "GNUTLS_SYSTEM_PRIORITY_FILE"];

const CONVERTER: &[&str] =
    &["LIBGUESTFS_*", "SUPERMIN_*", "GUESTFISH_*", "VIRT_TOOLS_DATA_DIR", "VIRTIO_WIN"];

impl Kind {
    fn keeps(self) -> Vec<&'static str> {
        let more: &[&[&str]] = match self {
            Kind::Plain => &[],
            Kind::Ssh => &[SSH],
            // It reaches daemons of other hosts by ssh.
            Kind::Libvirt => &[LIBVIRT, SSH],
            Kind::Converter => &[CONVERTER, LIBVIRT],
        };
        EVERY_CHILD.iter().chain(more.iter().copied().flatten()).copied().collect()
    }
}

/// A command for `program` that inherits what is named for its kind, and nothing else.
pub fn command(program: impl AsRef<OsStr>, kind: Kind) -> Command {
    let name = program.as_ref();
    // A program with a path is started without a copy of this process's tables of memory (vfork), which takes longer the more
    // VMs it moves; one with a name alone is looked for in the copy.
    let found = if name.as_encoded_bytes().contains(&b'/') { None } else { find_program(name, &[]) };
    let mut command = Command::new(found.as_deref().map_or(name, Path::as_os_str));
    command.arg0(name).env_clear().envs(inherited(kind, std::env::vars_os()));
    command
}

/// The program of that name in `PATH`, then in other folders.
pub fn find_program(name: impl AsRef<OsStr>, others: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(others.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name.as_ref())).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn inherited(
    kind: Kind,
    all: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    let keeps = kind.keeps();
    all.into_iter().filter(move |(name, _)| {
        let Some(name) = name.to_str() else { return false };
        keeps.iter().any(|kept| kept.strip_suffix('*').map_or(*kept == name, |start| name.starts_with(start)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(kind: Kind, names: &[&str]) -> Vec<String> {
        let all = names.iter().map(|name| (OsString::from(name), OsString::from("value")));
        inherited(kind, all).map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn no_child_inherits_what_may_be_a_secret() {
        let secrets = [
            "DROVER_PASSWORD",
            "DROVER_TOKEN",
            "DROVER_STATE",
            "MY_VCENTER_PASSWORD",
            "AWS_SECRET_ACCESS_KEY",
            "LD_PRELOAD",
        ];
        for kind in [Kind::Plain, Kind::Ssh, Kind::Libvirt, Kind::Converter] {
            assert_eq!(kept(kind, &secrets), Vec::<String>::new(), "{kind:?}");
            assert_eq!(kept(kind, &["PATH", "LC_ALL", "LCX"]), ["PATH", "LC_ALL"], "{kind:?}");
        }
    }

    #[test]
    fn a_kind_of_child_inherits_its_own_settings() {
        let all = ["SSH_AUTH_SOCK", "LIBVIRT_DEFAULT_URI", "XDG_CONFIG_HOME", "LIBGUESTFS_BACKEND"];
        assert_eq!(kept(Kind::Plain, &all), Vec::<String>::new());
        assert_eq!(kept(Kind::Ssh, &all), ["SSH_AUTH_SOCK"]);
        assert_eq!(kept(Kind::Libvirt, &all), ["SSH_AUTH_SOCK", "LIBVIRT_DEFAULT_URI", "XDG_CONFIG_HOME"]);
        assert_eq!(
            kept(Kind::Converter, &all),
            ["LIBVIRT_DEFAULT_URI", "XDG_CONFIG_HOME", "LIBGUESTFS_BACKEND"]
        );
    }

    #[test]
    fn a_program_of_the_path_keeps_its_name_and_is_started_by_its_place() {
        let made = command("sh", Kind::Plain);
        assert!(Path::new(made.get_program()).is_absolute(), "{made:?}");
        let output = command("sh", Kind::Plain).args(["-c", "echo $0"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "sh\n");
        let none = command("drover-no-such-program", Kind::Plain);
        assert_eq!(none.get_program(), "drover-no-such-program");
        assert_eq!(find_program("..", &[]), None, "a folder is no program");
    }

    #[test]
    fn what_the_maker_sets_is_there() {
        let mut made = command("/bin/sh", Kind::Plain);
        made.args(["-c", "echo \"$SET:${CARGO_PKG_NAME-unset}\""]).env("SET", "yes");
        let output = made.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "yes:unset\n");
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some() || std::env::var_os("CARGO").is_none());
    }
}
