use crate::daemon::{CpuModel, Owner};
use crate::spec::{
    Accelerator, Cache, Clock, DiskBus, DiskSpec, MachineFirmware, MachineSpec, NicAttach, NicSpec,
};
use crate::xml::Xml;

/// What a domain is told beyond what its machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainOptions {
    /// Whose it is; kept in its metadata.
    pub owner: Option<Owner>,
    /// Machine type.
    pub machine: String,
    /// CPU mode or model; absent: the host's model, or all that emulation can do.
    pub cpu: Option<String>,
    /// A CPU in the place of that.
    pub model: Option<CpuModel>,
    /// Features that the CPU must have.
    pub cpu_features: Vec<String>,
    /// Bytes of the host's huge pages that hold its memory; absent: usual pages.
    pub page_bytes: Option<u64>,
    /// Most CPUs of a NUMA node; absent: there is but one node.
    pub node_cpus: Option<u32>,
    /// Who submits the I/O of disks; absent: by what the disk is.
    pub io: Option<&'static str>,
    /// Whether what the guest discards is given back.
    pub discard: bool,
    /// Whether it has a virtual TPM.
    pub tpm: bool,
}

impl Default for DomainOptions {
    fn default() -> Self {
        DomainOptions {
            owner: None,
            machine: "q35".into(),
            cpu: None,
            model: None,
            cpu_features: Vec::new(),
            page_bytes: None,
            node_cpus: None,
            io: None,
            discard: true,
            tpm: false,
        }
    }
}

/// The machine as domain XML for libvirt, with the usual options.
pub fn libvirt_xml(spec: &MachineSpec) -> String {
    domain_xml(spec, &DomainOptions::default())
}

/// The machine as domain XML for libvirt. The same machine and options give the same text.
///
/// `Auto` becomes a KVM domain, as libvirt wants the choice made. The CPU is the host's model under KVM
/// and everything QEMU can do under TCG.
///
/// Source: libvirt `formatdomain.html`.
pub fn domain_xml(spec: &MachineSpec, options: &DomainOptions) -> String {
    let mut xml = Xml::new();
    let kind = if spec.accelerator == Accelerator::Tcg { "qemu" } else { "kvm" };
    xml.open("domain", &[("type", kind)]);
    write_identity(&mut xml, spec);
    if let Some(owner) = &options.owner {
        owner.write(&mut xml);
    }
    write_processor(&mut xml, spec, options);
    write_firmware(&mut xml, spec, options);
    write_behaviour(&mut xml, spec);
    xml.open("devices", &[]);
    write_disks(&mut xml, spec, options);
    spec.nics.iter().for_each(|nic| write_nic(&mut xml, nic));
    write_other_devices(&mut xml, options);
    xml.close();
    xml.close();
    xml.finish()
}

fn write_identity(xml: &mut Xml, spec: &MachineSpec) {
    // The schema lets a slash pass, but libvirt does not: the name becomes a file name.
    xml.text("name", &[], &spec.name.replace('/', "-"));
    let optional = [("uuid", &spec.uuid), ("title", &spec.title), ("description", &spec.description)];
    for (tag, value) in optional {
        if let Some(value) = value {
            xml.text(tag, &[], value);
        }
    }
}

