//! How VDDK is used.

use std::time::Duration;

use super::{Fields, Reader};
use crate::keys;
use crate::model::{Aio, Compression, Mode, Plan, ReuseSession, Vddk};
use crate::node::Value;
use crate::problem::Problem;

/// Modes that VDDK knows; `file` is for local disks.
const TRANSPORTS: &[&str] = &["san", "hotadd", "nbdssl", "nbd"];
const TRANSPORTS_DEFAULT: &str = "nbdssl:nbd";
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Why a warm plan may not set AIO buffers.
pub(crate) const AIO_AND_WARM: &str = "AIO buffers speed up cold copies of many disks and must be off for warm migrations, \
                                       where they slow passes down or make them fail";

/// What a plan accepts that reuses the session on any machine.
const COOKIE_IS_VISIBLE: &str = "while disks are read, the session's cookie is in nbdkit's arguments, where every user of \
                                 this machine can read it and act in drover's name";

impl Reader {
    pub(super) fn vddk(&mut self, data: &Fields<'_>) -> Vddk {
        let fields = self.map(data, "vddk", &keys::VDDK);
        Vddk {
            libdir: self.text(&fields, "libdir").map(Into::into),
            plugin: self.text(&fields, "plugin").map(Into::into),
            transports: self.transports(&fields),
            compression: match self.choice(&fields, "compression") {
                Some("zlib") => Compression::Zlib,
                Some("fastlz") => Compression::Fastlz,
                Some("skipz") => Compression::Skipz,
                _ => Compression::None,
            },
            reuse_session: self.reuse_session(&fields),
            nfc_port: self.number(&fields, "nfc_port").map(|port| port as u16),
            aio: self.aio(&fields),
            aio_at: fields.find("aio").map_or(fields.at, |entry| entry.at),
            log_level: self.number(&fields, "log_level").unwrap_or(0) as u8,
            nfc_memory: self.size(&fields, "nfc_memory"),
            timeout: self.duration(&fields, "timeout").unwrap_or(TIMEOUT_DEFAULT).max(Duration::from_secs(1)),
        }
    }

    fn reuse_session(&mut self, fields: &Fields<'_>) -> ReuseSession {
        match self.choice(fields, "reuse_session") {
            Some("hidden") => ReuseSession::Hidden,
            Some("visible") => {
                let at = fields.find("reuse_session").map_or(fields.at, |entry| entry.at);
                let problem = Problem::warning(fields.path_of("reuse_session"), COOKIE_IS_VISIBLE).at(at);
                self.problems.push(
                    problem.advise("write `never`; or `hidden`, with /proc mounted with hidepid=invisible"),
                );
                ReuseSession::Visible
            }
            _ => ReuseSession::Never,
        }
    }

    fn transports(&mut self, fields: &Fields<'_>) -> String {
        let text = self.text(fields, "transports").unwrap_or_else(|| TRANSPORTS_DEFAULT.to_string());
        if let Some(entry) = fields.find("transports")
            && let Some(wrong) = text.split(':').find(|mode| !TRANSPORTS.contains(mode))
        {
            let known = TRANSPORTS.join(", ");
            self.wrong(fields, entry, &format!("names '{wrong}', which is not one of: {known}"));
        }
        text
    }

    fn aio(&mut self, vddk: &Fields<'_>) -> Option<Aio> {
        let entry = vddk.find("aio")?;
        match &entry.node.value {
            Value::Scalar { text, .. } if text == "auto" => None,
            Value::Map(_) => {
                let fields = self.map(vddk, "aio", &keys::AIO);
                let number = |reader: &mut Reader, name| reader.number(&fields, name).unwrap_or(1) as u32;
                Some(Aio {
                    buf_size_in_64kb: number(self, "buf_size_in_64kb"),
                    buf_count: number(self, "buf_count"),
                })
            }
            _ => {
                let text = "is neither auto nor {buf_size_in_64kb: N, buf_count: N}";
                self.wrong(vddk, entry, text);
                None
            }
        }
    }

    /// AIO buffers that were set by hand stop a plan that moves a VM warm.
    pub(super) fn check_aio(&mut self, plan: &Plan) {
        let modes = plan.vms.iter().map(|vm| vm.overrides.mode.unwrap_or(plan.mode));
        let Some(vddk) = plan.source.vsphere().map(|source| &source.data.vddk) else { return };
        if vddk.aio.is_some() && modes.into_iter().any(|mode| mode == Mode::Warm) {
            let problem = Problem::error("source.data.vddk.aio", AIO_AND_WARM).at(vddk.aio_at);
            self.problems.push(problem.advise("leave `aio` out, or write `aio: auto`"));
        }
    }
}
