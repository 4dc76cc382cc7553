#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use drover_plan::{Plan, StaticAddress, resolve};
use drover_types::guest::{Initramfs, Route, Windows, WindowsAddresses, WindowsDriver};
use drover_types::inventory::{Inventory, PowerState, Vm, VmDisk};

use super::*;

/// A VM of this guest id whose disk goes to virtio.
pub(crate) fn planned(guest_id: &str) -> PlannedVm {
    let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\ntarget: {type: qemu, folder: \
                /vms}\nvms: [{name: one}]\n";
    let vm = Vm {
        id: "vm-1".into(),
        name: "one".into(),
        instance_uuid: "uuid-one".into(),
        guest_id: guest_id.into(),
        power: PowerState::Off,
        disks: vec![VmDisk { capacity_bytes: 1 << 30, ..VmDisk::default() }],
        ..Vm::default()
    };
    let inventory = Inventory { vms: vec![vm], ..Inventory::default() };
    resolve(&Plan::parse(text).unwrap(), &inventory).vms.remove(0)
}

/// What a disk holds that has a Windows with these drivers.
fn windows(drivers: &[&str]) -> Inside {
    let driver = |name: &&str| WindowsDriver { name: name.to_string(), starts_at_boot: true, has_file: true };
    let drivers = Some(drivers.iter().map(driver).collect());
    let windows = Windows { build: Some(17_763), is_server: true, drivers, ..Windows::default() };
    Inside { ntfs: true, windows: Some(windows), ..Inside::default() }
}

fn linux() -> Inside {
    let initramfs = Initramfs { virtio_blk: true, virtio_pci: true, ..Initramfs::default() };
    let free = vec![drover_types::guest::FreeSpace { place: "/".into(), bytes: 1 << 40 }];
    Inside { initramfs: Some(initramfs), free, ..Inside::default() }
}

/// A place whose images hold this, and which may lack something for Windows.
struct Fake {
    inside: Inside,
    lack: Option<&'static str>,
}

impl Place for Fake {
    fn boot_bus(&self) -> DiskBus {
        DiskBus::Virtio
    }

    fn is_converted(&self) -> Result<bool, ProviderError> {
        Ok(false)
    }

    fn look_inside(&self) -> Option<Inside> {
        Some(self.inside.clone())
    }

    fn lack_for(&self, _: GuestKind<'_>) -> Result<Option<String>, ProviderError> {
        Ok(self.lack.map(str::to_string))
    }

    fn can_customize(&self) -> Result<(), String> {
        Ok(())
    }

    fn convert(&self, guest: &SourceGuest) -> Result<ConvertOutcome, ProviderError> {
        let what = format!("converted as Windows: {}", guest.is_windows);
        Ok(ConvertOutcome::Converted { log: what.into(), warnings: Vec::new(), kept: Vec::new() })
    }
}

fn told_by(inside: Inside, lack: Option<&'static str>, guest_id: &str) -> Result<String, String> {
    match convert(&Fake { inside, lack }, &planned(guest_id)) {
        Ok(Converted::Done { told, .. }) => Ok(told),
        Ok(Converted::Skipped(why)) => Ok(format!("skipped: {why}")),
        Err(error) => Err(chain(&error)),
    }
}

#[test]
fn a_windows_that_nobody_knew_of_is_not_given_to_a_converter_that_lacks_its_drivers() {
    let lack = Some("virtio-win is not installed");
    let ready = told_by(windows(&["viostor"]), lack, "otherGuest64").unwrap();
    assert!(ready.starts_with("skipped: ") && ready.ends_with("BUT virtio-win is not installed"), "{ready}");
    let bare = told_by(windows(&[]), lack, "otherGuest64").unwrap_err();
    assert!(bare.contains("but virtio-win is not installed"), "{bare}");
    let done = told_by(windows(&[]), None, "otherGuest64").unwrap();
    assert_eq!(done, "converted as Windows: true");
}

#[test]
fn what_was_found_counts_before_the_guest_id() {
    let told = told_by(linux(), None, "windows9_64Guest").unwrap();
    assert!(told.starts_with("skipped: its ") && told.ends_with("has the driver of its disks"), "{told}");
    let found = |guest_id: &str, found| PlannedVm { found, ..planned(guest_id) };
    let is_due = |vm: &PlannedVm| is_due(vm, DiskBus::Virtio);
    let newer = Some(FoundSystem::Windows { build: Some(17_763), is_server: true, has_netkvm: false });
    let old = found("winNetStandardGuest", newer);
    let version = WindowsVersion { build: Some(17_763), is_server: true };
    assert_eq!(kind_of(&old, old.found), GuestKind::FoundWindows(version));
    assert!(is_due(&old), "it is a Windows");
    let linux = found("winNetStandardGuest", Some(FoundSystem::Linux));
    assert_eq!(kind_of(&linux, linux.found), GuestKind::Other);
    assert!(!is_due(&linux) && is_due(&found("winNetStandardGuest", None)));
    assert!(is_due(&PlannedVm { convert: Convert::Always, ..linux }));
    let unknown = found("windows9_64Guest", None);
    assert_eq!(kind_of(&unknown, None), GuestKind::Windows { guest_id: "windows9_64Guest" });
}

