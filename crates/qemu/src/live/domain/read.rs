//! What libvirt writes, read: XML of domains, pools and hosts, and figures of jobs.

use std::collections::BTreeMap;

use drover_live::{Domain, DomainDisk, DomainJob, Phase, Sample, Told};
use drover_types::XmlBounds;
use roxmltree::{Document, Node, ParsingOptions};

use crate::error::{QemuError, QemuErrorKind};
use crate::virsh::values;

/// Libvirt nests some ten deep, and gives an element some ten attributes; `metadata` holds what others put there.
const BOUNDS: XmlBounds = XmlBounds { depth_max: 100, attributes_max: 64 };
/// A domain with hundreds of devices has some 10,000.
const NODES_MAX: u32 = 500_000;

/// A domain, as far as its XML tells.
pub(super) fn domain(xml: &str) -> Result<Domain, QemuError> {
    let document = parsed(xml, "the domain's XML")?;
    let root = document.root_element();
    let machine = at(root, &["os", "type"]);
    let attribute = |name| machine.and_then(|it| it.attribute(name)).unwrap_or_default().to_string();
    let devices = child(root, "devices");
    let devices = || devices.into_iter().flat_map(|it| it.children().filter(Node::is_element));
    let interfaces = || devices().filter(|device| device.has_tag_name("interface"));
    let is_network = |device: &Node<'_, '_>| device.attribute("type") == Some("network");
    let networks = interfaces().filter(is_network).filter_map(|it| child(it, "source")?.attribute("network"));
    let links = interfaces().filter_map(link);
    Ok(Domain {
        name: text_at(root, &["name"]),
        uuid: text_at(root, &["uuid"]),
        virt: root.attribute("type").unwrap_or_default().into(),
        arch: attribute("arch"),
        machine: attribute("machine"),
        processor: child(root, "cpu").and_then(|cpu| cpu.attribute("mode")).unwrap_or_default().into(),
        emulator: text_at(root, &["devices", "emulator"]),
        memory_bytes: at(root, &["memory"]).and_then(bytes).unwrap_or_default(),
        huge_pages: at(root, &["memoryBacking", "hugepages"]).map(huge_pages),
        disks: devices().filter(|device| device.has_tag_name("disk")).map(disk).collect(),
        networks: networks.map(str::to_string).collect(),
        links: links.map(str::to_string).collect(),
        host_devices: devices().filter_map(host_device).collect(),
        ..Domain::default()
    })
}

fn disk(node: Node<'_, '_>) -> DomainDisk {
    let source = child(node, "source");
    let kind = node.attribute("type").unwrap_or_default();
    let places = ["file", "dev", "dir", "name", "volume", "path"];
    let place = source.and_then(|source| places.iter().find_map(|name| source.attribute(*name)));
    let format = child(node, "driver").and_then(|driver| driver.attribute("type"));
    let target = child(node, "target").and_then(|target| target.attribute("dev"));
    DomainDisk {
        target: target.unwrap_or_default().into(),
        kind: kind.into(),
        place: place.unwrap_or_default().into(),
        format: format.unwrap_or("raw").into(),
        bytes: 0,
        taken_bytes: 0,
        is_read_only: child(node, "readonly").is_some(),
        is_shareable: child(node, "shareable").is_some(),
        // Empty, it says that nothing lies beneath.
        is_backed: child(node, "backingStore").is_some_and(|store| store.has_children()),
        has_job: child(node, "mirror").is_some(),
    }
}

/// What of the host a network card is plugged into: a bridge, or another card.
fn link<'a>(interface: Node<'a, '_>) -> Option<&'a str> {
    let name = match interface.attribute("type")? {
        "bridge" => "bridge",
        "direct" => "dev",
        _ => return None,
    };
    child(interface, "source")?.attribute(name)
}

/// Sizes of the pages that memory is in; none where the host's usual ones are meant.
fn huge_pages(node: Node<'_, '_>) -> Vec<u64> {
    let pages = node.children().filter(|page| page.has_tag_name("page"));
    let size = |page: Node<'_, '_>| {
        amount(page.attribute("size")?.parse().ok()?, page.attribute("unit").unwrap_or("KiB"))
    };
    pages.filter_map(size).collect()
}

