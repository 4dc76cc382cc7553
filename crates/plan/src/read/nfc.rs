//! How NFC is used.

use std::time::Duration;

use super::{Fields, Reader};
use crate::keys;
use crate::model::{Compression, Nfc};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

impl Reader {
    pub(super) fn nfc(&mut self, data: &Fields<'_>) -> Nfc {
        let fields = self.map(data, "nfc", &keys::NFC);
        Nfc {
            encrypted: self.flag(&fields, "encrypted").unwrap_or(true),
            compression: match self.choice(&fields, "compression") {
                Some("none") => Some(Compression::None),
                Some("skipz") => Some(Compression::Skipz),
                Some("fastlz") => Some(Compression::Fastlz),
                Some("zlib") => Some(Compression::Zlib),
                _ => None,
            },
            memory: self.size(&fields, "memory"),
            timeout: self.duration(&fields, "timeout").unwrap_or(TIMEOUT_DEFAULT).max(Duration::from_secs(1)),
        }
    }
}
