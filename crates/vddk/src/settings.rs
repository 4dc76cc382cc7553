//! What a disk needs to be opened, as nbdkit's arguments and VDDK's configuration file. Pure.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_types::Secret;

use crate::find::Installation;
use crate::session::ApiSession;

/// Descriptor on which nbdkit finds the password.
pub(crate) const PASSWORD_FD: u32 = 4;
/// Requests that nbdkit works on at once: VDDK queues them on its own buffers.
const THREADS: u32 = 16;
pub(crate) const SOCKET: &str = "nbd.sock";
pub(crate) const READY: &str = "pid";

/// Which disk, from where, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The disk in errors and progress: `web01/Hard disk 1`.
    pub name: String,
    /// What tells this disk and its state from another.
    pub identity: String,
    /// Its capacity in bytes; another one is an error.
    pub size: u64,
    /// Library and plugin.
    pub installation: Installation,
    /// vCenter or ESXi host: name or address.
    pub server: String,
    /// Port of its API, if it is not 443.
    pub port: Option<u16>,
    /// User.
    pub user: String,
    /// Password; goes by a file descriptor.
    pub password: Secret,
    /// A session of the API that the disk is opened in instead of a login of its own. Its cookie is in nbdkit's
    /// arguments, where other users of this machine may see it.
    pub session: Option<ApiSession>,
    /// SHA-1 thumbprint of the server's certificate.
    pub thumbprint: String,
    /// Id of the VM at that server.
    pub vm: String,
    /// Id of the snapshot that is read; without one the VM has to be off.
    pub snapshot: Option<String>,
    /// The disk's file in that snapshot: `[ds1] web01/web01.vmdk`.
    pub file: String,
    /// Transport modes, the best first.
    pub transports: String,
    /// `none`, `zlib`, `fastlz` or `skipz`.
    pub compression: &'static str,
    /// Port of the hosts' NFC server, if it is not 902.
    pub nfc_port: Option<u16>,
    /// Buffers of the NFC session; absent: VDDK's own.
    pub buffers: Option<Buffers>,
    /// Detail of VDDK's log, 0 to 4; above 0 nbdkit's own debug messages are kept too.
    pub log_level: u8,
    /// Largest request to VDDK.
    pub request_bytes: u64,
    /// How long a read, or opening, may show no sign of life.
    pub timeout: Duration,
    /// How long to wait for a host that has no room, before giving up.
    pub patience: Duration,
    /// File that keeps what nbdkit and VDDK say; it is overwritten.
    pub log: Option<PathBuf>,
}

/// Buffers of VDDK's asynchronous NFC session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Size of one in units of 64 KiB.
    pub size_in_64kb: u32,
    /// How many.
    pub count: u32,
}

impl Settings {
    /// nbdkit's arguments, for files in `folder`. The password is not among them.
    pub(crate) fn arguments(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            ["--foreground", "--readonly", "--exit-with-parent", "--newstyle", "--threads"]
                .map(Into::into)
                .into();
        arguments.push(THREADS.to_string().into());
        if self.log_level > 0 {
            // Not a line for each read.
            arguments.extend(["--verbose", "-D", "vddk.datapath=0"].map(Into::into));
        }
        arguments.extend(["--unix".into(), socket(folder).into(), "--pidfile".into(), ready(folder).into()]);
        arguments.extend(["--filter=blocksize".into(), self.installation.plugin.clone().into()]);
        arguments.push(joined("libdir=", &self.installation.libdir));
        arguments.push(joined("config=", &config(folder)));
        arguments.extend(self.parameters().into_iter().map(Into::into));
        arguments
    }

    fn parameters(&self) -> Vec<String> {
        let mut all = vec![
            format!("server={}", self.server),
            format!("user={}", self.user),
            format!("password=-{PASSWORD_FD}"),
            format!("thumbprint={}", self.thumbprint),
            format!("vm=moref={}", self.vm),
            format!("file={}", self.file),
            format!("transports={}", self.transports),
            format!("compression={}", self.compression),
            "minblock=512".to_string(),
            format!("maxdata={}", self.request_bytes),
        ];
        all.extend(self.snapshot.iter().map(|snapshot| format!("snapshot={snapshot}")));
        all.extend(self.port.map(|port| format!("port={port}")));
        all.extend(self.nfc_port.map(|port| format!("nfchostport={port}")));
        all
    }

