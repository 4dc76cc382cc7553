use std::collections::BTreeMap;
use std::fmt::{self, Write};

use drover_plan::{Concern, Weight};
use drover_types::Bytes;
use drover_types::inventory::{
    DiskBus, DiskMode, Firmware, Host, Inventory, PowerPolicy, PowerState, RdmMode, Vm, VmDisk,
};
use serde_json::{Value, json};

use crate::filter::LISTED_MAX;
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clean, count};

/// Concerns of each VM, by the VM's id.
type Concerns = BTreeMap<String, Vec<Concern>>;

/// What a provider has, as tables: VMs, their disks and NICs if `details` are wanted, hosts,
/// datastores, networks; then what there is to know before VMs move, the worst first; and sums. `all` are the VMs that the
/// provider has, of which the inventory may hold some.
pub fn inventory_text(inventory: &Inventory, concerns: &Concerns, details: bool, all: usize) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_inventory(&mut text, inventory, concerns, details, all);
    text
}

/// What a provider has, and the concerns of each VM by its id, as JSON.
pub fn inventory_json(inventory: &Inventory, concerns: &Concerns) -> Value {
    match serde_json::to_value(inventory) {
        Ok(mut value) => {
            value["concerns"] = json!(concerns);
            value
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn write_inventory(
    text: &mut String,
    inventory: &Inventory,
    concerns: &Concerns,
    details: bool,
    all: usize,
) -> fmt::Result {
    let about = &inventory.about;
    let build =
        if about.build.is_empty() { String::new() } else { format!(", build {}", clean(&about.build)) };
    writeln!(text, "{} {}{build}", clean(&about.product), clean(&about.version))?;
    let vms = match inventory.templates {
        0 => count(inventory.vms.len(), "VM"),
        left => format!("{}; {} left out", count(inventory.vms.len(), "VM"), count(left, "template")),
    };
    let sections = [
        (vms, vm_table(inventory, concerns)),
        ("Disks".into(), if details { disk_table(inventory) } else { Table::new(&[]) }),
        ("NICs".into(), if details { nic_table(inventory) } else { Table::new(&[]) }),
        (count(inventory.hosts.len(), "host"), host_table(inventory)),
        (count(inventory.datastores.len(), "datastore"), datastore_table(inventory)),
        (count(inventory.networks.len(), "network"), network_table(inventory)),
    ];
    for (title, table) in sections.iter().filter(|(_, table)| !table.is_empty()) {
        write!(text, "\n{title}\n{table}")?;
        match table.left_out().join(", ") {
            names if names.is_empty() => {}
            names => writeln!(text, "  left out: {names} (a wider terminal, a pipe or --json has them)")?,
        }
    }
    if inventory.vms.is_empty() {
        writeln!(text, "\nno VMs; if there should be some, look at what this user may see")?;
    }
    let most = if inventory.vms.len() == all && all > LISTED_MAX { SUBJECTS_MAX } else { usize::MAX };
    write_concerns(text, concerns, most)?;
    write_sums(text, inventory, all)
}

/// Of a large provider, what is named for one concern.
const SUBJECTS_MAX: usize = 5;

/// `300 VMs (250 on, 50 off) of 3000, 540 disks of 12 TiB`.
fn write_sums(text: &mut String, inventory: &Inventory, all: usize) -> fmt::Result {
    let vms = &inventory.vms;
    if vms.is_empty() {
        return Ok(());
    }
    let states = [PowerState::On, PowerState::Off, PowerState::Suspended, PowerState::Unknown];
    let part = |state: &PowerState| {
        let number = vms.iter().filter(|vm| vm.power == *state).count();
        let word = if *state == PowerState::Unknown { "unknown" } else { power(*state) };
        (number > 0).then(|| format!("{number} {word}"))
    };
    let parts: Vec<String> = states.iter().filter_map(part).collect();
    let disks = || vms.iter().flat_map(|vm| &vm.disks);
    let bytes = disks().fold(0u64, |sum, disk| sum.saturating_add(disk.capacity_bytes));
    let of = if vms.len() == all { String::new() } else { format!(" of {all}") };
    let (vms, disks) = (count(vms.len(), "VM"), count(disks().count(), "disk"));
    writeln!(text, "\n{vms} ({}){of}, {disks} of {}", parts.join(", "), Bytes(bytes))
}

fn vm_table(inventory: &Inventory, concerns: &Concerns) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("VM", Left),
        ("FOLDER", Left),
        ("POWER", Left),
        ("HOST", Left),
        ("FIRMWARE", Left),
        ("CPUS", Right),
        ("MEMORY", Right),
        ("DISKS", Right),
        ("SIZE", Right),
        ("CBT", Left),
        ("NICS", Right),
        ("CONCERNS", Left),
    ])
    .indented(2)
    .without_on_terminal(&["FOLDER", "NICS", "FIRMWARE", "CPUS", "MEMORY", "CBT"]);
    for vm in &inventory.vms {
        let size = vm.disks.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.capacity_bytes));
        table.row([
            vm.name.clone(),
            vm.folder.clone(),
            power(vm.power).into(),
            inventory.host(&vm.host_id).map_or(vm.host_id.clone(), |host| host.name.clone()),
            firmware(vm).into(),
            vm.cpus.to_string(),
            Bytes(vm.memory_mib.saturating_mul(1 << 20)).to_string(),
            vm.disks.len().to_string(),
            Bytes(size).to_string(),
            yes(vm.change_tracking).into(),
            vm.nics.len().to_string(),
            worst(concerns.get(&vm.id).map_or(&[], Vec::as_slice)),
        ]);
    }
    table
}

