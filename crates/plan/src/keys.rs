//! All keys of a plan file: one table that the reader checks by and the schema is made from.

use drover_types::WINDOWS_MAX;
use serde_json::{Map, Value, json};

use crate::model::AT_ONCE_MAX;

mod hooks;
mod nfc;
mod proxy;
mod structural;
mod target;
mod vddk;

#[cfg(test)]
pub(crate) use hooks::{CHECK, HOOK};
pub(crate) use hooks::{CHECKS, HOOKS, WAVE_HOOKS};
pub(crate) use nfc::NFC;
pub(crate) use proxy::PROXY;
pub use structural::structural;
#[cfg(test)]
pub(crate) use target::LIBVIRT_HOST;
pub(crate) use target::{KUBEVIRT, LIBVIRT, QCOW2, TARGET, TARGETS, UEFI};
pub(crate) use vddk::{AIO, VDDK};

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    /// Lower-case letters, digits and `-`.
    PlanName,
    /// What a peer is called: letters, digits, `-`, `_` and `.`.
    Site,
    Path,
    /// `64MiB`: from so many bytes to so many.
    Size(u64, u64),
    /// 20 or 32 bytes in hexadecimal, with or without colons.
    Thumbprint,
    /// `90s`, `5m`, `2h`.
    Duration,
    /// A duration from 1 s to 30 days, or `auto`.
    Interval,
    /// `manual`, `auto`, or a moment.
    Cutover,
    Number(u64, u64),
    /// Any whole number of 32 bits.
    Priority,
    /// `Sat 22:00-06:00 Europe/Berlin`, or a list of such.
    Windows,
    /// `2026-12-01T22:00:00Z`.
    Moment,
    Flag,
    Choice(&'static [&'static str]),
    TextList,
    /// `none`, `full`, `sampled`, or `{sampled: N}`.
    Verify,
    One(&'static Table),
    /// A word, or a map.
    WordOr(&'static str, &'static Table),
    /// A map whose `type` says which table holds.
    Typed(&'static [(&'static str, &'static Table)]),
    Many(&'static Table),
    /// Keys of the user's own, each with a map.
    Named(&'static Table),
    /// Keys of the user's own, each with a text; the text says what the texts mean.
    Texts(&'static str),
}

#[derive(Debug)]
pub(crate) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    pub default: &'static str,
    pub doc: &'static str,
}

/// Which keys of a table go together. The reader has its own words for each; the schema gets them from here.
#[derive(Debug)]
pub(crate) enum Rule {
    /// One of these at least.
    Needs(&'static [&'static str]),
    /// Not both.
    NotBoth(&'static str, &'static str),
    /// The first together with one of the others, or none of them at all.
    Together(&'static str, &'static [&'static str]),
}

#[derive(Debug)]
pub(crate) struct Table {
    pub keys: &'static [Key],
    pub rules: &'static [Rule],
}

const PASSWORD: &[&str] = &["password_file", "password_env"];
const PASSWORD_ONCE: Rule = Rule::NotBoth("password_file", "password_env");
const TRUST_ONCE: Rule = Rule::NotBoth("ca_file", "thumbprint");
/// Keys of a selection that choose.
pub const SELECTORS: &[&str] = &["name", "glob", "folder", "tag", "id", "host", "cluster", "datastore"];
const SELECTS: Rule = Rule::Needs(SELECTORS);

const fn key(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { name, kind, required: false, default, doc }
}

const fn must(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, required: true, default: "", doc }
}

impl Table {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

pub(crate) static PLAN: Table = Table {
    keys: &[
        must("version", Kind::Number(1, 1), "Version of the file's format."),
        must("name", Kind::PlanName, "Name of the plan: lower-case letters, digits and -, at most 64."),
        must("source", Kind::Typed(SOURCES), "Where the VMs come from: a provider or an appliance."),
        must("target", Kind::Typed(TARGETS), "Where they go: a folder, a libvirt daemon, or KubeVirt."),
        key("mode", Kind::Choice(MODE), "cold", MODE_DOC),
        key("warm", Kind::One(&WARM), "", "How VMs move whose mode is warm."),
        must(
            "vms",
            Kind::Many(&SELECTION),
            "Which VMs, and what is different for them. For a VM that several entries select, the later ones win.",
        ),
        key("exclude", Kind::Many(&SELECTOR), "", "Which of those stay behind all the same."),
        key(
            "networks",
            Kind::Texts(NETWORK),
            "",
            "Source network (or `DATACENTRE/NETWORK`) to target network; \"*\" is every other one.",
        ),
        key(
            "storage",
            Kind::Texts(STORAGE),
            "",
            "Source datastore (or `DATACENTRE/DATASTORE`) to folder; \"*\" is every other one.",
        ),
        key("power_off", Kind::Choice(POWER_OFF), "refuse", POWER_OFF_DOC),
        key("shutdown_timeout", Kind::Duration, "5m", "How long a guest may take to shut down."),
        key("start", Kind::Flag, "false", "Whether moved VMs are started."),
        key("convert", Kind::Choice(CONVERT), "auto", CONVERT_DOC),
        key("first_boot", Kind::One(&FIRST_BOOT), "", FIRST_BOOT_DOC),
        key("keep_addresses", Kind::Flag, "false", KEEP_ADDRESSES_DOC),
        key("verify", Kind::Verify, "full", VERIFY_DOC),
        key(
            "hooks",
            Kind::One(&HOOKS),
            "",
            "What is called on the way of each VM; see docs/how-to/hooks.md.",
        ),
        key("checks", Kind::One(&CHECKS), "", "What decides whether a VM goes on; see docs/how-to/hooks.md."),
        key("limits", Kind::One(&LIMITS), "", "Budgets that all VMs of the plan share."),
        key(
            "waves",
            Kind::Many(&WAVE),
            "",
            "Parts of the plan that move one after the other, each in its window; with them, each VM is in one.",
        ),
        key(
            "freezes",
            Kind::Windows,
            "",
            "Dates in which no VM of a wave begins or moves over: 2026-12-20 - 2027-01-03 Europe/Berlin, or a list of such.",
        ),
    ],
    rules: &[],
};

const MODE: &[&str] = &["cold", "warm"];
const MODE_DOC: &str = "cold: switched off, copied, started. warm: copied while it runs, in passes, and switched off for the last one only.";
const NETWORK: &str = "name of a bridge, `user` for QEMU's own network, `none` to leave the NIC out; with libvirt also network:NAME, \
                       ovs:BRIDGE, direct:DEVICE, and with ,vlan=TAG";
const STORAGE: &str = "folder (if relative, below the target's), with libvirt the name of a pool, or `default` for the target's own";
const OF_VM: &str = "as of the plan's own";
const VOLUME: &str =
    "name of the volume, with ,overwrite behind it if what it holds may go; see docs/how-to/libvirt-luns.md";
const POWER_OFF: &[&str] = &["refuse", "shutdown", "force"];
const POWER_OFF_DOC: &str = "What may be done to a running VM. refuse: nothing, it is an error. shutdown: a clean shutdown by the \
                             guest tools. force: the same, and if it fails it is switched off hard.";
const CONVERT: &[&str] = &["auto", "never", "always"];
const CONVERT_DOC: &str = "Whether guests are converted with virt-v2v-in-place (virtio drivers, boot loader). auto: where it is needed.";
const FIRST_BOOT_DOC: &str = "What is done in the guest when it boots at the target for the first time; it is converted for that (virt-v2v 2.6 or later).";
const KEEP_ADDRESSES_DOC: &str = "Windows keeps its fixed addresses; see docs/how-to/windows.md.";
const ADDRESS: &str =
    "ADDRESS/PREFIX, then the gateway, then name servers, with spaces between; once or several times";
const VERIFY_DOC: &str = "How much of the target is read back and compared. sampled: 1,000 blocks of 64 KiB of each disk, or {sampled: N}.";
const FORMAT: &[&str] = &["raw", "qcow2"];
const BUS: &[&str] = &["virtio", "scsi", "sata", "keep"];
const BUS_DOC: &str = "Bus that disks get at the target. keep: as at the source.";
const NIC_MODEL: &[&str] = &["auto", "virtio", "e1000e", "keep"];
const NIC_MODEL_DOC: &str = "Model of NICs at the target: see docs/how-to/windows.md.";

pub(crate) const SOURCES: &[(&str, &Table)] = &[("vsphere", &SOURCE), ("ova", &OVA)];

pub(crate) static OVA: Table = Table {
    keys: &[
        must("type", Kind::Choice(&["ova"]), "Kind of source: an appliance."),
        must("path", Kind::Path, "The .ova file, the .ovf file, or the folder with one."),
        key(
            "manifest",
            Kind::Choice(&["check", "ignore"]),
            "check",
            "check: every file is compared with the appliance's own checksums (.mf), if it has them. ignore: it is not.",
        ),
    ],
    rules: &[],
};

pub(crate) static SOURCE: Table = Table {
    keys: &[
        must("type", Kind::Choice(&["vsphere"]), "Kind of provider."),
        must("endpoint", Kind::Text, "vCenter or ESXi host: host, host:port or an https URL."),
        must("user", Kind::Text, "User; for vCenter with its domain."),
        key("password_file", Kind::Path, "", "File whose first line is the password."),
        key("password_env", Kind::Text, "", "Environment variable with the password."),
        key("ca_file", Kind::Path, "", "PEM file of the certificate authorities to trust."),
        key("thumbprint", Kind::Thumbprint, "", "SHA-1 or SHA-256 thumbprint of the certificate."),
        key("insecure", Kind::Flag, "false", "Do not verify the certificate."),
        key("data", Kind::One(&DATA), "", "Which way the bytes of the disks take."),
    ],
    rules: &[Rule::Needs(PASSWORD), PASSWORD_ONCE, TRUST_ONCE],
};

pub(crate) static DATA: Table = Table {
    keys: &[
        key(
            "from",
            Kind::Choice(&["provider", "hosts"]),
            "provider",
            "provider: through the endpoint. hosts: straight from each VM's host.",
        ),
        key("port", Kind::Number(1, 65535), "443", "Port of the hosts' HTTPS server."),
        key(
            "network",
            Kind::Text,
            "auto",
            "auto: the vmknic tagged vSphereBackupNFC, else the management one; or a vmknic's name (vmk2).",
        ),
        key("user", Kind::Text, "", "User on the hosts; absent: the vCenter gives tickets."),
        key("password_file", Kind::Path, "", "File with that user's password."),
        key("password_env", Kind::Text, "", "Environment variable with that user's password."),
        key("hosts", Kind::Named(&HOST), "", "What is different for single hosts, by name."),
        key(
            "path",
            Kind::Choice(&["auto", "hotadd", "nfc", "https", "vddk"]),
            "auto",
            "hotadd: attached to proxy VMs that read them. nfc: from the hosts' NFC servers (TCP 902). https: ranges of the \
             datastore's files. vddk: through VMware's disk library. auto: the first of hotadd, nfc and https that gives a disk.",
        ),
        key(
            "proxies",
            Kind::Many(&PROXY),
            "",
            "VMs to which disks are attached to be read; see docs/how-to/hot-add.md.",
        ),
        key("nfc", Kind::One(&NFC), "", "How NFC is used; see docs/how-to/nfc.md."),
        key("vddk", Kind::One(&VDDK), "", "How VDDK is used; see docs/how-to/vddk.md."),
    ],
    rules: &[Rule::Together("user", PASSWORD), PASSWORD_ONCE],
};

pub(crate) static HOST: Table = Table {
    keys: &[
        key("address", Kind::Text, "", "Address to connect to."),
        key("port", Kind::Number(1, 65535), "", "Port of its HTTPS server."),
        key("user", Kind::Text, "", "User on this host."),
        key("password_file", Kind::Path, "", "File with the password."),
        key("password_env", Kind::Text, "", "Environment variable with the password."),
        key("ca_file", Kind::Path, "", "PEM file of the certificate authorities to trust."),
        key(
            "thumbprint",
            Kind::Thumbprint,
            "",
            "Thumbprint of its certificate; absent: the one that the vCenter knows.",
        ),
        key("insecure", Kind::Flag, "false", "Do not verify its certificate."),
    ],
    rules: &[Rule::Together("user", PASSWORD), PASSWORD_ONCE, TRUST_ONCE],
};

pub(crate) static SELECTOR: Table = Table {
    keys: &[
        key("name", Kind::Text, "", "Exact name."),
        key("glob", Kind::Text, "", "Pattern of the name: * and ?."),
        key("folder", Kind::Text, "", "Folder, and all below it (prod/web)."),
        key("tag", Kind::Text, "", "Tag as category:name; may be a pattern."),
        key("id", Kind::Text, "", "The provider's id (vm-42)."),
        key("host", Kind::Text, "", "Name of the source host."),
        key("cluster", Kind::Text, "", "Name of the cluster of the source host."),
        key("datastore", Kind::Text, "", "Name of a datastore in which one of its disks lies."),
    ],
    rules: &[SELECTS],
};

pub(crate) static SELECTION: Table = Table {
    keys: &[
        key("name", Kind::Text, "", "Exact name. All keys that select must match."),
        key("glob", Kind::Text, "", "Pattern of the name: * and ?."),
        key("folder", Kind::Text, "", "Folder, and all below it (prod/web)."),
        key("tag", Kind::Text, "", "Tag as category:name; may be a pattern."),
        key("id", Kind::Text, "", "The provider's id (vm-42)."),
        key("host", Kind::Text, "", "Name of the source host."),
        key("cluster", Kind::Text, "", "Name of the cluster of the source host."),
        key("datastore", Kind::Text, "", "Name of a datastore in which one of its disks lies."),
        key(
            "target_name",
            Kind::Text,
            "",
            "Name at the target, of letters, digits, - _ and .; for one VM only. Absent: the VM's own, with - for all else.",
        ),
        key(
            "target_folder",
            Kind::Path,
            "",
            "Folder that the VM's own folder is made in; if relative, below the target's.",
        ),
        key("uri", Kind::Text, "", "Address of the libvirt daemon of this machine that gets it."),
        key("target_host", Kind::Text, "", "The host among `target.hosts` that gets it."),
        key("pool", Kind::Text, "", "Storage pool of its disks."),
        key("mode", Kind::Choice(MODE), "", MODE_DOC),
        key("warm", Kind::One(&WARM), "", "What is different if it moves warm."),
        key("format", Kind::Choice(FORMAT), "", "Format of its disk images."),
        key("disk_bus", Kind::Choice(BUS), "", BUS_DOC),
        key("nic_model", Kind::Choice(NIC_MODEL), "", NIC_MODEL_DOC),
        key("power_off", Kind::Choice(POWER_OFF), "", POWER_OFF_DOC),
        key("shutdown_timeout", Kind::Duration, "", "How long it may take to shut down."),
        key("verify", Kind::Verify, "", VERIFY_DOC),
        key("start", Kind::Flag, "", "Whether it is started."),
        key("autostart", Kind::Flag, "", "Whether libvirt starts it with its daemon."),
        key("convert", Kind::Choice(CONVERT), "", CONVERT_DOC),
        key(
            "first_boot",
            Kind::One(&FIRST_BOOT),
            "",
            "Work at its first boot in the place of the plan's, key by key.",
        ),
        key(
            "addresses",
            Kind::Texts(ADDRESS),
            "",
            "Fixed addresses of Windows, by MAC address of the card; see docs/how-to/windows.md.",
        ),
        key("keep_addresses", Kind::Flag, "", KEEP_ADDRESSES_DOC),
        key("exclude_disks", Kind::TextList, "", "Disks to leave behind, by label or path."),
        key("networks", Kind::Texts(OF_VM), "", "Networks, before the plan's own."),
        key("storage", Kind::Texts(OF_VM), "", "Datastores, before the plan's own."),
        key("volumes", Kind::Texts(VOLUME), "", "LUNs that its disks go to, by label or path of the disk."),
        key("priority", Kind::Priority, "0", "Greater goes first."),
        key("hooks", Kind::One(&HOOKS), "", "Hooks in the place of the plan's, moment by moment."),
        key("checks", Kind::One(&CHECKS), "", "Checks in the place of the plan's, key by key."),
        key("wave", Kind::PlanName, "", "Name of the wave that it moves in."),
        key(
            "deadline",
            Kind::Moment,
            "",
            "By when it is to have arrived: earlier ones go first among VMs of the same priority.",
        ),
        key(
            "group",
            Kind::PlanName,
            "",
            "Name of the VMs of its wave that it moves with, such as those of an application; see docs/how-to/waves.md.",
        ),
        key(
            "stage",
            Kind::Number(0, 1_000),
            "0",
            "Its turn in the group: after all VMs of lower stages have arrived.",
        ),
        key(
            "anti_affinity",
            Kind::PlanName,
            "",
            "Of VMs with the same word here one at a time is at work, such as of the two halves of a cluster.",
        ),
    ],
    rules: &[SELECTS],
};

pub(crate) static FIRST_BOOT: Table = Table {
    keys: &[
        key(
            "scripts",
            Kind::TextList,
            "",
            "Files of this machine that run once, in this order; those of Windows are batch files.",
        ),
        key(
            "guest_agent",
            Kind::Path,
            "",
            "Package of this machine (.deb or .rpm) that is installed in Linux guests before the scripts run.",
        ),
    ],
    rules: &[],
};

pub(crate) static WAVE: Table = Table {
    keys: &[
        must("name", Kind::PlanName, "Name of the wave: lower-case letters, digits and -, at most 64."),
        key(
            "vms",
            Kind::Many(&SELECTOR),
            "",
            "Which of the plan's VMs are in it, beside those that name it.",
        ),
        key("after", Kind::TextList, "", "Names of the waves that have to be over before it."),
        key(
            "window",
            Kind::Windows,
            "",
            "When a cold VM may begin and a warm one may move over: 22:00-06:00 (UTC), Sat 22:00-06:00 Europe/Berlin, or a list of such; see docs/how-to/waves.md. Absent: at any time.",
        ),
        key("from", Kind::Moment, "", "Not before this moment: 2026-12-01T22:00:00Z."),
        key(
            "until",
            Kind::Moment,
            "",
            "Before this moment; a VM that did not begin by then does not begin in this run.",
        ),
        key("if_failed", Kind::Choice(IF_FAILED), "wait", IF_FAILED_DOC),
        key(
            "hooks",
            Kind::One(&WAVE_HOOKS),
            "",
            "What is called before and after it; see docs/how-to/hooks.md.",
        ),
    ],
    rules: &[],
};

pub(crate) const IF_FAILED: &[&str] = &["wait", "go_on", "stop"];
const IF_FAILED_DOC: &str = "What becomes of the waves after it if one of its VMs fails or never begins. wait: they wait for \
                             `drover proceed`. go_on: they go on. stop: they do not begin in this run.";

/// Of the plan and of single VMs, which is why the defaults are in the words.
pub(crate) static WARM: Table = Table {
    keys: &[
        key(
            "interval",
            Kind::Interval,
            "",
            "Time from the beginning of a pass to that of the next, 1s to 720h; auto: as short as the rate of change needs. \
             Unless said: 60m.",
        ),
        key(
            "cutover",
            Kind::Cutover,
            "",
            "When the VM moves over. manual: when `drover cutover` says so. auto: as soon as the predicted downtime fits. Or a \
             moment: 2026-12-01T22:00:00Z. Unless said: manual.",
        ),
        key(
            "downtime_max",
            Kind::Duration,
            "",
            "Longest downtime that `cutover: auto` accepts. Unless said: 5m.",
        ),
        key(
            "quiesce",
            Kind::Flag,
            "",
            "Whether the guest is asked to quiesce its file systems before a pass. Unless said: false.",
        ),
        key(
            "audit",
            Kind::Choice(&["none", "sampled", "full"]),
            "",
            "How much of what the source calls unchanged is compared all the same. sampled: 1,000 blocks of each disk with every \
             pass. full: everything at the cutover, too. Unless said: sampled.",
        ),
    ],
    rules: &[],
};

pub(crate) static LIMITS: Table = Table {
    keys: &[
        key(
            "vms_per_host",
            Kind::Number(1, AT_ONCE_MAX as u64),
            "20",
            "VMs copied at once from one source host.",
        ),
        key(
            "disks",
            Kind::Number(1, AT_ONCE_MAX as u64),
            "200",
            "Disks copied at once in total; unless said, 8 where the target is another site.",
        ),
        key("cutovers", Kind::Number(1, 1000), "20", "Warm VMs that are down for their cutovers at once."),
        key("lanes_per_disk", Kind::Number(1, 64), "", "Connections per disk; absent: chosen."),
        key("depth", Kind::Number(1, 64), "", "Requests in flight per connection; absent: chosen."),
        key(
            "request",
            Kind::Size(64 << 10, 32 << 20),
            "",
            "Size of a read request, 64KiB to 32MiB and at most `memory`; absent: chosen.",
        ),
        key(
            "memory",
            Kind::Size(1 << 20, 1 << 40),
            "96MiB",
            "Buffers of all transfers together, 1MiB to 1TiB.",
        ),
        key("retries", Kind::Number(0, 10_000), "5", "Tries of a request after the first, at the least."),
        key(
            "retry_for",
            Kind::Duration,
            "10m",
            "How long a source or target may be away before its VMs fail.",
        ),
    ],
    rules: &[],
};

const MOMENT_PATTERN: &str =
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})";

/// The JSON Schema of a plan file.
pub fn schema() -> Value {
    let mut schema = object(&PLAN);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("drover plan");
    schema
}

fn object(table: &Table) -> Value {
    let properties: Map<String, Value> =
        table.keys.iter().map(|key| (key.name.to_string(), property(key))).collect();
    let required: Vec<&str> = table.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    if !table.rules.is_empty() {
        object["allOf"] = table.rules.iter().map(rule).collect();
    }
    object
}

fn rule(rule: &Rule) -> Value {
    let one_of = |names: &[&str]| -> Value { names.iter().map(|name| json!({"required": [name]})).collect() };
    match rule {
        Rule::Needs(names) => json!({"anyOf": one_of(names)}),
        Rule::NotBoth(one, other) => json!({"not": {"required": [one, other]}}),
        Rule::Together(first, others) => {
            let back: Map<String, Value> = others.iter().map(|it| (it.to_string(), json!([first]))).collect();
            json!({"dependentSchemas": {*first: {"anyOf": one_of(others)}}, "dependentRequired": back})
        }
    }
}

fn property(key: &Key) -> Value {
    let mut property = value(key.kind);
    property["description"] = json!(key.doc);
    if !key.default.is_empty() {
        property["default"] = match key.kind {
            Kind::Flag => json!(key.default == "true"),
            Kind::Number(..) | Kind::Priority => json!(key.default.parse::<i64>().unwrap_or_default()),
            _ => json!(key.default),
        };
    }
    property
}

/// Sizes and times as `drover_types::units` reads them.
const SIZE_PATTERN: &str = "^([0-9]+ *[bB]?|[0-9]+([.][0-9]*)? *[kKmMgGtT]([iI][bB])?)$";
const TIME_PATTERN: &str = "[0-9]+([.][0-9]*)? *([uUmM]?[sS]|[mM]([iI][nN])?|[hHdD])";

/// As `drover_types::Window` reads them, but for what is wrong with a date, a day or a zone.
fn window_pattern() -> String {
    let (day, time, date) =
        ("[FMSTWfmstw][A-Za-z]{2,8}", "[0-9]{1,2}:[0-9]{1,2}", "[0-9]{4}-[0-9]{2}-[0-9]{2}");
    let of_days = format!("({day}( *- *{day})? +)?{time} *- *({day} +)?{time}|{day}( *- *{day})?");
    let of_dates = format!("{date}( +{time})?( *- *({date}( +{time})?|{time}))?");
    format!("^ *({of_days}|{of_dates})( +[A-Za-z][A-Za-z0-9_+/-]*)? *$")
}

fn value(kind: Kind) -> Value {
    match kind {
        Kind::Text | Kind::Path => json!({"type": "string", "minLength": 1}),
        Kind::Site => json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}),
        Kind::PlanName => json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,63}$"}),
        Kind::Size(least, most) => json!({"anyOf": [
            {"type": "string", "pattern": SIZE_PATTERN}, {"type": "integer", "minimum": least, "maximum": most}]}),
        Kind::Thumbprint => {
            json!({"type": "string", "pattern": "^:*(([0-9A-Fa-f]:*){40}|([0-9A-Fa-f]:*){64})$"})
        }
        Kind::Duration => json!({"type": "string", "pattern": format!("^{TIME_PATTERN}$")}),
        Kind::Interval => json!({"type": "string", "pattern": format!("^(auto|{TIME_PATTERN})$")}),
        Kind::Cutover => json!({"type": "string", "pattern": format!("^(manual|auto|{MOMENT_PATTERN})$")}),
        Kind::Number(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Kind::Windows => {
            let window = json!({"type": "string", "pattern": window_pattern()});
            json!({"anyOf": [window, {"type": "array", "items": window, "minItems": 1, "maxItems": WINDOWS_MAX}]})
        }
        Kind::Moment => json!({"type": "string", "pattern": format!("^{MOMENT_PATTERN}$")}),
        Kind::Priority => json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Choice(words) => json!({"enum": words}),
        Kind::TextList => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Verify => json!({"anyOf": [{"enum": ["none", "sampled", "full"]}, {"type": "object",
            "properties": {"sampled": {"type": "integer", "minimum": 1}}, "required": ["sampled"],
            "additionalProperties": false}]}),
        Kind::One(table) => object(table),
        Kind::WordOr(word, table) => json!({"anyOf": [{"const": word}, object(table)]}),
        Kind::Typed(tables) => {
            json!({"type": "object", "anyOf": tables.iter().map(|(_, table)| object(table)).collect::<Vec<_>>()})
        }
        Kind::Many(table) => json!({"type": "array", "items": object(table), "minItems": 1}),
        Kind::Named(table) => json!({"type": "object", "additionalProperties": object(table)}),
        Kind::Texts(meaning) => {
            json!({"type": "object", "additionalProperties": {"type": "string", "description": meaning}})
        }
    }
}
