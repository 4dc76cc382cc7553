//! Machines of all kinds, held against what a true daemon makes of them. None is started.

use std::path::{Path, PathBuf};

use drover_qemu::{
    Accelerator, Cache, Clock, DiskBus, DiskSpec, DomainOptions, ImageFormat, MachineFirmware, MachineSpec,
    NicAttach, NicSpec, VmFolder, domain_xml,
};
use drover_types::NicModel;

use drover_stage::domain_xml::differences;
use drover_stage::landing::Landing;

fn machine(name: &str, folder: &Path) -> MachineSpec {
    MachineSpec {
        folder: VmFolder::new(folder),
        name: name.into(),
        uuid: None,
        title: None,
        description: None,
        firmware: MachineFirmware::Bios,
        cpus: 2,
        cores_per_socket: 2,
        memory_mib: 64,
        clock: Clock::Utc,
        disks: Vec::new(),
        cache: Cache::Direct,
        nics: Vec::new(),
        accelerator: Accelerator::Tcg,
    }
}

fn nics(attach: &[NicAttach], models: &[NicModel]) -> Vec<NicSpec> {
    let pairs = attach.iter().flat_map(|attach| models.iter().map(move |model| (attach, model)));
    let nic = |(at, (attach, model)): (usize, (&NicAttach, &NicModel))| NicSpec {
        mac: format!("52:54:00:aa:00:{at:02x}"),
        attach: attach.clone(),
        is_up: at % 2 == 0,
        model: *model,
    };
    pairs.enumerate().map(nic).collect()
}

fn disks(folder: &Path, bus: DiskBus, count: usize) -> Vec<DiskSpec> {
    let disk = |at: usize| DiskSpec {
        path: PathBuf::from(folder).join(format!("disk{at}.raw")),
        rbd: None,
        format: if at.is_multiple_of(2) { ImageFormat::Raw } else { ImageFormat::Qcow2 },
        bus,
        capacity_bytes: 1 << 20,
        serial: Some(format!("serial-{at}")),
    };
    (0..count).map(disk).collect()
}

#[test]
fn a_daemon_takes_every_kind_of_card_and_bus_as_it_is_asked_for() {
    let Some(landing) = Landing::new(218, |_| Vec::new()) else { return };
    let folder = landing.folder.path();
    let network = |portgroup: Option<&str>, vlans: &[u16]| NicAttach::Network {
        name: "lan".into(),
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
    let base = |name| machine(name, folder);
    let plain = DomainOptions::default;
    let all = [
        (MachineSpec { nics: nics(&attach, &models[..1]), ..base("attached") }, plain()),
        (MachineSpec { nics: nics(&attach[..1], &models), ..base("models") }, plain()),
        (MachineSpec { disks: disks(folder, DiskBus::Sata, 7), ..base("sata") }, plain()),
        (MachineSpec { disks: disks(folder, DiskBus::Scsi, 9), ..base("scsi") }, plain()),
        (MachineSpec { disks: disks(folder, DiskBus::Virtio, 9), ..base("virtio") }, plain()),
        (base("nodes"), DomainOptions { node_cpus: Some(1), page_bytes: Some(2 << 20), ..plain() }),
        (MachineSpec { clock: Clock::LocalTime, ..base("windows") }, plain()),
    ];
    for (spec, options) in &all {
        let asked = domain_xml(spec, options);
        let file = folder.join("asked.xml");
        std::fs::write(&file, &asked).unwrap();
        landing.hosts.virsh("a", &["define", file.to_str().unwrap()]).unwrap();
        let xml = landing.xml("a", &spec.name);
        assert_eq!(differences(&asked, &xml), Vec::<String>::new(), "{}: {xml}", spec.name);
        landing.hosts.virsh("a", &["undefine", &spec.name]).unwrap();
    }
    assert_eq!(landing.all_of("a"), Vec::<String>::new());
}
