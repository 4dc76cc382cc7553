//! Unix sockets that peers may have an agent connect to: by name, in a folder, or below it, and never past a symbolic link.
//!
//! What the operator wrote is trusted, and its folder may be a symbolic link. What a peer writes is a path that begins with
//! that very text; whatever comes after it is opened below the folder, without symbolic links.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// Parts of a path; more are nobody's.
const PARTS_MAX: usize = 32;

/// Sockets that may be connected to: `/FOLDER/NAME`, `/FOLDER/*` (those in the folder), `/FOLDER/**` (also in folders below).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketRule {
    folder: Vec<String>,
    which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Named(String),
    InFolder,
    Below,
}

impl SocketRule {
    /// Reads what an operator wrote after `unix:`; nothing if it is no such rule.
    pub(crate) fn read(text: &str) -> Option<SocketRule> {
        let mut folder = parts(text)?;
        let last = folder.pop()?;
        let which = match last.as_str() {
            "*" => Which::InFolder,
            "**" => Which::Below,
            _ => Which::Named(last),
        };
        let is_literal = |part: &String| !part.contains('*');
        let is_named = !matches!(&which, Which::Named(name) if !is_literal(name));
        (is_named && folder.iter().all(is_literal)).then_some(SocketRule { folder, which })
    }

    /// What of a path lies below the folder, if the rule allows it.
    fn rest<'a>(&self, path: &'a [String]) -> Option<&'a [String]> {
        let rest = path.strip_prefix(&self.folder[..])?;
        let fits = match (&self.which, rest) {
            (_, []) => false,
            (Which::Named(name), [one]) => name == one,
            (Which::InFolder, [_]) => true,
            (Which::Named(_) | Which::InFolder, _) => false,
            (Which::Below, _) => true,
        };
        fits.then_some(rest)
    }

    fn folder(&self) -> String {
        format!("/{}", self.folder.join("/"))
    }
}

impl fmt::Display for SocketRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = match &self.which {
            Which::Named(name) => name,
            Which::InFolder => "*",
            Which::Below => "**",
        };
        write!(f, "unix:{}/{last}", self.folder().trim_end_matches('/'))
    }
}

/// The parts of an absolute path that says what it means: no `.`, no `..`, nothing empty, nothing that drives a terminal.
pub(crate) fn parts(path: &str) -> Option<Vec<String>> {
    let rest = path.strip_prefix('/')?;
    let is_plain = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains(char::is_control);
    let parts: Vec<&str> = rest.split('/').collect();
    (parts.len() <= PARTS_MAX && parts.iter().all(is_plain))
        .then(|| parts.into_iter().map(str::to_string).collect())
}

/// Why a socket was not connected to.
#[derive(Debug)]
pub(crate) enum NoSocket {
    /// No rule allows the path.
    Denied,
    /// A part of it below what is allowed is a symbolic link, or it is no socket.
    Escapes,
    /// The kernel says no.
    Failed(io::Error),
}

/// Connects to the socket of that path, if one of the rules allows it.
pub(crate) fn dial(rules: &[&SocketRule], path: &[String], within: Duration) -> Result<OwnedFd, NoSocket> {
    let found = rules.iter().find_map(|rule| Some((rule, rule.rest(path)?)));
    let (rule, rest) = found.ok_or(NoSocket::Denied)?;
    let place = open(&rule.folder(), &rest.join("/"))?;
    connect_to(&place, within).map_err(NoSocket::Failed)
}

/// The socket itself, without a connection to it. Between this and connecting nobody can put another in its place.
fn open(folder: &str, rest: &str) -> Result<File, NoSocket> {
    let failed = |error: Errno| NoSocket::Failed(error.into());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = match openat2(&folder, rest, flags | OFlags::NOFOLLOW, Mode::empty(), inside) {
        Ok(place) => place,
        Err(Errno::LOOP | Errno::XDEV) => return Err(NoSocket::Escapes),
        Err(error) => return Err(failed(error)),
    };
    let kind = FileType::from_raw_mode(fstat(&place).map_err(failed)?.st_mode);
    if kind == FileType::Socket { Ok(place.into()) } else { Err(NoSocket::Escapes) }
}

fn connect_to(place: &File, within: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(Path::new("/proc/self/fd").join(place.as_raw_fd().to_string()))?;
    drover_tcp::connect_unix(&address, within)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    fn allows(rule: &str, path: &str) -> bool {
        let rule = SocketRule::read(rule).unwrap();
        parts(path).is_some_and(|path| rule.rest(&path).is_some())
    }

    #[test]
    fn names_folders_and_what_lies_below() {
        assert!(allows("/run/vm/a.sock", "/run/vm/a.sock") && !allows("/run/vm/a.sock", "/run/vm/b.sock"));
        assert!(allows("/run/vm/*", "/run/vm/b.sock") && !allows("/run/vm/*", "/run/vm/x/b.sock"));
        assert!(allows("/run/vm/**", "/run/vm/x/y/b.sock") && allows("/run/vm/**", "/run/vm/b.sock"));
        for outside in
            ["/run/vm", "/run/vmx/a", "/run/a", "/run/vm/../a", "/run/vm/./a", "/run/vm//a", "run/vm/a", "/"]
        {
            assert!(!allows("/run/vm/**", outside), "{outside}");
        }
    }

    #[test]
    fn rules_that_say_something_else_are_none() {
        for bad in ["", "run/vm/*", "/run/../*", "/run/*/a", "/run/v*", "/run/vm/", "/run/\n/a", "/"] {
            assert_eq!(SocketRule::read(bad), None, "{bad:?}");
        }
        assert_eq!(SocketRule::read("/run/vm/*").unwrap().to_string(), "unix:/run/vm/*");
        assert_eq!(SocketRule::read("/a").unwrap().to_string(), "unix:/a");
    }

    #[test]
    fn symbolic_links_and_other_files_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        for one in [&inside, &outside] {
            std::fs::create_dir(one).unwrap();
        }
        let _listening = ["in/a", "out/b"].map(|name| UnixListener::bind(folder.path().join(name)).unwrap());
        symlink(outside.join("b"), inside.join("link")).unwrap();
        symlink(&outside, inside.join("folder")).unwrap();
        std::fs::write(inside.join("file"), "").unwrap();
        let rule = SocketRule::read(&format!("{}/**", inside.display())).unwrap();
        let dial = |name: &str| {
            let path = parts(inside.join(name).to_str().unwrap()).unwrap();
            super::dial(&[&rule], &path, WITHIN)
        };
        assert!(dial("a").is_ok());
        for bad in ["link", "folder/b", "file"] {
            assert!(matches!(dial(bad), Err(NoSocket::Escapes)), "{bad}");
        }
        assert!(
            matches!(dial("none"), Err(NoSocket::Failed(error)) if error.kind() == io::ErrorKind::NotFound)
        );
    }
}
