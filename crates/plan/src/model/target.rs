//! Where VMs go.

use std::path::PathBuf;

use drover_types::DayLimit;
use serde::{Deserialize, Serialize};

use crate::glob::matches;

/// Where VMs go.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What kind of target it is.
    pub kind: TargetKind,
    /// The site whose agent takes the disks; absent for this machine. With libvirt that of the daemon's host.
    pub via: Option<String>,
    /// How much may go to that site, by the time; the lowest of those that hold counts. Of VMs that go to this machine: how
    /// much may be read of the source.
    pub rate_limit: Vec<DayLimit>,
    /// Folder that the VMs' own folders are made in. With `via` a folder of that site, whose first part is a pool of
    /// its agent. Empty if the target is a libvirt daemon.
    pub folder: PathBuf,
    /// Image format.
    pub format: ImageFormat,
    /// How qcow2 images are made.
    pub qcow2: Qcow2,
    /// How QEMU runs the guest.
    pub accelerator: Accelerator,
    /// Bus that disks get.
    pub disk_bus: DiskBusChoice,
    /// Model that NICs get.
    pub nic_model: NicChoice,
    /// UEFI firmware files; absent: the usual places are searched.
    pub uefi: Option<UefiFiles>,
    /// Whether a folder or pool may be used that has less free space than the disks' full capacity.
    pub overcommit: bool,
}

impl Target {
    /// What is said of libvirt's domains, if that is the target.
    pub fn libvirt(&self) -> Option<&Libvirt> {
        match &self.kind {
            TargetKind::Qemu | TargetKind::Kubevirt(_) => None,
            TargetKind::Libvirt(libvirt) => Some(libvirt),
        }
    }

    /// Whether VMs may go to another site, over a link.
    pub fn is_far(&self) -> bool {
        let hosts = self.libvirt().map_or(&[][..], |libvirt| &libvirt.hosts);
        self.via.is_some() || self.kubevirt().is_some() || hosts.iter().any(|host| host.via.is_some())
    }

    /// Whether `rate_limit` holds back what is read of the source.
    pub fn limits_reads(&self) -> bool {
        !self.rate_limit.is_empty() && self.reads_here()
    }

    /// Whether a `rate_limit` would: VMs may go to this machine, and no link is between.
    pub fn reads_here(&self) -> bool {
        self.via.is_none() && self.kubevirt().is_none()
    }

    /// What is said of KubeVirt, if that is the target.
    pub fn kubevirt(&self) -> Option<&Kubevirt> {
        match &self.kind {
            TargetKind::Qemu | TargetKind::Libvirt(_) => None,
            TargetKind::Kubevirt(kubevirt) => Some(kubevirt),
        }
    }
}

/// Kinds of target: one variant, one table of keys, one reader for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Images and definitions in a folder, on this machine or another site's.
    Qemu,
    /// Domains of libvirt, with volumes of its storage pools for disks.
    Libvirt(Box<Libvirt>),
    /// Virtual machines of KubeVirt, with persistent volume claims for disks.
    Kubevirt(Box<Kubevirt>),
}

/// What a plan says of KubeVirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubevirt {
    /// The kubeconfig; absent: `KUBECONFIG`, `~/.kube/config`, or that of the pod that drover runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts; absent: its current one.
    pub context: Option<String>,
    /// Namespace that all is made in.
    pub namespace: String,
    /// Storage class of the claims; absent: the cluster's default.
    pub storage_class: Option<String>,
    /// What the volumes are.
    pub volume_mode: VolumeMode,
    /// Who may have them at a time; absent: what CDI says of the class, else those of one node.
    pub access_mode: Option<AccessMode>,
    /// Claims are whole multiples of this, in bytes.
    pub size_unit_bytes: u64,
    /// Image of drover that the worker pods run.
    pub image: String,
    /// When nodes pull it.
    pub image_pull: ImagePull,
    /// Machine type of the guests; absent: KubeVirt's default.
    pub machine: Option<String>,
    /// Model of the CPU; absent: KubeVirt's default.
    pub cpu: Option<String>,
    /// The cluster's instance type that says CPU and memory; absent: those of the source.
    pub instance_type: Option<String>,
    /// The cluster's preference.
    pub preference: Option<String>,
    /// Run strategy of machines that are to be started.
    pub run_strategy: RunStrategy,
    /// How drover reaches the worker pods.
    pub reach: Reach,
    /// Where CDI's upload proxy is; absent: where CDI says it is.
    pub upload_url: Option<String>,
    /// File of the authorities that vouch for it; absent: those that CDI names, else those of the system.
    pub upload_ca: Option<PathBuf>,
    /// How long a worker pod may take to come.
    pub worker_timeout_s: u64,
}