fn write_processor(xml: &mut Xml, spec: &MachineSpec, options: &DomainOptions) {
    xml.text("memory", &[("unit", "MiB")], &spec.memory_mib.to_string());
    if let Some(bytes) = options.page_bytes {
        xml.open("memoryBacking", &[]);
        xml.open("hugepages", &[]);
        xml.leaf("page", &[("size", &(bytes / 1024).to_string()), ("unit", "KiB")]);
        xml.close();
        xml.close();
    }
    xml.text("vcpu", &[("placement", "static")], &spec.cpus.to_string());
    let custom = |xml: &mut Xml, model: &str| {
        xml.open("cpu", &[("mode", "custom"), ("match", "exact")]);
        xml.text("model", &[("fallback", "forbid")], model);
    };
    let usual = if spec.accelerator == Accelerator::Tcg { "maximum" } else { "host-model" };
    match (&options.model, options.cpu.as_deref().unwrap_or(usual)) {
        (Some(cpu), _) => {
            custom(xml, &cpu.model);
            cpu.vendor.iter().for_each(|vendor| xml.text("vendor", &[], vendor));
        }
        (None, mode @ ("maximum" | "host-model" | "host-passthrough")) => xml.open("cpu", &[("mode", mode)]),
        (None, model) => custom(xml, model),
    }
    let nodes = Nodes::of(spec, options);
    let (sockets, cores) = nodes.topology(spec);
    let (sockets, cores) = (sockets.to_string(), cores.to_string());
    xml.leaf("topology", &[("sockets", &sockets), ("cores", &cores), ("threads", "1")]);
    let known = options.model.as_ref().map_or(&[][..], |cpu| &cpu.features);
    let wanted = options.cpu_features.iter().filter(|name| !known.iter().any(|(known, _)| known == *name));
    let wanted = wanted.map(|name| (name.as_str(), "require"));
    let all = known.iter().map(|(name, policy)| (name.as_str(), policy.as_str())).chain(wanted);
    all.for_each(|(name, policy)| xml.leaf("feature", &[("policy", policy), ("name", name)]));
    nodes.write(xml);
    xml.close();
}

/// NUMA nodes of a guest: CPUs and MiB of each.
struct Nodes(Vec<(u32, u64)>);

impl Nodes {
    /// As few as have no more CPUs each than is said, as equal as whole pages and CPUs let them be.
    fn of(spec: &MachineSpec, options: &DomainOptions) -> Nodes {
        let most = options.node_cpus.unwrap_or(spec.cpus).max(1);
        let page_mib = options.page_bytes.map_or(1, |bytes| (bytes >> 20).max(1));
        let pages = spec.memory_mib / page_mib;
        // A node without memory is none.
        let pages_max = u32::try_from(pages).unwrap_or(u32::MAX);
        let count = spec.cpus.div_ceil(most).min(pages_max).max(1);
        let node = |at: u32| {
            let cpus = spec.cpus / count + u32::from(at < spec.cpus % count);
            let pages = pages / u64::from(count) + u64::from(u64::from(at) < pages % u64::from(count));
            (cpus, pages * page_mib)
        };
        Nodes((0..count).map(node).collect())
    }

    /// Sockets and cores per socket. No socket lies on two nodes where that can be had.
    fn topology(&self, spec: &MachineSpec) -> (u32, u32) {
        let (sockets, cores) = spec.topology();
        let count = self.0.len() as u32;
        let is_apart = sockets.is_multiple_of(count) || !spec.cpus.is_multiple_of(count);
        if is_apart { (sockets, cores) } else { (count, spec.cpus / count) }
    }

    fn write(&self, xml: &mut Xml) {
        if self.0.len() < 2 {
            return;
        }
        xml.open("numa", &[]);
        let mut first = 0;
        for (id, (cpus, memory_mib)) in self.0.iter().enumerate() {
            let last = first + cpus - 1;
            let range = if *cpus == 1 { first.to_string() } else { format!("{first}-{last}") };
            let (id, memory) = (id.to_string(), (memory_mib * 1024).to_string());
            xml.leaf("cell", &[("id", &id), ("cpus", &range), ("memory", &memory), ("unit", "KiB")]);
            first = last + 1;
        }
        xml.close();
    }
}

fn write_firmware(xml: &mut Xml, spec: &MachineSpec, options: &DomainOptions) {
    let hvm = |xml: &mut Xml| xml.text("type", &[("arch", "x86_64"), ("machine", &options.machine)], "hvm");
    match &spec.firmware {
        MachineFirmware::Bios => {
            xml.open("os", &[]);
            hvm(xml);
        }
        MachineFirmware::Uefi { secure_boot, files: None } => {
            xml.open("os", &[("firmware", "efi")]);
            hvm(xml);
            xml.open("firmware", &[]);
            xml.leaf("feature", &[("enabled", yes_no(*secure_boot)), ("name", "secure-boot")]);
            xml.leaf("feature", &[("enabled", yes_no(*secure_boot)), ("name", "enrolled-keys")]);
            xml.close();
        }
        MachineFirmware::Uefi { secure_boot, files: Some(files) } => {
            xml.open("os", &[]);
            hvm(xml);
            let loader = [("readonly", "yes"), ("secure", yes_no(*secure_boot)), ("type", "pflash")];
            xml.text("loader", &loader, &files.code.to_string_lossy());
            let template = files.vars_template.to_string_lossy();
            xml.text("nvram", &[("template", &template)], &spec.folder.nvram().to_string_lossy());
        }
    }
    xml.close();
}