/// Free huge pages by their size, as `freepages --all` tells of each node; the smallest size is no huge one.
pub(super) fn free_pages(text: &str) -> BTreeMap<u64, u64> {
    let mut free = BTreeMap::<u64, u64>::new();
    for line in text.lines() {
        let told = line.split_once(':').and_then(|(size, count)| {
            let size: u64 = size.trim().strip_suffix("KiB")?.parse().ok()?;
            Some((size.checked_mul(1024)?, count.trim().parse::<u64>().ok()?))
        });
        if let Some((size, count)) = told {
            let sum = free.entry(size).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    free.pop_first();
    free
}

/// Names in the first column of a table.
pub(super) fn first_column(lines: &[String]) -> Vec<String> {
    lines.iter().filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

/// A device of the host that the domain was given, in words.
fn host_device(node: Node<'_, '_>) -> Option<String> {
    let kind = node.attribute("type").unwrap_or_default();
    let is_given = match node.tag_name().name() {
        "hostdev" => true,
        // One that leaves before a move, and comes back after it.
        "interface" => kind == "hostdev" && child(node, "teaming").is_none(),
        _ => false,
    };
    let address = at(node, &["source", "address"]);
    let part = |name| address.and_then(|it| it.attribute(name)).map(|text| text.trim_start_matches("0x"));
    let place = match (part("domain"), part("bus"), part("slot"), part("function")) {
        (Some(domain), Some(bus), Some(slot), Some(function)) => format!(" {domain}:{bus}:{slot}.{function}"),
        _ => String::new(),
    };
    is_given.then(|| format!("{kind}{place}"))
}

/// The user as which a domain's QEMU runs: of the label that libvirt gave it, `+64055:+64055`.
pub(super) fn owner(xml: &str) -> Result<Option<u32>, QemuError> {
    let document = parsed(xml, "the domain's XML")?;
    let labels = document.root_element().children().filter(|node| node.has_tag_name("seclabel"));
    let mut of_files = labels.filter(|node| node.attribute("model") == Some("dac"));
    let label = of_files.find_map(|node| child(node, "label")?.text());
    Ok(label.and_then(|label| label.split(':').next()?.trim().trim_start_matches('+').parse().ok()))
}

/// The version of the hypervisor, as `version` tells: `Running hypervisor: QEMU 10.0.2`.
pub(super) fn hypervisor(told: &str) -> Option<(u32, u32)> {
    version(told, "Running hypervisor:")
}

/// The version of the daemon, as `version --daemon` tells: `Running against daemon: 11.3.0`.
pub(super) fn daemon(told: &str) -> Option<(u32, u32)> {
    version(told, "Running against daemon:")
}

fn version(told: &str, what: &str) -> Option<(u32, u32)> {
    let line = told.lines().find(|line| line.starts_with(what))?;
    let mut parts = line.rsplit(' ').next()?.split('.').map(|part| part.parse::<u32>());
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// The UUID by which a daemon tells its host from others.
pub(super) fn host_uuid(capabilities: &str) -> Result<String, QemuError> {
    let document = parsed(capabilities, "the daemon's capabilities")?;
    Ok(text_at(document.root_element(), &["host", "uuid"]))
}

/// The folder of a storage pool, where it is one of files.
pub(super) fn pool_folder(xml: &str) -> Result<Option<String>, QemuError> {
    let document = parsed(xml, "a storage pool's XML")?;
    let root = document.root_element();
    let has_files = matches!(root.attribute("type"), Some("dir" | "fs" | "netfs"));
    let folder = text_at(root, &["target", "path"]);
    Ok((has_files && !folder.is_empty()).then_some(folder))
}

fn parsed<'a>(xml: &'a str, what: &str) -> Result<Document<'a>, QemuError> {
    let failed = |why: String| QemuError::new(QemuErrorKind::Failed, format!("reading {what}")).because(why);
    BOUNDS.check(xml).map_err(failed)?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).map_err(|error| failed(error.to_string()))
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|it| it.has_tag_name(name))
}