impl Kubevirt {
    /// What plans, reports and journals call the place; no peer can have this name.
    pub fn site(&self) -> String {
        match &self.context {
            Some(context) => format!("{KUBEVIRT_SITE}{context}/{}", self.namespace),
            None => format!("{KUBEVIRT_SITE}{}", self.namespace),
        }
    }

    /// Whether a VM's site is a namespace of a cluster.
    pub fn is_site(site: &str) -> bool {
        site.starts_with(KUBEVIRT_SITE)
    }
}

const KUBEVIRT_SITE: &str = "kubevirt:";

/// What a volume is to those that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// A block device.
    Block,
    /// A file system, with the disk as `disk.img` in it.
    Filesystem,
}

/// Who may have a volume at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// The pods of one node.
    ReadWriteOnce,
    /// One pod.
    ReadWriteOncePod,
    /// All nodes: guests can move between them while they run.
    ReadWriteMany,
}

impl AccessMode {
    /// Kubernetes' name for it.
    pub fn name(self) -> &'static str {
        match self {
            AccessMode::ReadWriteOnce => "ReadWriteOnce",
            AccessMode::ReadWriteOncePod => "ReadWriteOncePod",
            AccessMode::ReadWriteMany => "ReadWriteMany",
        }
    }
}

/// When nodes pull an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePull {
    /// If it is not there.
    IfNotPresent,
    /// Each time.
    Always,
    /// Never: it was imported.
    Never,
}

/// When KubeVirt starts a machine again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStrategy {
    /// Whenever it is off.
    Always,
    /// After it failed.
    RerunOnFailure,
}

/// How drover reaches a worker pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At the pod's address where that answers, else through the API server.
    Auto,
    /// At the pod's address.
    Pod,
    /// Through the API server.
    Forward,
    /// By a Service of the pod's own: at a port of its node.
    NodePort,
    /// By a Service of the pod's own: at the address that a load balancer gives it.
    LoadBalancer,
    /// By a Route of the pod's own, which OpenShift's router passes through by its name.
    Route,
    /// There is no worker pod: disks are sent through CDI's upload proxy.
    Upload,
}

impl Reach {
    /// The type of the pod's Service, if it has one.
    pub fn service(self) -> Option<&'static str> {
        match self {
            Reach::NodePort => Some("NodePort"),
            Reach::LoadBalancer => Some("LoadBalancer"),
            // The router asks it for the pod.
            Reach::Route => Some("ClusterIP"),
            Reach::Auto | Reach::Pod | Reach::Forward | Reach::Upload => None,
        }
    }
}

/// What a plan says of libvirt's domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libvirt {
    /// Address of the daemon (`qemu:///system`, `qemu+ssh://host/system`); of no meaning where there are several hosts.
    pub uri: String,
    /// Hosts that VMs are placed on; none if there is but one daemon.
    pub hosts: Vec<LibvirtHost>,
    /// Patterns of names: VMs that one of them fits are placed on different hosts.
    pub apart: Vec<String>,
    /// Free memory of each host that placement leaves alone, in bytes.
    pub memory_reserve_bytes: u64,
    /// Storage pool that disks become volumes of.
    pub pool: String,
    /// Machine type; absent: the newest q35 of the daemon.
    pub machine: Option<String>,
    /// Mode or model of the CPU, or [`Libvirt::COMMON_CPU`]; absent: the host's model, or all that emulation can do.
    pub cpu: Option<String>,
    /// Features that the CPU must have.
    pub cpu_features: Vec<String>,
    /// Bytes of the host's huge pages that hold the guests' memory; absent: usual pages.
    pub page_bytes: Option<u64>,
    /// Most CPUs of a guest's NUMA node; absent: there is but one node.
    pub numa_cpus: Option<u32>,
    /// How disks are cached; absent: past the page cache where the file system can do that.
    pub cache: Option<DiskCache>,
    /// Who submits the I/O of disks; absent: chosen.
    pub io: Option<DiskIo>,
    /// Whether what the guest discards is given back.
    pub discard: bool,
    /// Whether a VM with a virtual TPM gets a new, empty one.
    pub tpm: bool,
    /// Whether the daemon starts the domains whenever it starts itself.
    pub autostart: bool,
}