fn disk_table(inventory: &Inventory) -> Table {
    let mut table = Table::new(&[
        ("DISK", Align::Left),
        ("SIZE", Align::Right),
        ("THIN", Align::Left),
        ("BUS", Align::Left),
        ("CBT", Align::Left),
        ("REMARKS", Align::Left),
        ("FILE", Align::Left),
    ])
    .indented(2)
    .without_on_terminal(&["THIN"]);
    for (vm, disk) in inventory.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        table.row([
            format!("{}/{}", vm.name, disk.label),
            Bytes(disk.capacity_bytes).to_string(),
            disk.thin.map_or(UNKNOWN, yes).into(),
            format!("{} {}:{}", bus(disk.bus), disk.address.0, disk.address.1),
            yes(disk.change_id.is_some()).into(),
            remarks(disk),
            disk.path.clone(),
        ]);
    }
    table
}

fn nic_table(inventory: &Inventory) -> Table {
    let columns = ["NIC", "MAC", "MODEL", "CONNECTED", "NETWORK"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns).indented(2).without_on_terminal(&[]);
    for (vm, nic) in inventory.vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm, nic))) {
        table.row([
            format!("{}/{}", vm.name, nic.label),
            nic.mac.clone(),
            nic.model.clone(),
            yes(nic.connected).into(),
            nic.network.clone(),
        ]);
    }
    table
}

fn host_table(inventory: &Inventory) -> Table {
    let columns = [
        ("HOST", Align::Left),
        ("VMS", Align::Right),
        ("POWER POLICY", Align::Left),
        ("FASTEST NIC", Align::Right),
        ("ADDRESSES", Align::Left),
    ];
    let mut table = Table::new(&columns).indented(2).without_on_terminal(&[]);
    for host in &inventory.hosts {
        let vms = inventory.vms.iter().filter(|vm| vm.host_id == host.id).count();
        let fastest = host.physical_nics.iter().filter_map(|nic| nic.link_mbps).max();
        table.row([
            host.name.clone(),
            vms.to_string(),
            host.power_policy.map_or(UNKNOWN, policy).into(),
            fastest.map_or(UNKNOWN.into(), link),
            addresses(host),
        ]);
    }
    table
}