fn at<'a, 'i>(node: Node<'a, 'i>, path: &[&str]) -> Option<Node<'a, 'i>> {
    path.iter().try_fold(node, |node, name| child(node, name))
}

fn text_at(node: Node<'_, '_>, path: &[&str]) -> String {
    at(node, path).and_then(|it| it.text()).unwrap_or_default().trim().to_string()
}

/// An amount with its unit, KiB where none is said.
fn bytes(node: Node<'_, '_>) -> Option<u64> {
    amount(node.text()?.trim().parse().ok()?, node.attribute("unit").unwrap_or("KiB"))
}

fn amount(number: u64, unit: &str) -> Option<u64> {
    let unit = match unit {
        "b" | "bytes" => 1,
        "KB" => 1000,
        "k" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(unit)
}

type Values = BTreeMap<String, String>;

/// Where a move is by how the guest stands (`domstate --reason`), if it stands still for that.
pub(super) fn phase(state: &str) -> Option<Phase> {
    match state.trim() {
        "paused (migrating)" => Some(Phase::Switchover),
        "paused (post-copy)" => Some(Phase::PostCopy),
        "paused (post-copy failed)" => Some(Phase::Broken),
        _ => None,
    }
}

/// What `domjobinfo --rawstats` and `domstate --reason` tell one after the other; nothing if either told nothing.
pub(super) fn job_and_state(told: &str) -> Option<(Values, &str)> {
    let (job, state) = told.trim().rsplit_once('\n')?;
    let values = values(job);
    let is_state = state.ends_with(')') && !state.contains([':', '=']);
    (is_state && values.contains_key("Job type")).then_some((values, state))
}

/// Figures of a domain's job (`domjobinfo --rawstats`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Job {
    /// What is done.
    pub kind: DomainJob,
    /// Memory, as far as it has come.
    pub sample: Sample,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of pages that held nothing, of those looked at.
    pub zero_bytes: u64,
    /// Bytes of disks that were copied, and that are to be.
    pub disks: [u64; 2],
    /// Milliseconds for which the guest stood still.
    pub downtime_ms: Option<u64>,
}

impl Job {
    /// What is not told is zero; what is told besides is passed over.
    pub(super) fn of(values: &Values, at_ms: u64) -> Job {
        let told = |name: &str| values.get(name).and_then(|value| value.parse::<u64>().ok());
        let number = |name: &str| told(name).unwrap_or_default();
        let page_bytes = told("memory_page_size").unwrap_or(PAGE_BYTES);
        let kind = match (number("Job type"), number("operation")) {
            // 3 to 5: it has ended, one way or another.
            (0 | 3..=5, _) => DomainJob::None,
            (_, OPERATION_IN) => DomainJob::In,
            (_, OPERATION_OUT) => DomainJob::Out,
            _ => DomainJob::Other,
        };
        let sample = Sample {
            at_ms,
            phase: if number("memory_total") == 0 { Phase::Setup } else { Phase::Precopy },
            sent_bytes: number("memory_processed"),
            gone_bytes: number("memory_processed"),
            left_bytes: number("memory_remaining"),
            dirty_bytes_per_s: number("memory_dirty_rate").saturating_mul(page_bytes),
            passes: number("memory_iteration"),
            throttle_percent: u8::try_from(number("auto_converge_throttle")).unwrap_or(100),
        };
        Job {
            kind,
            sample,
            memory_bytes: number("memory_total"),
            zero_bytes: number("memory_constant").saturating_mul(page_bytes),
            disks: [number("disk_processed"), number("disk_total")],
            downtime_ms: told("downtime"),
        }
    }

