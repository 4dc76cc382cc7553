//! Keys of reading through VDDK.

use super::{Kind, Table, key, must};

pub(crate) static VDDK: Table = Table {
    keys: &[
        key(
            "libdir",
            Kind::Path,
            "",
            "Folder with lib64/libvixDiskLib.so.N; absent: the variable DROVER_VDDK_LIBDIR.",
        ),
        key("plugin", Kind::Path, "", "nbdkit's vddk plugin as a file; absent: the installed one."),
        key("transports", Kind::Text, "nbdssl:nbd", "Transport modes, the best first, with : between them."),
        key(
            "compression",
            Kind::Choice(&["none", "zlib", "fastlz", "skipz"]),
            "none",
            "Compression on the way from the host.",
        ),
        key(
            "reuse_session",
            Kind::Choice(&["never", "hidden", "visible"]),
            "never",
            "Whether disks are opened in drover's own session, whose cookie is then in nbdkit's arguments. never: each logs in. \
             hidden: if other users cannot see arguments (/proc with hidepid), else an error. visible: also if they can.",
        ),
        key("nfc_port", Kind::Number(1, 65535), "", "Port of the hosts' NFC server; absent: 902."),
        key(
            "aio",
            Kind::WordOr("auto", &AIO),
            "auto",
            "Buffers of a disk's NFC session. auto: 16 x 4 for cold copies of 10 or more disks of one host, else VDDK's own. \
             Not for warm migrations.",
        ),
        key("log_level", Kind::Number(0, 4), "0", "Detail of the library's log, 0 (errors) to 4."),
        key(
            "nfc_memory",
            Kind::Size(1 << 20, 4 << 30),
            "48MiB",
            "NFC memory of an ESXi host that is asked directly, 1MiB to 4GiB, as its hostd is configured.",
        ),
        key(
            "timeout",
            Kind::Duration,
            "60s",
            "How long a read may show no sign of life before its connection is made anew.",
        ),
    ],
    rules: &[],
};

pub(crate) static AIO: Table = Table {
    keys: &[
        must("buf_size_in_64kb", Kind::Number(1, 64), "Size of a buffer in units of 64 KiB."),
        must("buf_count", Kind::Number(1, 64), "Number of buffers."),
    ],
    rules: &[],
};