fn datastore_table(inventory: &Inventory) -> Table {
    let columns =
        [("DATASTORE", Align::Left), ("SIZE", Align::Right), ("FREE", Align::Right), ("VMS", Align::Right)];
    let mut table = Table::new(&columns).indented(2).without_on_terminal(&[]);
    for store in &inventory.datastores {
        let uses = |vm: &&Vm| vm.disks.iter().any(|disk| disk.datastore == store.name);
        table.row([
            store.name.clone(),
            Bytes(store.capacity_bytes).to_string(),
            Bytes(store.free_bytes).to_string(),
            inventory.vms.iter().filter(uses).count().to_string(),
        ]);
    }
    table
}

fn network_table(inventory: &Inventory) -> Table {
    let mut table = Table::new(&[("NETWORK", Align::Left), ("VMS", Align::Right)]).indented(2);
    for network in &inventory.networks {
        let uses = |vm: &&Vm| vm.nics.iter().any(|nic| nic.network == network.name);
        table.row([network.name.clone(), inventory.vms.iter().filter(uses).count().to_string()]);
    }
    table
}

/// By weight, then by id and advice, so that what holds for many VMs is said once.
fn write_concerns(text: &mut String, concerns: &Concerns, most: usize) -> fmt::Result {
    let mut groups: BTreeMap<(Weight, &str, &str), Vec<&Concern>> = BTreeMap::new();
    for concern in concerns.values().flatten() {
        groups.entry((concern.severity, &concern.id, &concern.advice)).or_default().push(concern);
    }
    for weight in [Weight::Blocks, Weight::Warning, Weight::Info] {
        let of_weight = || groups.iter().filter(|((it, ..), _)| *it == weight);
        if of_weight().next().is_none() {
            continue;
        }
        let has_some = |of_vm: &&Vec<Concern>| of_vm.iter().any(|it| it.severity == weight);
        let vms = count(concerns.values().filter(has_some).count(), "VM");
        writeln!(text, "\n{} ({vms})", weight_title(weight))?;
        of_weight().try_for_each(|((_, id, advice), group)| write_group(text, id, advice, group, most))?;
    }
    Ok(())
}

fn write_group(text: &mut String, id: &str, advice: &str, group: &[&Concern], most: usize) -> fmt::Result {
    writeln!(text, "  {}", clean(id))?;
    let mut sorted: Vec<_> = group.iter().map(|it| (clean(&it.subject), clean(&it.message))).collect();
    sorted.sort();
    sorted.iter().take(most).try_for_each(|(subject, message)| writeln!(text, "    {subject}: {message}"))?;
    if sorted.len() > most {
        writeln!(text, "    and {} more (all by --vm '*', --json or --csv)", sorted.len() - most)?;
    }
    if advice.is_empty() { Ok(()) } else { writeln!(text, "    try: {}", clean(advice)) }
}

pub(crate) fn weight_title(weight: Weight) -> &'static str {
    match weight {
        Weight::Blocks => "Cannot be moved as it is",
        Weight::Warning => "Warnings",
        Weight::Info => "Good to know",
    }
}

/// `blocks: 1, warnings: 2`, for the column.
fn worst(concerns: &[Concern]) -> String {
    let number = |weight| concerns.iter().filter(|concern| concern.severity == weight).count();
    let counts = [
        (number(Weight::Blocks), "block"),
        (number(Weight::Warning), "warning"),
        (number(Weight::Info), "note"),
    ];
    match counts.into_iter().find(|(number, _)| *number > 0) {
        None => "none".into(),
        Some((number, word)) => count(number, word),
    }
}