    /// VDDK's configuration file, whose keys it reads at its start.
    pub(crate) fn config_text(&self, folder: &Path) -> String {
        let mut text = format!("tmpDirectory=\"{}\"\n", folder.display());
        // Writing to a String cannot fail.
        if let Some(buffers) = self.buffers {
            let _ = writeln!(text, "vixDiskLib.nfcAio.Session.BufSizeIn64KB={}", buffers.size_in_64kb);
            let _ = writeln!(text, "vixDiskLib.nfcAio.Session.BufCount={}", buffers.count);
        }
        if self.log_level > 0 {
            let _ = writeln!(text, "vixDiskLib.nfc.LogLevel={}", self.log_level);
            let _ = writeln!(text, "vixDiskLib.transport.LogLevel={}", self.log_level);
        }
        text
    }

    /// A text that no argument or line can hold, if there is one.
    pub(crate) fn misfit(&self) -> Option<&'static str> {
        let texts = [
            ("server", self.server.as_str()),
            ("user", &self.user),
            ("password", self.password.reveal()),
            ("VM id", &self.vm),
            ("snapshot id", self.snapshot.as_deref().unwrap_or_default()),
            ("file", &self.file),
        ];
        texts.into_iter().find(|(_, text)| text.contains(['\0', '\n', '\r'])).map(|(name, _)| name)
    }
}

pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}

/// Written by nbdkit when it listens.
pub(crate) fn ready(folder: &Path) -> PathBuf {
    folder.join(READY)
}

pub(crate) fn config(folder: &Path) -> PathBuf {
    folder.join("vddk.conf")
}

fn joined(key: &str, path: &Path) -> OsString {
    let mut text = OsString::from(key);
    text.push(path);
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings() -> Settings {
        Settings {
            name: "web01/Hard disk 1".into(),
            identity: "id".into(),
            size: 1 << 20,
            installation: Installation {
                libdir: "/opt/vddk".into(),
                library: "/opt/vddk/lib64/libvixDiskLib.so.8".into(),
                library_version: "8.0.2".into(),
                plugin: "/p/nbdkit-vddk-plugin.so".into(),
            },
            server: "vc.lab".into(),
            port: None,
            user: "root".into(),
            password: Secret::new("hunter2!"),
            session: None,
            thumbprint: "AA:BB".into(),
            vm: "vm-42".into(),
            snapshot: Some("snapshot-7".into()),
            file: "[ds1] web01/web01.vmdk".into(),
            transports: "nbdssl:nbd".into(),
            compression: "fastlz",
            nfc_port: Some(9902),
            buffers: Some(Buffers { size_in_64kb: 16, count: 4 }),
            log_level: 0,
            request_bytes: 2 << 20,
            timeout: Duration::from_secs(60),
            patience: Duration::ZERO,
            log: None,
        }
    }

    #[test]
    fn every_setting_has_its_parameter_and_the_password_has_none() {
        let arguments: Vec<String> = settings()
            .arguments(Path::new("/run/d"))
            .iter()
            .map(|it| it.to_string_lossy().into_owned())
            .collect();
        for wanted in [
            "libdir=/opt/vddk",
            "config=/run/d/vddk.conf",
            "vm=moref=vm-42",
            "snapshot=snapshot-7",
            "transports=nbdssl:nbd",
            "thumbprint=AA:BB",
            "compression=fastlz",
            "nfchostport=9902",
            "password=-4",
            "minblock=512",
            "maxdata=2097152",
            "file=[ds1] web01/web01.vmdk",
            "--exit-with-parent",
            "--readonly",
        ] {
            assert!(arguments.iter().any(|it| it == wanted), "{wanted} is not in {arguments:?}");
        }
        assert!(!arguments.iter().any(|it| it.contains("hunter2") || it == "--verbose"));
    }

    #[test]
    fn the_configuration_holds_buffers_and_log_level_only_where_they_are_asked_for() {
        let folder = Path::new("/run/d");
        let text = settings().config_text(folder);
        assert!(
            text.contains("Session.BufSizeIn64KB=16\n") && text.contains("Session.BufCount=4\n"),
            "{text}"
        );
        let plain = Settings { buffers: None, ..settings() }.config_text(folder);
        assert_eq!(plain, "tmpDirectory=\"/run/d\"\n");
        let loud = Settings { buffers: None, log_level: 4, ..settings() };
        assert!(loud.config_text(folder).contains("vixDiskLib.nfc.LogLevel=4\n"));
        assert!(loud.arguments(folder).iter().any(|it| it == "--verbose"));
    }

    #[test]
    fn line_ends_are_refused_wherever_they_would_make_another_line() {
        assert_eq!(settings().misfit(), None);
        assert_eq!(Settings { password: Secret::new("a\nb"), ..settings() }.misfit(), Some("password"));
    }
}
