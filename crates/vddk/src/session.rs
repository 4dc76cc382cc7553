//! Disks opened in a session of the API that is there already, and who could take that session over.
//!
//! nbdkit's plugin takes the session's cookie as an argument and in no other way (`cookie=` in 1.42: unlike the password
//! it may come from no file and no descriptor, and as the plugin keeps a pointer into its arguments, they cannot be wiped
//! once it runs). Linux shows arguments of all processes to all users of a machine, except where /proc is mounted with
//! `hidepid`.

use std::fmt;
use std::io;
use std::sync::Arc;

use drover_types::Secret;

/// Gives the cookie of a session that is logged in; asked whenever nbdkit is started.
#[derive(Clone)]
pub struct ApiSession(Arc<dyn Fn() -> io::Result<Secret> + Send + Sync>);

impl ApiSession {
    /// A session whose cookie `cookie` gives: the value of `vmware_soap_session`, without name and quotes.
    pub fn new(cookie: impl Fn() -> io::Result<Secret> + Send + Sync + 'static) -> ApiSession {
        ApiSession(Arc::new(cookie))
    }

    /// The cookie, fit for an argument.
    pub(crate) fn cookie(&self) -> io::Result<Secret> {
        let cookie = (self.0)()?;
        let is_plain = |c: char| c.is_ascii_graphic();
        if cookie.reveal().is_empty() || !cookie.reveal().chars().all(is_plain) {
            return Err(io::Error::other("the cookie of the session is no plain text"));
        }
        Ok(cookie)
    }
}

impl fmt::Debug for ApiSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiSession")
    }
}

/// Whether other users of this machine cannot see the arguments of this user's processes. Root can, and so can the
/// group that the mount of /proc names, if it names one.
///
/// # Errors
/// If the mounts cannot be read.
pub fn arguments_are_hidden() -> io::Result<bool> {
    std::fs::read_to_string("/proc/self/mountinfo").map(|text| hides_processes(&text))
}

/// Whether the /proc that these mounts show hides processes of other users.
fn hides_processes(mountinfo: &str) -> bool {
    // ID PARENT DEVICE ROOT PLACE OPTIONS [MORE...] - KIND SOURCE OPTIONS
    let proc_options = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let (place, kind) = (mount.split(' ').nth(4)?, kind.split(' ').collect::<Vec<_>>());
        (place == "/proc" && *kind.first()? == "proc").then(|| kind.last().map(ToString::to_string))?
    };
    // The last one mounted at a place is the one that is seen.
    let options = mountinfo.lines().filter_map(proc_options).next_back().unwrap_or_default();
    let value = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    matches!(value, Some("1" | "2" | "4" | "noaccess" | "invisible" | "ptraceable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proc_that_hides_processes_counts_and_the_last_one_mounted() {
        let root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw,hidepid=2\n";
        let mount = |options: &str| format!("22 1 0:21 / /proc rw,nosuid shared:12 - proc proc {options}\n");
        for hidden in ["rw,hidepid=1", "rw,gid=4,hidepid=invisible", "hidepid=4", "rw,hidepid=noaccess"] {
            assert!(hides_processes(&(root.to_string() + &mount(hidden))), "{hidden}");
        }
        for open in ["rw", "rw,hidepid=0", "rw,hidepid=off"] {
            assert!(!hides_processes(&(root.to_string() + &mount(open))), "{open}");
        }
        assert!(hides_processes(&(mount("rw") + &mount("rw,hidepid=2"))));
        assert!(!hides_processes(&(mount("rw,hidepid=2") + &mount("rw"))));
        assert!(!hides_processes("22 1 0:21 / /other/proc rw - proc proc rw,hidepid=2\nrubbish\n"));
        assert!(!hides_processes(root));
    }

    #[test]
    fn a_cookie_that_no_argument_can_hold_is_refused() {
        let of = |text: &'static str| ApiSession::new(move || Ok(Secret::new(text)));
        assert_eq!(of("52a01262-bf93").cookie().unwrap().reveal(), "52a01262-bf93");
        for bad in ["", "a b", "a\nb", "a\0b"] {
            assert!(of(bad).cookie().is_err(), "{bad:?}");
        }
        assert!(!format!("{:?}", of("hunter2")).contains("hunter2"));
    }
}