/// What an agent says of itself that takes this.
fn info(takes: &[&str]) -> Announced {
    let takes = takes.iter().map(|it| it.to_string()).collect();
    Announced { version: String::new(), pools: Vec::new(), devices: Vec::new(), takes, load: None }
}

#[test]
fn a_site_is_asked_for_what_a_windows_wants_that_was_found() {
    let vm = planned("otherGuest64");
    let due = DueInside::of(&vm, DiskBus::Virtio, &windows(&[])).unwrap();
    let lack = |can: &[&str], bus| due.lack_at("b", &info(can), bus).map(|lack| lack.what);
    assert!(lack(&[], DiskBus::Virtio).unwrap().contains("converts no guests"));
    let none = "the host of b lacks what a converter puts into Windows for this disk bus";
    assert_eq!(lack(&[CONVERT], DiskBus::Virtio).as_deref(), Some(none));
    assert_eq!(lack(&[CONVERT, CONVERT_WINDOWS], DiskBus::Virtio), None);
    assert_eq!(lack(&[CONVERT, CONVERT_WINDOWS], DiskBus::Scsi).as_deref(), Some(none));
    let bare = Inside { initramfs: Some(Initramfs::default()), ..Inside::default() };
    let due = DueInside::of(&vm, DiskBus::Virtio, &bare).unwrap();
    assert!(due.lack_at("b", &info(&[CONVERT]), DiskBus::Virtio).is_none(), "Linux wants nothing more");
}

/// A Windows whose card keeps what VMware Tools told, and what a look into it finds by now.
fn keeping() -> (PlannedVm, Inside) {
    let mac = "00:50:56:aa:00:01";
    let told = StaticAddress {
        mac: mac.into(),
        address: Ipv4Addr::new(192, 0, 2, 7).into(),
        prefix: 24,
        gateway: None,
        dns: Vec::new(),
        kept: true,
    };
    let mut vm = planned("windows2019srv_64Guest");
    vm.first_boot.addresses = vec![told];
    vm.convert = Convert::Always;
    let mut inside = windows(&[]);
    let found = inside.windows.as_mut().unwrap();
    found.fixed = vec![WindowsAddresses {
        mac: Some(mac.into()),
        addresses: vec!["192.0.2.8/24".into(), "192.0.2.9/24".into()],
        ..WindowsAddresses::default()
    }];
    let (network, gateway) = (Ipv4Addr::new(10, 1, 0, 0).into(), Ipv4Addr::new(192, 0, 2, 254).into());
    found.routes = vec![Route { network, prefix: 16, gateway, metric: None }];
    (vm, inside)
}

#[test]
fn windows_keeps_what_its_registry_holds_when_it_is_converted() {
    let (vm, inside) = keeping();
    let Converted::Done { told, left } = convert(&Fake { inside, lack: None }, &vm).unwrap() else {
        panic!("skipped")
    };
    let given = "; 00:50:56:aa:00:01 gets at its first boot: 192.0.2.8/24, 192.0.2.9/24, 1 route";
    assert!(told.ends_with(given), "{told}");
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn what_a_card_is_not_given_is_told_after_the_conversion() {
    let (vm, mut inside) = keeping();
    let windows = inside.windows.as_mut().unwrap();
    windows.routes[0].gateway = Ipv4Addr::new(192, 0, 3, 254).into();
    let done = |inside| match convert(&Fake { inside, lack: None }, &vm).unwrap() {
        Converted::Done { left, .. } => left,
        Converted::Skipped(why) => panic!("skipped: {why}"),
    };
    let told = done(inside.clone());
    let begin = "one: route 10.1.0.0/16 by 192.0.3.254 is set at no card: none that is given addresses has a network with 192.0.3.254; give the";
    assert!(told.len() == 1 && told[0].starts_with(begin), "{told:?}");
    assert!(
        told[0].contains("netsh interface ipv4 add route 10.1.0.0/16 \"NAME OF THE CARD\" 192.0.3.254"),
        "{told:?}"
    );
    let windows = inside.windows.as_mut().unwrap();
    (windows.fixed, windows.routes, windows.by_dhcp) = (vec![], vec![], vec!["00:50:56:aa:00:01".into()]);
    let told = done(inside.clone());
    assert!(
        told.len() == 1
            && told[0].starts_with("one: the card 00:50:56:aa:00:01 asks for its address (DHCP) by now"),
        "{told:?}"
    );
    // Without a look nothing is known of routes, and a Linux has none of Windows.
    inside.windows = None;
    assert_eq!(done(inside), Vec::<String>::new());
}

#[test]
fn a_script_of_drovers_own_goes_to_an_agent_before_those_of_the_plan() {
    let (vm, _) = keeping();
    let guest = source_guest(&vm, Names::default(), first_boot(&vm, cards(&vm, None).settings));
    let (told, files) = for_peer(&guest, &vm).unwrap();
    let script = guest.first_boot.cards_script().unwrap().into_bytes();
    assert_eq!(
        (told.scripts[0].name.as_str(), told.scripts[0].bytes),
        ("addresses.bat", script.len() as u64)
    );
    assert_eq!(files, [script]);
    let refused = |can: &[&str]| check_first_boot_at("b", &info(can), &vm).err().map(|error| chain(&error));
    assert!(refused(&[CONVERT_WRITE]).unwrap().contains("takes no files for it"));
    assert_eq!(refused(&[CONVERT_WRITE, CONVERT_FILES]), None);
}
