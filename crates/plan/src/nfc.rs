//! The NFC server of an ESXi host as a budget: what an open disk takes of it, and how many may be open.
//!
//! A host's NFC server (network file copy) has little memory and is shared with backups, whether drover's own client
//! reads from it or VDDK.
//! When it runs out, disks fail to open or to read, those of other programs too. None of these figures was held
//! against a real host; docs/how-to/vddk.md tells where each comes from.

use std::collections::BTreeMap;

use drover_types::inventory::About;
use drover_types::{Bytes, count};
use serde::{Deserialize, Serialize};

use crate::model::{Aio, Limits, Nfc, Vddk};
use crate::resolution::{PlannedVm, Resolution};

/// NFC memory of a host with its default settings: hostd's `nfcsvc` / `maxMemory`, 50,331,648 bytes.
pub const MEMORY_BYTES: u64 = 48 << 20;
/// Disks of a host that may be read at once through a vCenter, whose vpxa agents serve them.
pub const VPXA_DISKS_MAX: u32 = 50;
/// Disks of a host that may be read at once up to vSphere 6.5, with requests of [`OLD_REQUEST_BYTES`].
pub const OLD_DISKS_MAX: u32 = 20;
/// Requests up to vSphere 6.5, where the host's buffer is as large as the request; with 2 MiB half as many disks fit.
pub const OLD_REQUEST_BYTES: u64 = 1 << 20;
/// Largest request otherwise: the host cuts it into its own buffers.
pub const REQUEST_BYTES: u64 = 2 << 20;
/// The smallest buffers that drover's own client opens a disk with, where there is no room for larger ones.
pub const LEAST_BYTES: u64 = 64 << 10;
/// From so many disks of one host on, large buffers gain: 31 % with ten VMs of one host, nothing with one.
pub const LARGE_AIO_DISKS_MIN: u32 = 10;

/// First version that cuts requests into buffers of 64 KiB.
const SMALL_BUFFERS: Version = Version(6, 7, 0);
/// First version whose buffers can be set.
const AIO_BUFFERS: Version = Version(7, 0, 3);

/// A version of vSphere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Of `8.0.2` or `8.0.2.0`; parts that are missing or no number count as 0.
    pub fn of(text: &str) -> Version {
        let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Version(next(), next(), next())
    }
}

/// Who serves the disks of a host, and what there is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfcBudget {
    /// Whether a vCenter's agent serves them (vpxa), rather than the host's own daemon (hostd).
    pub through_vcenter: bool,
    /// Bytes of buffers of all open disks.
    pub bytes_max: u64,
    /// Open disks, where their number is limited.
    pub disks_max: Option<u32>,
    /// Whether buffers can be set.
    pub aio: bool,
    /// Largest request.
    pub request_bytes: u64,
}

impl NfcBudget {
    /// The budget of each host behind this endpoint.
    pub fn of(about: &About, vddk: &Vddk) -> NfcBudget {
        let version = Version::of(if about.version.is_empty() { &about.api_version } else { &about.version });
        let is_old = version < SMALL_BUFFERS;
        let through_vcenter = about.is_vcenter;
        NfcBudget {
            through_vcenter,
            bytes_max: vddk.nfc_memory.filter(|_| !through_vcenter).unwrap_or(MEMORY_BYTES),
            disks_max: match (is_old, through_vcenter) {
                (true, _) => Some(OLD_DISKS_MAX),
                (false, true) => Some(VPXA_DISKS_MAX),
                (false, false) => None,
            },
            aio: version >= AIO_BUFFERS,
            request_bytes: if is_old { OLD_REQUEST_BYTES } else { REQUEST_BYTES },
        }
    }

    /// As drover's own client keeps it, which knows only hosts whose buffers can be chosen.
    pub fn own(about: &About, nfc: &Nfc) -> NfcBudget {
        let through_vcenter = about.is_vcenter;
        let most = if through_vcenter { MEMORY_BYTES } else { u64::MAX };
        NfcBudget {
            through_vcenter,
            bytes_max: nfc.memory.unwrap_or(MEMORY_BYTES).min(most),
            disks_max: Some(VPXA_DISKS_MAX),
            aio: true,
            request_bytes: REQUEST_BYTES,
        }
    }

    /// Bytes that one open disk takes with these buffers.
    pub fn disk_bytes(&self, aio: Aio) -> u64 {
        match self.request_bytes {
            OLD_REQUEST_BYTES => OLD_REQUEST_BYTES,
            _ => aio.bytes(),
        }
    }

    /// Disks that may be open at once; one at least, since a host that cannot take one is found out by trying.
    pub fn disks(&self, aio: Aio) -> u32 {
        let by_memory = u32::try_from(self.bytes_max / self.disk_bytes(aio).max(1)).unwrap_or(u32::MAX);
        by_memory.min(self.disks_max.unwrap_or(u32::MAX)).max(1)
    }

