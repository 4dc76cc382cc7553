//! Keys of VMs that read disks of others.

use super::{Kind, Table, key, must};

pub(crate) static PROXY: Table = Table {
    keys: &[
        must("vm", Kind::Text, "The proxy: a VM of the source, by its name, FOLDER/NAME or id."),
        must("site", Kind::Site, "Name of the paired site whose agent runs inside it."),
        key(
            "hosts",
            Kind::TextList,
            "",
            "Hosts whose VMs it reads; absent: all whose disks its own host sees.",
        ),
    ],
    rules: &[],
};