fn write_behaviour(xml: &mut Xml, spec: &MachineSpec) {
    xml.open("features", &[]);
    xml.leaf("acpi", &[]);
    xml.leaf("apic", &[]);
    if matches!(spec.firmware, MachineFirmware::Uefi { secure_boot: true, .. }) {
        xml.leaf("smm", &[("state", "on")]);
    }
    // Windows alone takes its clock for local time. KVM alone has what makes it feel at home.
    let is_windows = spec.clock == Clock::LocalTime;
    let is_enlightened = is_windows && spec.accelerator != Accelerator::Tcg;
    if is_enlightened {
        xml.open("hyperv", &[("mode", "custom")]);
        for feature in ["relaxed", "vapic"] {
            xml.leaf(feature, &[("state", "on")]);
        }
        xml.leaf("spinlocks", &[("state", "on"), ("retries", "8191")]);
        for feature in ["vpindex", "runtime", "synic", "stimer", "frequencies"] {
            xml.leaf(feature, &[("state", "on")]);
        }
        xml.close();
    }
    xml.close();
    xml.open("clock", &[("offset", if is_windows { "localtime" } else { "utc" })]);
    xml.leaf("timer", &[("name", "rtc"), ("tickpolicy", "catchup")]);
    xml.leaf("timer", &[("name", "pit"), ("tickpolicy", "delay")]);
    xml.leaf("timer", &[("name", "hpet"), ("present", "no")]);
    if is_enlightened {
        xml.leaf("timer", &[("name", "hypervclock"), ("present", "yes")]);
    }
    xml.close();
    xml.text("on_poweroff", &[], "destroy");
    xml.text("on_reboot", &[], "restart");
    xml.text("on_crash", &[], "destroy");
}

fn write_disks(xml: &mut Xml, spec: &MachineSpec, options: &DomainOptions) {
    let mut placed = Placed::default();
    for (index, disk) in spec.disks.iter().enumerate() {
        write_disk(xml, disk, (spec.cache, options), index, &mut placed);
    }
    if placed.scsi > 0 {
        xml.leaf("controller", &[("type", "scsi"), ("index", "0"), ("model", "virtio-scsi")]);
    }
    for index in 0..placed.sata.div_ceil(SATA_PORTS) {
        xml.leaf("controller", &[("type", "sata"), ("index", &index.to_string())]);
    }
}

/// How many disks of each bus have their place.
#[derive(Default)]
struct Placed {
    virtio: usize,
    scsi: usize,
    sata: usize,
}

fn write_disk(
    xml: &mut Xml,
    disk: &DiskSpec,
    (cache, options): (Cache, &DomainOptions),
    index: usize,
    placed: &mut Placed,
) {
    let (kind, source) = match disk.rbd {
        Some(_) => ("network", ""),
        None if disk.is_device() => ("block", "dev"),
        None => ("file", "file"),
    };
    xml.open("disk", &[("type", kind), ("device", "disk")]);
    let cache_mode = if cache == Cache::Direct { "none" } else { "writeback" };
    let driver = [("name", "qemu"), ("type", disk.format.as_str()), ("cache", cache_mode)];
    let discard = if options.discard { "unmap" } else { "ignore" };
    let io = options.io.unwrap_or(disk.aio(cache));
    match &disk.rbd {
        Some(pool) => {
            xml.leaf("driver", &[&driver[..], &[("discard", discard)]].concat());
            pool.write_source(xml, &disk.path.file_name().unwrap_or_default().to_string_lossy());
        }
        None => {
            xml.leaf("driver", &[&driver[..], &[("io", io), ("discard", discard)]].concat());
            xml.leaf("source", &[(source, &disk.path.to_string_lossy())]);
        }
    }
    let (bus, name, address) = place(disk.bus, placed);
    xml.leaf("target", &[("dev", &name), ("bus", bus)]);
    if let Some(serial) = &disk.serial {
        xml.text("serial", &[], serial);
    }
    xml.leaf("boot", &[("order", &(index + 1).to_string())]);
    if let Some((controller, target, unit)) = address {
        let (controller, target, unit) = (controller.to_string(), target.to_string(), unit.to_string());
        let address =
            [("controller", controller.as_str()), ("bus", "0"), ("target", &target), ("unit", &unit)];
        xml.leaf("address", &[&[("type", "drive")], &address[..]].concat());
    }
    xml.close();
}