    /// Buffers for so many disks of one host, of a cold copy or a warm one.
    pub fn aio(&self, asked: Option<Aio>, disks: u32, is_warm: bool) -> Aio {
        match asked {
            _ if !self.aio || is_warm => Aio::OWN,
            Some(asked) => asked,
            None if disks >= LARGE_AIO_DISKS_MIN => Aio::LARGE,
            None => Aio::OWN,
        }
    }
}

/// What the disks of a VM take of their host's NFC server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfcShare {
    /// Buffers of each disk; absent: as large as what is free allows when it is opened.
    pub aio: Option<Aio>,
    /// Bytes that each open disk takes, at least.
    pub disk_bytes: u64,
    /// Disks of the host that may be open at once, of all VMs.
    pub disks_at_once: u32,
    /// Largest request.
    pub request_bytes: u64,
}

/// What a plan takes of one host's NFC server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNfc {
    /// The provider's id of the host.
    pub host_id: String,
    /// Disks of the plan there.
    pub disks: u32,
    /// Disks that are open at once at most: those of as many VMs as are copied at once, the largest, as far as the host and the
    /// plan let.
    pub open_max: u32,
    /// What each has of it.
    pub share: NfcShare,
    /// What there is.
    pub budget: NfcBudget,
}

impl HostNfc {
    /// Bytes in use when as many disks as may be are open.
    pub fn bytes_used_max(&self) -> u64 {
        self.share.disk_bytes * u64::from(self.open_max)
    }

    /// The sums in words, without the host's name.
    pub fn words(&self) -> String {
        let (share, budget) = (&self.share, &self.budget);
        let limit = match budget.disks_max {
            Some(disks) => format!("{} and {}", Bytes(budget.bytes_max), count(disks as usize, "disk")),
            None => Bytes(budget.bytes_max).to_string(),
        };
        let service = if budget.through_vcenter { "vpxa" } else { "hostd" };
        let open = format!("{}, {} at once", count(self.disks as usize, "disk"), self.open_max);
        let Some(aio) = share.aio else {
            return format!("{open}, with buffers as large as fit into {limit} in {service}");
        };
        let (each, all) = (Bytes(share.disk_bytes), Bytes(self.bytes_used_max()));
        format!("{open} x {each} (AIO {aio}) = {all} of {limit} in {service}")
    }
}

/// Gives each VM its share, and tells the sum of each host, in the order of their ids. For plans whose disks are
/// read through VDDK.
pub fn share_out(resolution: &mut Resolution, about: &About, vddk: &Vddk, limits: &Limits) -> Vec<HostNfc> {
    let budget = NfcBudget::of(about, vddk);
    share_out_by(resolution, budget, limits, |disks, any_warm| {
        let aio = budget.aio(vddk.aio, disks, any_warm);
        let (disk_bytes, disks_at_once) = (budget.disk_bytes(aio), budget.disks(aio));
        NfcShare { aio: Some(aio), disk_bytes, disks_at_once, request_bytes: budget.request_bytes }
    })
}

/// The same for plans whose disks are read by drover's own client. It gives each disk what fits when it is opened, so
/// only their number is limited here: more would wait for each other, and give up.
pub fn share_out_own(resolution: &mut Resolution, about: &About, nfc: &Nfc, limits: &Limits) -> Vec<HostNfc> {
    let budget = NfcBudget::own(about, nfc);
    let by_memory = u32::try_from(budget.bytes_max / LEAST_BYTES).unwrap_or(u32::MAX);
    let disks_at_once = by_memory.clamp(1, VPXA_DISKS_MAX);
    let share =
        NfcShare { aio: None, disk_bytes: LEAST_BYTES, disks_at_once, request_bytes: budget.request_bytes };
    share_out_by(resolution, budget, limits, |_, _| share)
}

/// `share_of` gets the number of a host's disks, and whether any of them moves warm.
fn share_out_by(
    resolution: &mut Resolution,
    budget: NfcBudget,
    limits: &Limits,
    share_of: impl Fn(u32, bool) -> NfcShare,
) -> Vec<HostNfc> {
    let mut hosts = BTreeMap::<String, Disks>::new();
    for vm in &resolution.vms {
        let host = hosts.entry(vm.vm.host_id.clone()).or_default();
        host.of_vms.push(u32::try_from(vm.disks.len()).unwrap_or(u32::MAX));
        host.any_warm |= vm.warm.is_some();
    }
    let sum = |(host_id, mut of): (String, Disks)| {
        // The largest first.
        of.of_vms.sort_unstable_by(|one, two| two.cmp(one));
        let disks = of.of_first(u32::MAX);
        let share = share_of(disks, of.any_warm);
        let open_max = of.of_first(limits.vms_per_host).min(share.disks_at_once).min(limits.disks);
        HostNfc { host_id, disks, open_max, share, budget }
    };
    let sums: Vec<HostNfc> = hosts.into_iter().map(sum).collect();
    let shares: BTreeMap<&str, NfcShare> =
        sums.iter().map(|host| (host.host_id.as_str(), host.share)).collect();
    for vm in &mut resolution.vms {
        vm.nfc = shares.get(vm.vm.host_id.as_str()).copied();
    }
    sums
}