    /// In the form that moves are told in; with the phase, where that is known by how the guest stands.
    pub(super) fn told(&self, phase: Option<Phase>) -> Told {
        let phase = phase.unwrap_or(self.sample.phase);
        let status = match phase {
            Phase::Setup => "setup",
            Phase::Switchover => "device",
            Phase::PostCopy => "postcopy-active",
            Phase::Broken => "postcopy-paused",
            Phase::Precopy | Phase::Done | Phase::Failed => "active",
        };
        let sample = Sample { phase, ..self.sample };
        let (downtime_ms, total_bytes) = (self.downtime_ms, self.memory_bytes);
        Told {
            sample,
            status: status.into(),
            error: None,
            downtime_ms,
            total_bytes,
            zero_bytes: self.zero_bytes,
        }
    }
}

/// As libvirt numbers them (virDomainJobOperation).
const OPERATION_IN: u64 = 4;
const OPERATION_OUT: u64 = 5;
/// What x86 has, should libvirt not say.
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_and_a_state_that_are_told_together_are_read_or_asked_for_again() {
        let told = "Job type:         2\noperation=5\n\npaused (migrating)\n\n";
        let (values, state) = job_and_state(told).unwrap();
        assert_eq!((Job::of(&values, 0).kind, phase(state)), (DomainJob::Out, Some(Phase::Switchover)));
        assert_eq!(phase("running (booted)"), None);
        for half in ["", "running (booted)\n", "Job type: 2\noperation=5\n", "error: x\nrunning (booted)"] {
            assert_eq!(job_and_state(half), None, "{half}");
        }
    }

    const XML: &str = "<domain type='kvm' id='3'><name>web01</name><uuid>aa-bb</uuid>
        <memory unit='GiB'>2</memory>
        <memoryBacking><hugepages><page size='2048' unit='KiB'/><page size='1' unit='G'/></hugepages></memoryBacking>
        <os><type arch='x86_64' machine='pc-q35-10.0'>hvm</type></os>
        <devices><emulator>/usr/bin/qemu</emulator>
        <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/vm/a.qcow2' index='1'/>
          <backingStore type='file'><source file='/vm/base.qcow2'/><backingStore/></backingStore><target dev='vda'/>
          <mirror type='file' job='copy'/></disk>
        <disk type='network' device='disk'><source protocol='rbd' name='pool/b'/><backingStore/><target dev='vdb'/><shareable/></disk>
        <disk type='file' device='cdrom'><target dev='sda'/><readonly/></disk>
        <interface type='network'><source network='lan' portid='x'/></interface>
        <interface type='bridge'><source bridge='br0'/></interface>
        <interface type='direct'><source dev='eth1' mode='bridge'/></interface>
        <interface type='user'/>
        <interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x1'/></source></interface>
        <hostdev mode='subsystem' type='usb'><source><vendor id='1'/></source></hostdev>
        </devices></domain>";

    #[test]
    fn a_domain_of_many_parts() {
        let domain = domain(XML).unwrap();
        assert_eq!(
            (domain.name.as_str(), domain.uuid.as_str(), domain.virt.as_str()),
            ("web01", "aa-bb", "kvm")
        );
        assert_eq!((domain.machine.as_str(), domain.memory_bytes), ("pc-q35-10.0", 2 << 30));
        assert_eq!(domain.huge_pages, Some(vec![2 << 20, 1 << 30]));
        assert_eq!(domain.links, ["br0", "eth1"]);
        assert_eq!(domain.networks, ["lan"]);
        assert_eq!(domain.host_devices, ["hostdev 0000:02:00.1", "usb"]);
        let [one, two, three] = &domain.disks[..] else { panic!("{:?}", domain.disks) };
        assert_eq!((one.place.as_str(), one.format.as_str()), ("/vm/a.qcow2", "qcow2"));
        assert!(one.is_backed && one.has_job && one.is_private());
        assert!(!two.is_backed && two.is_shareable && !two.is_private());
        assert!(three.is_read_only && three.place.is_empty());
    }

    #[test]
    fn huge_pages_are_of_the_usual_size_or_none() {
        let of = |backing: &str| {
            domain(&format!("<domain><memoryBacking>{backing}</memoryBacking></domain>")).unwrap().huge_pages
        };
        assert_eq!((of("<hugepages/>"), of("<locked/>")), (Some(Vec::new()), None));
    }

    #[test]
    fn free_pages_of_all_nodes() {
        let told = "Node 0:\n4KiB: 1571152\n2048KiB: 3\n1048576KiB: 0\n\nNode 1:\n4KiB: 9\n2048KiB: 4\n1048576KiB: 1\n";
        assert_eq!(free_pages(told), BTreeMap::from([(2 << 20, 7), (1 << 30, 1)]));
        assert_eq!(free_pages("Node 0:\n4KiB: 5\n"), BTreeMap::new());
        assert_eq!(free_pages("nothing"), BTreeMap::new());
    }

    #[test]
    fn the_user_of_a_domain_is_that_of_its_label() {
        let of = |labels: &str| owner(&format!("<domain>{labels}</domain>")).unwrap();
        let dac =
            "<seclabel type='dynamic' model='dac' relabel='yes'><label>+64055:+64055</label></seclabel>";
        let other = "<seclabel type='dynamic' model='apparmor'><label>libvirt-1</label></seclabel>";
        assert_eq!(of(&format!("{other}{dac}")), Some(64055));
        assert_eq!((of(other), of(""), of("<seclabel type='none' model='dac'/>")), (None, None, None));
    }

    #[test]
    fn versions_of_the_hypervisor_and_the_daemon() {
        let told = "Compiled against library: libvirt 11.4.0\nRunning hypervisor: QEMU 10.0.2\nRunning against daemon: 11.3.0\n";
        assert_eq!((hypervisor(told), daemon(told)), (Some((10, 0)), Some((11, 3))));
        assert_eq!(daemon("Running hypervisor: QEMU 10.0.2"), None);
        assert!(hypervisor("Running hypervisor: QEMU 8.1.0").unwrap() >= (8, 1));
        assert_eq!((hypervisor(""), hypervisor("Running hypervisor: QEMU")), (None, None));
    }

    #[test]
    fn what_is_no_xml_is_refused() {
        assert!(domain("virsh: something went wrong").is_err());
        // A parser calls itself for each level, and compares each attribute with all others.
        let deep = "<domain>".repeat(1 << 20);
        let wide = format!("<domain{}/>", " a=''".repeat(1 << 20));
        for (text, why) in [(deep, "nested too deeply"), (wide, "more than 64 attributes")] {
            let error = domain(&text).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(why), "{cause}");
        }
        assert!(host_uuid("").is_err());
    }

    #[test]
    fn pools_of_files_have_a_folder() {
        let pool = |kind: &str| {
            format!("<pool type='{kind}'><name>p</name><target><path>/vms</path></target></pool>")
        };
        assert_eq!(pool_folder(&pool("dir")).unwrap().as_deref(), Some("/vms"));
        assert_eq!(pool_folder(&pool("logical")).unwrap(), None);
    }

    #[test]
    fn figures_of_a_move() {
        let text = "Job type: 2\noperation: 5\nmemory_total: 1000\nmemory_processed: 400\nmemory_remaining: 600\n\
                    memory_dirty_rate: 2\nmemory_iteration: 3\nmemory_page_size: 4096\nmemory_constant: 5\ndisk_total: 9\ndisk_processed: 4\nnew: x\n";
        let job = Job::of(&values(text), 7);
        assert_eq!((job.kind, job.sample.phase, job.sample.passes), (DomainJob::Out, Phase::Precopy, 3));
        assert_eq!(
            (job.sample.sent_bytes, job.sample.left_bytes, job.sample.dirty_bytes_per_s),
            (400, 600, 8192)
        );
        assert_eq!((job.disks, job.downtime_ms, job.zero_bytes), ([4, 9], None, 20_480));
        assert_eq!(job.told(Some(Phase::Switchover)).status, "device");
        assert_eq!(job.told(None).sample.phase, Phase::Precopy);
        let none = Job::of(&values("Job type: 0\n"), 0);
        assert_eq!((none.kind, none.sample.phase), (DomainJob::None, Phase::Setup));
        assert_eq!(Job::of(&values("Job type: 1\noperation: 6\n"), 0).kind, DomainJob::Other);
    }
}
