//! Where VMs go: a table for each kind of target.

use super::{BUS, BUS_DOC, FORMAT, Kind, NIC_MODEL, NIC_MODEL_DOC, Rule, Table, key, must};

pub(crate) const TARGETS: &[(&str, &Table)] =
    &[("qemu", &TARGET), ("libvirt", &LIBVIRT), ("kubevirt", &KUBEVIRT)];

const FOLDER_DOC: &str =
    "Folder that the VMs' own folders are made in. With `via`: POOL or POOL/FOLDER of that site's agent.";
/// With a choice of where the data goes.
const MOVED_LIMIT_DOC: &str = "What may go over the network a second: to the site or, without `via`, from the source, by all VMs. RATE or WINDOW=RATE, such as \
                               500m (bits), 12MiB (bytes) or Mon-Fri 08:00-18:00 Europe/Berlin=200m (without a zone UTC). The lowest counts, also of \
                               `drover agent limit` and `drover serve --rate-limit`.";
const RATE_LIMIT_DOC: &str = "What may go to the site a second: RATE or WINDOW=RATE, such as 500m (bits), 12MiB (bytes) or Mon-Fri 08:00-18:00 \
                              Europe/Berlin=200m (without a zone UTC). The lowest counts, also of `drover agent limit`.";

pub(crate) static TARGET: Table = Table {
    keys: &[
        must("type", Kind::Choice(&["qemu"]), "Kind of target: a folder on this machine, or at a site."),
        key(
            "via",
            Kind::Site,
            "",
            "Name of a paired site: its agent takes the disks, over a link. See docs/how-to/via.md.",
        ),
        key("rate_limit", Kind::TextList, "", MOVED_LIMIT_DOC),
        must("folder", Kind::Path, FOLDER_DOC),
        key("format", Kind::Choice(FORMAT), "raw", "Format of disk images."),
        key("qcow2", Kind::One(&QCOW2), "", "How qcow2 images are made."),
        key(
            "accelerator",
            Kind::Choice(&["auto", "kvm", "tcg"]),
            "auto",
            "auto: KVM where it can be used, else emulation.",
        ),
        key("disk_bus", Kind::Choice(BUS), "virtio", BUS_DOC),
        key("nic_model", Kind::Choice(NIC_MODEL), "auto", NIC_MODEL_DOC),
        key("uefi", Kind::One(&UEFI), "", "UEFI firmware files; absent: the usual places are searched."),
        key(
            "overcommit",
            Kind::Flag,
            "false",
            "Allow a folder with less free space than the disks' full capacity.",
        ),
    ],
    rules: &[],
};

pub(crate) static LIBVIRT: Table = Table {
    keys: &[
        must("type", Kind::Choice(&["libvirt"]), "Kind of target: domains of a libvirt daemon."),
        key(
            "uri",
            Kind::Text,
            "qemu:///system",
            "Address of the daemon, in libvirt's form; with `via` of another host's, such as qemu+ssh://root@host-b/system.",
        ),
        key(
            "via",
            Kind::Site,
            "",
            "Name of a paired site: the agent of the daemon's host, which writes the volumes. Its pools have the names of the daemon's.",
        ),
        key("rate_limit", Kind::TextList, "", MOVED_LIMIT_DOC),
        key(
            "hosts",
            Kind::Many(&LIBVIRT_HOST),
            "",
            "In place of `uri` and `via`: the hosts that VMs are placed on.",
        ),
        key(
            "apart",
            Kind::TextList,
            "",
            "Patterns of names at the target (`db*`). VMs that one pattern fits are placed on different hosts.",
        ),
        key(
            "memory_reserve",
            Kind::Size(0, 1 << 50),
            "1GiB",
            "Free memory of each host that placement leaves alone.",
        ),
        must("pool", Kind::Text, "Storage pool that disks become volumes of."),
        key("format", Kind::Choice(FORMAT), "raw", "Format of volumes; those of block devices are raw."),
        key("qcow2", Kind::One(&QCOW2), "", "How qcow2 volumes are made."),
        key(
            "accelerator",
            Kind::Choice(&["auto", "kvm", "tcg"]),
            "auto",
            "auto: KVM where the daemon offers it, else emulation.",
        ),
        key("machine", Kind::Text, "", "Machine type, such as pc-q35-8.2; absent: the newest q35."),
        key(
            "cpu",
            Kind::Text,
            "",
            "host-model, host-passthrough, maximum, the name of a model, or common: what all hosts of the plan have. Absent: host-model, \
             in emulation maximum.",
        ),
        key("cpu_features", Kind::TextList, "", "Features that the CPU must have, by libvirt's names."),
        key(
            "numa_cpus",
            Kind::Number(1, 1024),
            "",
            "Most CPUs of a guest's NUMA node; guests with more get several. Absent: guests have one.",
        ),
        key(
            "hugepages",
            Kind::Choice(&["2MiB", "1GiB"]),
            "",
            "Size of the host's huge pages that hold the guests' memory; absent: none do.",
        ),
        key("disk_bus", Kind::Choice(BUS), "virtio", BUS_DOC),
        key("nic_model", Kind::Choice(NIC_MODEL), "auto", NIC_MODEL_DOC),
        key(
            "cache",
            Kind::Choice(&["none", "writeback"]),
            "",
            "How disks are cached; absent: none where the file system can do it.",
        ),
        key(
            "io",
            Kind::Choice(&["native", "threads", "io_uring"]),
            "",
            "Who submits the I/O of disks; absent: native for block devices, else threads.",
        ),
        key("discard", Kind::Flag, "true", "Give back what guests discard."),
        key("tpm", Kind::Flag, "true", "Give VMs that have a virtual TPM a new, empty one."),
        key("autostart", Kind::Flag, "false", "The daemon starts the domains whenever it starts itself."),
        key(
            "overcommit",
            Kind::Flag,
            "false",
            "Allow a pool with less free space than the disks' full capacity.",
        ),
    ],
    rules: &[Rule::NotBoth("uri", "hosts"), Rule::NotBoth("via", "hosts")],
};

