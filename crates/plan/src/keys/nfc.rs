//! Keys of reading by NFC.

use super::{Kind, Table, key};

pub(crate) static NFC: Table = Table {
    keys: &[
        key(
            "encrypted",
            Kind::Flag,
            "true",
            "Whether the data goes through TLS (NFCSSL). Without it everybody on the way can read the disks.",
        ),
        key(
            "compression",
            Kind::Choice(&["auto", "none", "skipz", "fastlz", "zlib"]),
            "auto",
            "Compression on the way from the host. auto: what is measured to be fastest.",
        ),
        key(
            "memory",
            Kind::Size(1 << 20, 4 << 30),
            "48MiB",
            "NFC memory of a host, 1MiB to 4GiB, as its hostd is configured; at most 48MiB behind a vCenter. All programs of this machine share it.",
        ),
        key("timeout", Kind::Duration, "60s", "How long a connection may be silent before it is made anew."),
    ],
    rules: &[],
};