/// One of several hosts that VMs are placed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibvirtHost {
    /// What the plan calls it.
    pub name: String,
    /// Address of its daemon.
    pub uri: String,
    /// The site of its agent; absent for this machine.
    pub via: Option<String>,
    /// Its pool in place of the target's.
    pub pool: Option<String>,
}

impl Libvirt {
    /// In the place of a CPU's model: what all hosts of the plan have.
    pub const COMMON_CPU: &str = "common";

    /// Whether the CPU is what all hosts have.
    pub fn is_common_cpu(&self) -> bool {
        self.cpu.as_deref() == Some(Self::COMMON_CPU)
    }

    /// The groups of VMs of this name that are to be apart, as their patterns.
    pub fn groups_of(&self, name: &str) -> impl Iterator<Item = &String> {
        self.apart.iter().filter(move |pattern| matches(pattern, name))
    }

    /// Whether a daemon of this address is its host's own, not that of a user.
    pub fn is_of_system(uri: &str) -> bool {
        let (_, rest) = uri.split_once("://").unwrap_or_default();
        rest.split('?').next().is_some_and(|place| place.ends_with("/system"))
    }

    /// Whether a daemon of this address runs on this machine.
    pub fn is_here(uri: &str) -> bool {
        let Some((_, rest)) = uri.split_once("://") else { return false };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        host.is_empty() || host == "localhost"
    }
}

/// How a disk is cached on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskCache {
    /// Past the page cache.
    None,
    /// Through the page cache.
    Writeback,
}

/// Who submits the I/O of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskIo {
    /// The kernel's AIO.
    Native,
    /// Threads of QEMU.
    Threads,
    /// io_uring.
    IoUring,
}

/// Format of disk images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// Bytes as they are, with holes.
    Raw,
    /// QEMU's own.
    Qcow2,
}

impl ImageFormat {
    /// The ending of a file of this format, which is also QEMU's name for it.
    pub fn extension(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// How qcow2 images are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcow2 {
    /// Bytes of a cluster: a power of two, 4 KiB to 2 MiB.
    pub cluster_bytes: u64,
    /// What is set aside when an image is made.
    pub preallocation: Preallocation,
    /// Whether clusters that are written whole are packed.
    pub compressed: bool,
    /// How they are packed.
    pub compression: Qcow2Compression,
}

/// What of a qcow2 image is set aside when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing.
    Off,
    /// Its tables.
    Metadata,
    /// And room for all data.
    Falloc,
    /// And all data, as zeros.
    Full,
}

/// How clusters of a qcow2 image are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qcow2Compression {
    /// As every QEMU reads it.
    Zlib,
    /// Faster; QEMU 5.1 and later read it.
    Zstd,
}

/// How QEMU runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// KVM where `/dev/kvm` can be opened, else TCG.
    Auto,
    /// KVM.
    Kvm,
    /// Emulation.
    Tcg,
}

/// Bus that a plan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBusChoice {
    /// virtio-blk.
    Virtio,
    /// SCSI.
    Scsi,
    /// SATA.
    Sata,
    /// As at the source.
    Keep,
}

/// Model of NICs that a plan asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicChoice {
    /// virtio, but for a Windows without the driver.
    #[default]
    Auto,
    /// virtio-net.
    Virtio,
    /// Intel 82574.
    E1000e,
    /// As at the source, where the target has that.
    Keep,
}

/// Firmware files of UEFI guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UefiFiles {
    /// The code, read-only and shared.
    pub code: PathBuf,
    /// The template of the variable store, copied for each VM.
    pub vars: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_the_system_is_told_by_its_path() {
        assert!(Libvirt::is_of_system("qemu+ssh://root@b/system?no_tty=1"));
        for uri in ["qemu:///session", "qemu+ssh://system/session", "qemu:///session?x=/system", "qemu"] {
            assert!(!Libvirt::is_of_system(uri), "{uri}");
        }
    }

    #[test]
    fn a_daemon_is_here_unless_its_address_names_a_host() {
        for uri in
            ["qemu:///system", "qemu+unix:///system?socket=/run/a/b", "qemu+ssh://root@localhost/system"]
        {
            assert!(Libvirt::is_here(uri), "{uri}");
        }
        for uri in ["qemu+ssh://host-b/system", "qemu+tls://root@10.0.0.2/system", "qemu", ""] {
            assert!(!Libvirt::is_here(uri), "{uri}");
        }
    }
}