/// Disks of one host.
#[derive(Default)]
struct Disks {
    /// Of each VM.
    of_vms: Vec<u32>,
    any_warm: bool,
}

impl Disks {
    /// Of so many VMs, the first ones.
    fn of_first(&self, vms: u32) -> u32 {
        self.of_vms.iter().take(vms as usize).fold(0, |sum, disks| sum.saturating_add(*disks))
    }
}

impl PlannedVm {
    /// Buffers with which VDDK opens each of its disks.
    pub fn aio(&self) -> Aio {
        self.nfc.and_then(|nfc| nfc.aio).unwrap_or(Aio::OWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, PlannedVm};

    fn vddk(text: &str) -> Vddk {
        let plan = format!(
            "version: 1\nname: a\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P, \
             data: {{vddk: {{{text}}}}}}}\ntarget: {{type: qemu, folder: /vms}}\nvms: [{{name: a}}]\n"
        );
        Plan::parse(&plan).unwrap().source.vsphere().unwrap().data.vddk.clone()
    }

    fn limits(lines: &str) -> Limits {
        let plan = format!(
            "version: 1\nname: a\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
             target: {{type: qemu, folder: /vms}}\nlimits: {{{lines}}}\nvms: [{{name: a}}]\n"
        );
        Plan::parse(&plan).unwrap().limits
    }

    fn about(version: &str, is_vcenter: bool) -> About {
        About { version: version.into(), is_vcenter, ..About::default() }
    }

    #[test]
    fn a_host_asked_directly_has_memory_for_twelve_disks_with_large_buffers_and_many_with_small_ones() {
        let budget = NfcBudget::of(&about("8.0.2", false), &vddk(""));
        assert_eq!((budget.bytes_max, budget.disks_max), (48 << 20, None));
        assert_eq!((budget.disks(Aio::LARGE), budget.disks(Aio::OWN)), (12, 192));
    }

    #[test]
    fn the_memory_of_hostd_is_configured_that_of_vpxa_is_not() {
        let asked = vddk("nfc_memory: 96MiB");
        assert_eq!(NfcBudget::of(&about("8.0.2", false), &asked).disks(Aio::LARGE), 24);
        assert_eq!(NfcBudget::of(&about("8.0.2", true), &asked).disks(Aio::LARGE), 12);
    }

    #[test]
    fn a_vcenter_serves_fifty_disks_of_a_host() {
        assert_eq!(NfcBudget::of(&about("7.0.3", true), &vddk("")).disks(Aio::OWN), 50);
    }

    #[test]
    fn old_hosts_have_a_buffer_as_large_as_the_request() {
        let budget = NfcBudget::of(&about("6.5.0", false), &vddk(""));
        assert_eq!((budget.disks(Aio::LARGE), budget.request_bytes), (20, 1 << 20));
        assert_eq!(budget.disk_bytes(Aio::OWN), 1 << 20);
        let first_with_small_buffers = NfcBudget::of(&about("6.7.0", false), &vddk(""));
        assert_eq!(
            (first_with_small_buffers.request_bytes, first_with_small_buffers.disks_max),
            (2 << 20, None)
        );
        let first_with_settings = NfcBudget::of(&about("7.0.3", false), &vddk(""));
        assert!(first_with_settings.aio && !first_with_small_buffers.aio);
    }

    #[test]
    fn buffers_are_large_for_ten_cold_disks_of_a_host_and_never_for_warm_or_old_ones() {
        let new = NfcBudget::of(&about("8.0.2", true), &vddk(""));
        let old = NfcBudget::of(&about("7.0.2", true), &vddk(""));
        let asked = Aio { buf_size_in_64kb: 8, buf_count: 2 };
        assert_eq!((new.aio(None, 9, false), new.aio(None, 10, false)), (Aio::OWN, Aio::LARGE));
        assert_eq!((new.aio(Some(asked), 1, false), new.aio(Some(asked), 20, true)), (asked, Aio::OWN));
        assert_eq!((new.aio(None, 20, true), old.aio(Some(asked), 20, false)), (Aio::OWN, Aio::OWN));
    }

    fn vm(host: &str, disks: usize) -> PlannedVm {
        let disk = serde_json::json!({"disk": drover_types::inventory::VmDisk::default(), "index": 0, "path": "/a",
            "base": "/", "bus": "virtio"});
        let vm = drover_types::inventory::Vm { host_id: host.into(), ..Default::default() };
        serde_json::from_value(serde_json::json!({
            "vm": vm, "target_name": "a", "folder": "/a", "format": "raw", "disk_bus": "virtio",
            "disks": vec![disk; disks], "nics": [], "power_off": "refuse", "shutdown_timeout": {"secs": 1, "nanos": 0},
            "verify": "full", "start": false, "convert": "never", "route": "provider", "priority": 0,
            "concerns": [], "line": 1,
        }))
        .unwrap()
    }

    #[test]
    fn each_host_has_its_own_sum_and_buffers_by_its_own_disks() {
        let vms = vec![vm("host-1", 6), vm("host-2", 3), vm("host-1", 9)];
        let mut resolution = Resolution { vms, problems: Vec::new() };
        let hosts = share_out(&mut resolution, &about("8.0.2", true), &vddk(""), &limits("disks: 40"));
        let sums: Vec<_> =
            hosts.iter().map(|host| (host.disks, host.open_max, host.bytes_used_max())).collect();
        assert_eq!(sums, [(15, 12, 48 << 20), (3, 3, 3 * (256 << 10))]);
        assert_eq!(resolution.vms[2].nfc.unwrap().disks_at_once, 12);
        assert_eq!(resolution.vms[1].aio(), Aio::OWN);
        assert_eq!(
            hosts[0].words(),
            "15 disks, 12 at once x 4 MiB (AIO 16 x 4) = 48 MiB of 48 MiB and 50 disks in vpxa"
        );
    }

    #[test]
    fn no_more_disks_are_open_at_once_than_the_largest_vms_have_that_are_copied_at_once() {
        let open_max = |lines: &str| {
            let vms = [1, 5, 2, 3].map(|disks| vm("host-1", disks)).to_vec();
            let mut resolution = Resolution { vms, problems: Vec::new() };
            let hosts = share_out(&mut resolution, &about("8.0.2", true), &vddk(""), &limits(lines));
            assert_eq!(resolution.vms[0].nfc, Some(hosts[0].share));
            (hosts[0].disks, hosts[0].open_max)
        };
        assert_eq!(open_max(""), (11, 11), "20 VMs of a host");
        assert_eq!(open_max("vms_per_host: 2"), (11, 8));
        assert_eq!(open_max("vms_per_host: 2, disks: 7"), (11, 7));
        assert_eq!(open_max("vms_per_host: 1"), (11, 5));
    }

    #[test]
    fn our_own_client_opens_as_many_disks_of_a_host_as_its_ledger_lets_in() {
        let text = "version: 1\nname: a\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P, \
                    data: {nfc: {memory: MEM}}}\ntarget: {type: qemu, folder: /vms}\nvms: [{name: a}]\n";
        let nfc = |memory| {
            Plan::parse(&text.replace("MEM", memory)).unwrap().source.vsphere().unwrap().data.nfc.clone()
        };
        let sum = |memory, is_vcenter| {
            let mut resolution = Resolution { vms: vec![vm("host-1", 60)], problems: Vec::new() };
            let hosts = share_out_own(
                &mut resolution,
                &about("8.0.2", is_vcenter),
                &nfc(memory),
                &limits("disks: 400"),
            );
            assert_eq!(resolution.vms[0].nfc, Some(hosts[0].share));
            (hosts[0].open_max, hosts[0].words())
        };
        let words = "60 disks, 50 at once, with buffers as large as fit into 48 MiB and 50 disks in vpxa";
        assert_eq!(sum("48MiB", true), (50, words.to_string()));
        assert_eq!(sum("96MiB", true), (50, words.to_string()), "vpxa cannot be configured");
        assert_eq!(sum("1MiB", false).0, 16);
    }

    #[test]
    fn one_warm_vm_keeps_the_buffers_of_its_host_small() {
        let warm = PlannedVm { warm: Some(crate::Warm::default()), ..vm("host-1", 6) };
        for vms in [vec![warm.clone(), vm("host-1", 9)], vec![vm("host-1", 9), warm]] {
            let mut resolution = Resolution { vms, problems: Vec::new() };
            let hosts = share_out(&mut resolution, &about("8.0.2", true), &vddk(""), &limits("disks: 40"));
            assert_eq!((hosts[0].disks, hosts[0].share.aio), (15, Some(Aio::OWN)));
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(Version::of("10.0") > Version::of("9.9.9"));
        assert_eq!(Version::of("7.0.3.01100"), Version(7, 0, 3));
        assert_eq!(Version::of("x"), Version(0, 0, 0));
    }
}