fn remarks(disk: &VmDisk) -> String {
    let mode = match disk.mode {
        DiskMode::Persistent => None,
        DiskMode::IndependentPersistent => Some("independent"),
        DiskMode::IndependentNonpersistent => Some("independent, nonpersistent"),
    };
    let rdm = disk.rdm.map(|mode| match mode {
        RdmMode::Physical => "physical RDM",
        RdmMode::Virtual => "virtual RDM",
    });
    let flag = |set: bool, word: &'static str| set.then_some(word);
    let all = [
        mode,
        rdm,
        flag(disk.shared, "shared"),
        flag(disk.encrypted, "encrypted"),
        flag(disk.has_parent, "delta"),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn addresses(host: &Host) -> String {
    let one = |address: &drover_types::inventory::HostAddress| match address.services.join(" ") {
        services if services.is_empty() => format!("{} {}", address.device, address.address),
        services => format!("{} {} ({services})", address.device, address.address),
    };
    host.addresses.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn link(mbps: u32) -> String {
    if mbps >= 1000 && mbps.is_multiple_of(1000) {
        format!("{} Gbit/s", mbps / 1000)
    } else {
        format!("{mbps} Mbit/s")
    }
}

pub(crate) fn yes(set: bool) -> &'static str {
    if set { "yes" } else { "no" }
}

pub(crate) fn power(state: PowerState) -> &'static str {
    match state {
        PowerState::On => "on",
        PowerState::Off => "off",
        PowerState::Suspended => "suspended",
        PowerState::Unknown => UNKNOWN,
    }
}

pub(crate) fn firmware(vm: &Vm) -> &'static str {
    match (vm.firmware, vm.secure_boot) {
        (None, _) => UNKNOWN,
        (Some(Firmware::Bios), _) => "BIOS",
        (Some(Firmware::Uefi), false) => "UEFI",
        (Some(Firmware::Uefi), true) => "UEFI secure",
    }
}

fn policy(policy: PowerPolicy) -> &'static str {
    match policy {
        PowerPolicy::HighPerformance => "high performance",
        PowerPolicy::Balanced => "balanced",
        PowerPolicy::LowPower => "low power",
        PowerPolicy::Custom => "custom",
    }
}