/// Bus, device name, and where on which controller. Addresses are given because libvirt would derive them
/// from the name, which SCSI and SATA disks share.
fn place(bus: DiskBus, placed: &mut Placed) -> (&'static str, String, Option<(usize, usize, usize)>) {
    let sd = placed.scsi + placed.sata;
    match bus {
        DiskBus::Virtio => {
            placed.virtio += 1;
            ("virtio", device_name("vd", placed.virtio - 1), None)
        }
        DiskBus::Scsi => {
            placed.scsi += 1;
            ("scsi", device_name("sd", sd), Some((0, placed.scsi - 1, 0)))
        }
        DiskBus::Sata => {
            let index = placed.sata;
            placed.sata += 1;
            ("sata", device_name("sd", sd), Some((index / SATA_PORTS, 0, index % SATA_PORTS)))
        }
    }
}

/// `vda` for 0, `vdz` for 25, `vdaa` for 26: counting in letters, without a zero.
pub(crate) fn device_name(prefix: &str, index: usize) -> String {
    let mut letters = Vec::new();
    let mut left = index + 1;
    while left > 0 {
        letters.push(char::from(b'a' + ((left - 1) % 26) as u8));
        left = (left - 1) / 26;
    }
    letters.iter().rev().fold(prefix.to_string(), |name, letter| name + &letter.to_string())
}

fn write_nic(xml: &mut Xml, nic: &NicSpec) {
    let kind = match &nic.attach {
        NicAttach::Bridge(_) | NicAttach::Ovs { .. } => "bridge",
        NicAttach::Network { .. } => "network",
        NicAttach::Direct(_) => "direct",
        NicAttach::User | NicAttach::None => "user",
    };
    xml.open("interface", &[("type", kind)]);
    xml.leaf("mac", &[("address", &nic.mac)]);
    match &nic.attach {
        NicAttach::Bridge(bridge) => xml.leaf("source", &[("bridge", bridge)]),
        NicAttach::Network { name, portgroup, vlans } => {
            let portgroup = portgroup.iter().map(|name| ("portgroup", name.as_str()));
            xml.leaf(
                "source",
                &[("network", name.as_str())].into_iter().chain(portgroup).collect::<Vec<_>>(),
            );
            write_vlans(xml, vlans);
        }
        NicAttach::Ovs { bridge, vlans } => {
            xml.leaf("source", &[("bridge", bridge)]);
            write_vlans(xml, vlans);
            xml.leaf("virtualport", &[("type", "openvswitch")]);
        }
        NicAttach::Direct(device) => xml.leaf("source", &[("dev", device), ("mode", "bridge")]),
        NicAttach::User | NicAttach::None => {}
    }
    xml.leaf("model", &[("type", nic.model.word())]);
    if nic.attach == NicAttach::None || !nic.is_up {
        xml.leaf("link", &[("state", "down")]);
    }
    // No boot from the network is set up, and the ROM is in a package of its own that may be missing.
    xml.leaf("rom", &[("enabled", "no")]);
    xml.close();
}