pub(crate) static LIBVIRT_HOST: Table = Table {
    keys: &[
        must("name", Kind::Site, "What the plan and its reports call the host."),
        must("uri", Kind::Text, "Address of its daemon, in libvirt's form."),
        key(
            "via",
            Kind::Site,
            "",
            "Name of the paired site that is its drover agent; absent for this machine, or storage that it has too.",
        ),
        key("pool", Kind::Text, "", "Its pool in place of the target's `pool`."),
    ],
    rules: &[],
};

pub(crate) static KUBEVIRT: Table = Table {
    keys: &[
        must("type", Kind::Choice(&["kubevirt"]), "Kind of target: virtual machines of KubeVirt."),
        key(
            "kubeconfig",
            Kind::Path,
            "",
            "The kubeconfig; absent: KUBECONFIG, ~/.kube/config, or the pod's own.",
        ),
        key("context", Kind::Text, "", "Context of the kubeconfig; absent: its current one."),
        must("namespace", Kind::Text, "Namespace that machines and volumes are made in."),
        key("storage_class", Kind::Text, "", "Storage class of the volumes; absent: the cluster's default."),
        key("volume_mode", Kind::Choice(&["block", "filesystem"]), "block", "What the volumes are."),
        key(
            "access_mode",
            Kind::Choice(&["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]),
            "",
            "Who may have a volume at a time; ReadWriteMany lets guests move between nodes. Absent: what CDI's StorageProfile of the class says first for the volume mode, else ReadWriteOnce.",
        ),
        key(
            "size_unit",
            Kind::Size(1 << 20, 1 << 40),
            "1MiB",
            "Volumes are whole multiples of this, as the storage class makes them.",
        ),
        key(
            "image",
            Kind::Text,
            "",
            "Image of drover that the worker pods run. Needed but for `reach: upload`.",
        ),
        key(
            "image_pull",
            Kind::Choice(&["IfNotPresent", "Always", "Never"]),
            "IfNotPresent",
            "When nodes pull it.",
        ),
        key("machine", Kind::Text, "", "Machine type, such as q35; absent: KubeVirt's default."),
        key("cpu", Kind::Text, "", "Model of the CPU, such as host-model; absent: KubeVirt's default."),
        key(
            "instance_type",
            Kind::Text,
            "",
            "VirtualMachineClusterInstancetype that says CPU and memory in place of the source's.",
        ),
        key("preference", Kind::Text, "", "VirtualMachineClusterPreference of the machines."),
        key("disk_bus", Kind::Choice(BUS), "virtio", BUS_DOC),
        key("nic_model", Kind::Choice(NIC_MODEL), "auto", NIC_MODEL_DOC),
        key(
            "run_strategy",
            Kind::Choice(&["Always", "RerunOnFailure"]),
            "RerunOnFailure",
            "When KubeVirt starts a machine again that drover started.",
        ),
        key(
            "reach",
            Kind::Choice(&[
                "auto",
                "pod",
                "port-forward",
                "node-port",
                "load-balancer",
                "route",
                "upload",
                "forward",
            ]),
            "auto",
            "How drover reaches the worker pods: at their addresses, through the API server (`forward` is its old name), or by a Service or \
             a Route of each. auto: at their addresses where those answer, else through the API server. upload: there are none, and disks go through \
             CDI's upload proxy, which auto takes from outside where pods may not be made; it has limits, see docs/how-to/kubevirt-upload.md.",
        ),
        key(
            "upload_url",
            Kind::Text,
            "",
            "Where CDI's upload proxy is reached (https://HOST:PORT); absent: where CDIConfig says.",
        ),
        key(
            "upload_ca",
            Kind::Path,
            "",
            "PEM file of the authorities that vouch for it; absent: those that CDIConfig names, else the system's.",
        ),
        key("rate_limit", Kind::TextList, "", RATE_LIMIT_DOC),
        key("worker_timeout", Kind::Duration, "5m", "How long a worker pod may take to come."),
    ],
    rules: &[],
};

/// The names of `drover copy -o`.
pub(crate) static QCOW2: Table = Table {
    keys: &[
        key(
            "cluster_size",
            Kind::Size(4 << 10, 2 << 20),
            "64KiB",
            "Bytes of a cluster: a power of two, 4KiB to 2MiB.",
        ),
        key(
            "preallocation",
            Kind::Choice(&["off", "metadata", "falloc", "full"]),
            "off",
            "What is set aside when an image is made: nothing, its tables, room for all data, or all data as zeros.",
        ),
        key("compressed", Kind::Flag, "false", "Pack clusters that are written whole."),
        key("compression_type", Kind::Choice(&["zlib", "zstd"]), "zlib", "How they are packed."),
    ],
    rules: &[],
};

pub(crate) static UEFI: Table = Table {
    keys: &[
        must("code", Kind::Path, "Firmware code, shared and read-only."),
        must("vars", Kind::Path, "Template of the variable store, copied for each VM."),
    ],
    rules: &[],
};