fn bus(bus: DiskBus) -> &'static str {
    match bus {
        DiskBus::Scsi => "SCSI",
        DiskBus::Sata => "SATA",
        DiskBus::Nvme => "NVMe",
        DiskBus::Ide => "IDE",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use drover_types::inventory::{About, Datastore, HostAddress, Network, Nic, PhysicalNic};

    use super::*;

    pub(crate) fn sample() -> (Inventory, Concerns) {
        let disk = |label: &str, rdm| VmDisk {
            label: label.into(),
            capacity_bytes: 20 << 30,
            thin: Some(true),
            datastore: "ds1".into(),
            path: "[ds1] web01/web01.vmdk".into(),
            rdm,
            ..VmDisk::default()
        };
        let web = Vm {
            id: "vm-1".into(),
            name: "web01".into(),
            folder: "prod/web".into(),
            host_id: "host-1".into(),
            power: PowerState::On,
            firmware: Some(Firmware::Uefi),
            cpus: 4,
            memory_mib: 8192,
            change_tracking: true,
            disks: vec![disk("Hard disk 1", None), disk("Hard disk 2", Some(RdmMode::Physical))],
            nics: vec![Nic { label: "Network adapter 1".into(), network: "LAN".into(), ..Nic::default() }],
            ..Vm::default()
        };
        let bare = Vm {
            id: "vm-2".into(),
            name: "\u{1b}[2Jbare".into(),
            host_id: "gone".into(),
            power: PowerState::Off,
            ..Vm::default()
        };
        let host = Host {
            id: "host-1".into(),
            name: "esx1".into(),
            cluster: Some("old".into()),
            power_policy: Some(PowerPolicy::Balanced),
            physical_nics: vec![PhysicalNic { device: "vmnic0".into(), link_mbps: Some(10_000) }],
            addresses: vec![HostAddress {
                device: "vmk1".into(),
                address: "10.0.0.1".into(),
                services: vec!["vSphereBackupNFC".into()],
            }],
            thumbprint: None,
        };
        let concern = |id: &str, severity, subject: &str| Concern {
            id: id.into(),
            severity,
            subject: subject.into(),
            message: "is so".into(),
            advice: "change it".into(),
        };
        let concerns = BTreeMap::from([
            (
                "vm-1".to_string(),
                vec![
                    concern("rdm-physical", Weight::Blocks, "web01/Hard disk 2"),
                    concern("cbt-off", Weight::Info, "web01"),
                ],
            ),
            ("vm-2".to_string(), vec![concern("cbt-off", Weight::Info, "bare")]),
        ]);
        let inventory = Inventory {
            about: About {
                product: "VMware vCenter Server".into(),
                version: "8.0.2".into(),
                ..About::default()
            },
            hosts: vec![host],
            datastores: vec![Datastore {
                name: "ds1".into(),
                capacity_bytes: 1 << 40,
                free_bytes: 1 << 39,
                ..Datastore::default()
            }],
            networks: vec![Network { name: "LAN".into(), ..Network::default() }],
            vms: vec![web, bare],
            ..Inventory::default()
        };
        (inventory, concerns)
    }

    #[test]
    fn an_inventory_is_tables_and_then_concerns_by_weight() {
        let (inventory, concerns) = sample();
        assert_eq!(
            inventory_text(&inventory, &concerns, false, 2),
            "\
VMware vCenter Server 8.0.2

2 VMs
  VM        FOLDER    POWER  HOST  FIRMWARE  CPUS  MEMORY  DISKS    SIZE  CBT  NICS  CONCERNS
  web01     prod/web  on     esx1  UEFI         4   8 GiB      2  40 GiB  yes     1  1 block
  \u{fffd}[2Jbare            off    gone  --           0     0 B      0     0 B  no      0  1 note

1 host
  HOST  VMS  POWER POLICY  FASTEST NIC  ADDRESSES
  esx1    1  balanced        10 Gbit/s  vmk1 10.0.0.1 (vSphereBackupNFC)

1 datastore
  DATASTORE   SIZE     FREE  VMS
  ds1        1 TiB  512 GiB    1

1 network
  NETWORK  VMS
  LAN        1

Cannot be moved as it is (1 VM)
  rdm-physical
    web01/Hard disk 2: is so
    try: change it

Good to know (2 VMs)
  cbt-off
    bare: is so
    web01: is so
    try: change it

2 VMs (1 on, 1 off), 2 disks of 40 GiB
"
        );
    }

    #[test]
    fn of_a_large_provider_a_few_are_named_for_a_concern_and_of_a_part_all() {
        let (mut inventory, concerns) = sample();
        let vm = inventory.vms[0].clone();
        inventory.vms = (0..100).map(|at| Vm { id: format!("vm-{at}"), ..vm.clone() }).collect();
        let concern = concerns["vm-2"][0].clone();
        let of = |at: usize| Concern { subject: format!("web{at:03}"), ..concern.clone() };
        let concerns: Concerns = (0..100).map(|at| (format!("vm-{at}"), vec![of(at)])).collect();
        let text = inventory_text(&inventory, &concerns, false, 100);
        assert!(
            text.contains("    web004: is so\n    and 95 more (all by --vm '*', --json or --csv)\n    try:"),
            "{text}"
        );
        assert!(text.ends_with("\n100 VMs (100 on), 200 disks of 3.9 TiB\n"), "{text}");
        let part = inventory_text(&inventory, &concerns, false, 3000);
        assert!(part.contains("web099: is so") && part.contains("\n100 VMs (100 on) of 3000, "), "{part}");
    }

    #[test]
    fn details_are_disks_and_nics() {
        let (inventory, concerns) = sample();
        let text = inventory_text(&inventory, &concerns, true, 2);
        assert!(
            text.contains(
                "web01/Hard disk 2  20 GiB  yes   SCSI 0:0  no   physical RDM  [ds1] web01/web01.vmdk"
            ),
            "{text}"
        );
        assert!(text.contains("web01/Network adapter 1"), "{text}");
    }

    #[test]
    fn nothing_is_said_of_an_empty_provider_but_that() {
        let text = inventory_text(&Inventory::default(), &BTreeMap::new(), true, 0);
        assert!(text.contains("no VMs"), "{text}");
        assert!(inventory_json(&Inventory::default(), &BTreeMap::new())["concerns"].is_object());
    }
}