fn write_vlans(xml: &mut Xml, vlans: &[u16]) {
    if vlans.is_empty() {
        return;
    }
    let trunk: &[(&str, &str)] = if vlans.len() > 1 { &[("trunk", "yes")] } else { &[] };
    xml.open("vlan", trunk);
    vlans.iter().for_each(|tag| xml.leaf("tag", &[("id", &tag.to_string())]));
    xml.close();
}

fn write_other_devices(xml: &mut Xml, options: &DomainOptions) {
    xml.open("serial", &[("type", "pty")]);
    xml.leaf("target", &[("port", "0")]);
    xml.close();
    xml.open("console", &[("type", "pty")]);
    xml.leaf("target", &[("type", "serial"), ("port", "0")]);
    xml.close();
    // Where a guest agent that is installed listens; without one nothing happens.
    xml.open("channel", &[("type", "unix")]);
    xml.leaf("target", &[("type", "virtio"), ("name", "org.qemu.guest_agent.0")]);
    xml.close();
    // The pointer on the screen is where the guest has it.
    xml.leaf("input", &[("type", "tablet"), ("bus", "usb")]);
    if options.tpm {
        xml.open("tpm", &[("model", "tpm-crb")]);
        xml.leaf("backend", &[("type", "emulator"), ("version", "2.0")]);
        xml.close();
    }
    xml.open("rng", &[("model", "virtio")]);
    xml.text("backend", &[("model", "random")], "/dev/urandom");
    xml.close();
    // A socket, not a port: nobody but libvirt can look at the screen without a password.
    xml.open("graphics", &[("type", "vnc")]);
    xml.leaf("listen", &[("type", "socket")]);
    xml.close();
    xml.open("video", &[]);
    xml.leaf("model", &[("type", "vga")]);
    xml.close();
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Ports of one AHCI controller of q35.
pub(crate) const SATA_PORTS: usize = 6;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::{Path, PathBuf};

    use drover_types::NicModel;

    use super::*;
    use crate::daemon::RbdPool;
    use crate::ovmf::Ovmf;
    use crate::spec::tests::{disk, machine, nic};
    use crate::validate::{Validation, validate_xml};

    fn uefi(secure_boot: bool, with_files: bool) -> MachineFirmware {
        let files =
            with_files.then(|| Ovmf { code: "/fw/CODE.fd".into(), vars_template: "/fw/VARS.fd".into() });
        MachineFirmware::Uefi { secure_boot, files }
    }

    #[test]
    fn device_names_go_on_after_z() {
        for (index, name) in
            [(0, "vda"), (25, "vdz"), (26, "vdaa"), (51, "vdaz"), (52, "vdba"), (701, "vdzz"), (702, "vdaaa")]
        {
            assert_eq!(device_name("vd", index), name);
        }
    }

    #[test]
    fn identity_and_macs_are_kept() {
        let xml = libvirt_xml(&machine(Path::new("/vm")));
        for part in [
            "<name>web01</name>",
            "<uuid>4211a1b2-0000-1111-2222-333344445555</uuid>",
            "<mac address='00:50:56:aa:bb:cc'/>",
            "<topology sockets='1' cores='2' threads='1'/>",
            "<source file='/vm/disk0.raw'/>",
            "<target dev='vda' bus='virtio'/>",
            "<boot order='1'/>",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
    }

    #[test]
    fn a_lun_is_a_block_device_by_its_stable_name() {
        let lun = "/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2026-01.org.example:san-lun-1";
        let mut spec = machine(Path::new("/vm"));
        spec.disks = vec![disk(Path::new(lun), DiskBus::Virtio)];
        let xml = libvirt_xml(&spec);
        let source = format!("<source dev='{lun}'/>");
        assert!(xml.contains("<disk type='block' device='disk'>") && xml.contains(&source), "{xml}");
    }

    #[test]
    fn mixed_buses_share_no_name_and_no_address() {
        let mut spec = machine(Path::new("/vm"));
        let buses = [DiskBus::Scsi, DiskBus::Sata, DiskBus::Virtio];
        spec.disks = (0..60).map(|i| disk(&PathBuf::from(format!("/vm/disk{i}")), buses[i % 3])).collect();
        let xml = libvirt_xml(&spec);
        let lines =
            |tag: &str| xml.lines().filter(|line| line.contains(tag)).map(str::to_string).collect::<Vec<_>>();
        let distinct = |lines: &[String]| lines.iter().collect::<HashSet<_>>().len();
        assert_eq!(distinct(&lines("<target dev=")), 60);
        // One SCSI controller takes its 20 at targets; each SATA controller takes 6 at units.
        let (scsi, sata): (Vec<_>, Vec<_>) =
            lines("<address ").into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        for addresses in [scsi, sata] {
            let addresses: Vec<String> = addresses.into_iter().map(|(_, line)| line).collect();
            assert_eq!((addresses.len(), distinct(&addresses)), (20, 20));
        }
        assert_eq!(lines("<controller type='sata'").len(), 4);
    }

    #[test]
    fn windows_on_kvm_finds_what_it_expects_of_a_hypervisor_and_on_emulation_does_not() {
        let mut spec = machine(Path::new("/vm"));
        (spec.clock, spec.accelerator) = (Clock::LocalTime, Accelerator::Kvm);
        let xml = libvirt_xml(&spec);
        assert!(xml.contains("<stimer state='on'/>") && xml.contains("hypervclock"), "{xml}");
        spec.accelerator = Accelerator::Tcg;
        assert!(!libvirt_xml(&spec).contains("hyperv"));
        spec.clock = Clock::Utc;
        assert!(libvirt_xml(&spec).contains("<clock offset='utc'>"));
    }

    #[test]
    fn nodes_are_few_and_equal_and_no_socket_lies_on_two() {
        let xml = |cpus, cores_per_socket, memory_mib, options: DomainOptions| {
            let spec = MachineSpec { cpus, cores_per_socket, memory_mib, ..machine(Path::new("/vm")) };
            let xml = domain_xml(&spec, &options);
            let is_meant = |line: &&str| line.starts_with("<topology") || line.starts_with("<cell");
            xml.lines().map(str::trim).filter(is_meant).map(str::to_string).collect::<Vec<_>>()
        };
        let nodes = |most| DomainOptions { node_cpus: Some(most), ..DomainOptions::default() };
        assert_eq!(xml(8, 8, 4096, nodes(8)), ["<topology sockets='1' cores='8' threads='1'/>"]);
        let two = [
            "<topology sockets='2' cores='4' threads='1'/>",
            "<cell id='0' cpus='0-3' memory='2097152' unit='KiB'/>",
            "<cell id='1' cpus='4-7' memory='2097152' unit='KiB'/>",
        ];
        assert_eq!(xml(8, 8, 4096, nodes(4)), two);
        assert_eq!(xml(8, 8, 4096, nodes(7)), two, "as few as can be, and equal");
        let huge = DomainOptions { page_bytes: Some(1 << 30), ..nodes(2) };
        let uneven = [
            "<topology sockets='3' cores='1' threads='1'/>",
            "<cell id='0' cpus='0-1' memory='2097152' unit='KiB'/>",
            "<cell id='1' cpus='2' memory='1048576' unit='KiB'/>",
        ];
        assert_eq!(xml(3, 1, 3072, huge), uneven, "whole pages");
    }

    #[test]
    fn a_feature_that_a_common_cpu_has_is_named_once() {
        let features = vec![("aes".into(), "require".into())];
        let model = CpuModel { model: "EPYC".into(), vendor: None, features };
        let cpu_features = vec!["aes".into(), "avx2".into()];
        let options = DomainOptions { model: Some(model), cpu_features, ..DomainOptions::default() };
        let xml = domain_xml(&machine(Path::new("/vm")), &options);
        assert_eq!((xml.matches("'aes'").count(), xml.matches("'avx2'").count()), (1, 1), "{xml}");
        assert!(xml.contains("<model fallback='forbid'>EPYC</model>"), "{xml}");
    }

    #[test]
    fn libvirts_own_schema_accepts_every_kind_of_machine() {
        let mut checked = 0;
        let owner = Owner { plan: "p".into(), vm: "vm-1".into(), instance: "'<&>".into() };
        let told = DomainOptions {
            owner: Some(owner),
            machine: "pc-q35-8.2".into(),
            cpu: Some("EPYC-Rome".into()),
            cpu_features: vec!["pku".into()],
            page_bytes: Some(2 << 20),
            node_cpus: Some(1),
            io: Some("io_uring"),
            discard: false,
            tpm: true,
            ..DomainOptions::default()
        };
        let model = CpuModel {
            model: "EPYC".into(),
            vendor: Some("AMD".into()),
            features: vec![("pku".into(), "require".into()), ("vme".into(), "disable".into())],
        };
        let common = DomainOptions { model: Some(model), cpu: None, ..told.clone() };
        let all = every_kind_of_machine();
        let options = [DomainOptions::default(), told, common];
        for (spec, options) in all.iter().flat_map(|spec| options.iter().map(move |it| (spec, it))) {
            spec.check().unwrap();
            let xml = domain_xml(spec, options);
            match validate_xml(&xml) {
                Validation::Valid => checked += 1,
                Validation::Invalid(why) => panic!("{why}\n{xml}"),
                Validation::NotChecked(why) => return println!("skipped: {why}"),
            }
        }
        println!("{checked} machines checked");
    }

    fn every_kind_of_machine() -> Vec<MachineSpec> {
        let base = machine(Path::new("/vms/it's <a> & \"b\", c"));
        let mut specs = Vec::new();
        for firmware in [
            MachineFirmware::Bios,
            uefi(false, false),
            uefi(true, false),
            uefi(false, true),
            uefi(true, true),
        ] {
            for accelerator in [Accelerator::Auto, Accelerator::Kvm, Accelerator::Tcg] {
                specs.push(MachineSpec { firmware: firmware.clone(), accelerator, ..base.clone() });
            }
        }
        for bus in [DiskBus::Virtio, DiskBus::Scsi, DiskBus::Sata] {
            for count in [0, 1, 7, 30] {
                let mut disks: Vec<DiskSpec> =
                    (0..count).map(|i| disk(&PathBuf::from(format!("/dev/vg/a{i}")), bus)).collect();
                disks.iter_mut().for_each(|disk| disk.serial = Some("drover-0_1.x+y".into()));
                specs.push(MachineSpec { disks, ..base.clone() });
            }
        }
        let in_ceph =
            |rbd| DiskSpec { rbd: Some(rbd), path: "rbd:vms/a-0.raw".into(), ..base.disks[0].clone() };
        let pool = crate::daemon::tests::ceph();
        let open = RbdPool { monitors: Vec::new(), auth: None, ..pool.clone() };
        specs.push(MachineSpec { disks: vec![in_ceph(pool), in_ceph(open)], ..base.clone() });
        let network = |portgroup: Option<&str>, vlans: &[u16]| NicAttach::Network {
            name: "the <lan>".into(),
            portgroup: portgroup.map(str::to_string),
            vlans: vlans.to_vec(),
        };
        let attach = [
            NicAttach::Bridge("br-lan.7".into()),
            NicAttach::User,
            NicAttach::None,
            network(None, &[]),
            network(Some("db"), &[7]),
            NicAttach::Ovs { bridge: "br-int".into(), vlans: vec![10, 42] },
            NicAttach::Direct("eth0.7".into()),
        ];
        let models = [NicModel::Virtio, NicModel::E1000e, NicModel::E1000, NicModel::Vmxnet3];
        let nics: Vec<NicSpec> = attach.iter().flat_map(|a| models.map(|m| nic(a.clone(), m))).collect();
        let unplugged = nics.iter().map(|nic| NicSpec { is_up: false, ..nic.clone() }).collect();
        specs.push(MachineSpec { nics: unplugged, ..base.clone() });
        specs.push(MachineSpec { nics, ..base.clone() });
        specs.push(MachineSpec {
            name: "größe <&'\"> 日本/x".into(),
            title: Some("<script>&amp;".into()),
            description: Some("two\nlines\t\u{1}".into()),
            uuid: None,
            cache: Cache::Buffered,
            clock: Clock::LocalTime,
            cpus: 3,
            cores_per_socket: 0,
            ..base
        });
        specs
    }
}
