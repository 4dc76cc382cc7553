//! What there is to know about a Windows, by its guest id and VMware Tools, and once its registry was looked into.

use drover_types::guest::{Inside, Windows, WindowsAddresses, WindowsDriver};
use drover_types::inventory::Nic;

use super::{Concern, ConcernContext, Found};
use crate::cards::{cards, how_to_set, why_left_out};
use crate::model::{Convert, DiskBusChoice, StaticAddress};
use crate::resolution::{PlannedVm, TargetBus};

/// What keeps a Windows from starting from a bus: a driver, and what is wrong with it. Absent where its drivers were not read.
pub fn lacking_windows_driver(windows: &Windows, bus: TargetBus) -> Option<(&'static str, &'static str)> {
    let name = match bus {
        TargetBus::Virtio => "viostor",
        TargetBus::Scsi | TargetBus::Nvme => "vioscsi",
        TargetBus::Sata | TargetBus::Ide => return None,
    };
    Some((name, lack_of(windows.drivers.as_ref()?, name, true)?))
}

/// What keeps a Windows from using a network card of virtio. Absent where its drivers were not read.
fn lacking_network_driver(windows: &Windows) -> Option<&'static str> {
    // It is started when its card is found.
    lack_of(windows.drivers.as_ref()?, "netkvm", false)
}

fn lack_of(drivers: &[WindowsDriver], name: &str, has_to_start_at_boot: bool) -> Option<&'static str> {
    match drivers.iter().find(|driver| driver.name == name) {
        None => Some("is not installed"),
        Some(WindowsDriver { has_file: false, .. }) => Some("has no file"),
        Some(WindowsDriver { starts_at_boot, .. }) => {
            (has_to_start_at_boot && !starts_at_boot).then_some("does not start at boot")
        }
    }
}

/// What the plan gives the card of these addresses.
pub(super) fn given<'a>(vm: &'a PlannedVm, it: &WindowsAddresses) -> Vec<&'a StaticAddress> {
    let all = &vm.first_boot.addresses;
    let by_address = || all.iter().find(|given| it.addresses.contains(&given.with_prefix()));
    let mac = it.mac.as_ref().or_else(|| by_address().map(|given| &given.mac));
    all.iter().filter(|given| mac.is_some_and(|mac| given.mac.eq_ignore_ascii_case(mac))).collect()
}

/// Which of its addresses a card is not given, and keeps neither.
pub(super) fn lost<'a>(given: &[&StaticAddress], it: &'a WindowsAddresses) -> Vec<&'a str> {
    // What it keeps is read from the registry once more.
    let keeps = it.mac.is_some() && given.iter().any(|it| it.kept);
    if keeps { Vec::new() } else { not_given(given, &it.addresses) }
}

fn not_given<'a>(given: &[&StaticAddress], addresses: &'a [String]) -> Vec<&'a str> {
    let is_given = |it: &&String| given.iter().any(|given| given.with_prefix() == **it);
    addresses.iter().filter(|it| !is_given(it)).map(String::as_str).collect()
}

/// Addresses as people are told them.
pub(super) fn told(given: &[&StaticAddress]) -> String {
    given.iter().map(|it| it.with_prefix()).collect::<Vec<_>>().join(", ")
}

/// Whether a card that Windows knows is one of the plan's, where that can be told: it remembers cards that are there no more.
pub(super) fn may_be_there(vm: &PlannedVm, it: &WindowsAddresses) -> bool {
    it.mac.as_ref().is_none_or(|mac| vm.nics.iter().any(|nic| nic.mac.eq_ignore_ascii_case(mac)))
}

impl Found<'_> {
    /// What the guest id and VMware Tools tell.
    pub(super) fn by_guest_id(&mut self, context: &ConcernContext) {
        if !self.vm.is_windows_by_id() {
            return;
        }
        let (mut unkept, vm) = (Vec::new(), self.vm);
        for nic in &vm.nics {
            let addresses = addresses_of(nic);
            let is_its = |it: &&StaticAddress| it.mac.eq_ignore_ascii_case(&nic.mac);
            let given: Vec<_> = context.given_addresses.iter().filter(is_its).collect();
            let lost = not_given(&given, &addresses);
            match given.is_empty() {
                true => unkept.extend(lost.into_iter().map(str::to_string)),
                false if lost.is_empty() => {}
                false => self.other_addresses(&nic.label, &given, &lost),
            }
        }
        if !unkept.is_empty() {
            let what = format!("has fixed addresses ({}), which stay with its old card", unkept.join(", "));
            let advice = "write `keep_addresses: true`, or set them anew at the target";
            self.add("fixed-addresses", None, what, advice);
        }
        if !matches!(context.disk_bus, Some(DiskBusChoice::Sata | DiskBusChoice::Keep)) {
            let advice = match context.convert {
                Some(Convert::Never) => "let it be converted (`convert: auto`), or use `disk_bus: sata`",
                _ => "it is converted with virt-v2v-in-place, if that is installed",
            };
            let what = "has a guest id of Windows, which comes without virtio drivers";
            self.add("needs-drivers", None, what, advice);
        }
    }

    /// A card has more addresses than those that it is given.
    fn other_addresses(&mut self, card: &str, given: &[&StaticAddress], lost: &[&str]) {
        let what =
            format!("is given {} and loses its other fixed addresses ({})", told(given), lost.join(", "));
        self.add(
            "fixed-addresses",
            Some(card),
            what,
            "add them to its `addresses`, or set them at the target",
        );
    }

    pub(super) fn windows(&mut self, vm: &PlannedVm, inside: &Inside) {
        self.guest_id(inside);
        if !inside.dirty.is_empty() {
            let what = format!("has an NTFS that Windows wants checked: {}", inside.dirty.join(", "));
            let advice = "run `chkdsk /f` on it and restart Windows before the cutover; a conversion refuses such a disk";
            self.add("ntfs-dirty", None, what, advice);
        }
        let Some(windows) = inside.only_windows() else { return };
        if windows.is_hibernated {
            let advice = "start it and shut it down completely before the cutover (`powercfg /h off`, then `shutdown /s /t 0`); \
                          a conversion refuses it";
            self.add("hibernated", None, "is hibernated, or was shut down for a fast start", advice);
        }
        self.windows_driver(vm, windows);
        self.network_driver(vm, windows);
        self.windows_addresses(vm, windows);
        self.routes(vm, windows);
        if windows.is_domain_controller {
            let advice = "move it cold with the others running, never start the source again once the copy ran, and do not go back to \
                          an old copy of it";
            self.add("domain-controller", None, "is a domain controller", advice);
        }
        if windows.is_cluster_node {
            let advice = "drain it and stop its cluster service before the cutover; its shared disks are not moved with it";
            self.add("cluster-node", None, "is a node of a failover cluster of Windows", advice);
        }
        if windows.waits_for_restart {
            let advice =
                "restart it before the cutover; otherwise the update ends at its first boot at the target";
            self.add("restart-pending", None, "waits for a restart to end an update", advice);
        }
    }

    fn guest_id(&mut self, inside: &Inside) {
        let is_named = self.vm.is_windows_by_id();
        let is_other = match inside.only_windows() {
            Some(_) => !is_named,
            None => is_named && inside.saw_root(),
        };
        if !is_other {
            return;
        }
        let system = inside.system.as_deref().unwrap_or("another system");
        let what = format!("holds {system}, and its guest id {} says otherwise", self.vm.guest_id);
        let advice =
            "correct the guest OS at the source; here its clock and its conversion go by what was found";
        self.add("guest-id-differs", None, what, advice);
    }

    fn windows_driver(&mut self, vm: &PlannedVm, windows: &Windows) {
        let Some(disk) = vm.disks.get(windows.disk) else { return };
        let Some((driver, why)) = lacking_windows_driver(windows, disk.bus) else { return };
        let what = format!("its driver {driver} {why}, so Windows would stop with INACCESSIBLE_BOOT_DEVICE");
        let advice = match vm.convert {
            Convert::Never => {
                "let it be converted (`convert: auto`), use `disk_bus: sata`, or install virtio-win in it before the move"
            }
            Convert::Auto | Convert::Always => "it is converted with virt-v2v-in-place",
        };
        self.add("windows-without-driver", None, what, advice);
    }

    fn network_driver(&mut self, vm: &PlannedVm, windows: &Windows) {
        let Some(why) = lacking_network_driver(windows) else { return };
        if !vm.nics.iter().any(|nic| vm.has_virtio(nic)) {
            return;
        }
        let what = format!("its driver netkvm {why}, so Windows would have no network by its virtio card");
        self.add(NO_NETWORK_DRIVER, None, what, how_to_drive(vm));
    }

    /// What becomes of its routes when it boots with new cards.
    fn routes(&mut self, vm: &PlannedVm, windows: &Windows) {
        let cards = cards(vm, Some(windows));
        for route in &cards.left_out {
            self.add("route-without-card", None, why_left_out(route), how_to_set(route));
        }
        for several in &cards.of_several {
            let advice = "if that is the wrong one, set it anew in the guest after the move";
            self.add("route-of-several-cards", None, several.to_string(), advice);
        }
    }

    fn windows_addresses(&mut self, vm: &PlannedVm, windows: &Windows) {
        // What VMware Tools told was said by the guest id.
        let has_said = vm.concerns.iter().any(|it| it.id == "fixed-addresses");
        let said: Vec<String> = vm.vm.nics.iter().filter(|_| has_said).flat_map(addresses_of).collect();
        for it in windows.fixed.iter().filter(|it| may_be_there(vm, it)) {
            let given = given(vm, it);
            let lost = lost(&given, it);
            if lost.iter().all(|lost| said.iter().any(|it| it == lost)) {
                continue;
            }
            match given.is_empty() {
                false => self.other_addresses(&it.name, &given, &lost),
                true => {
                    let what = format!(
                        "{} has fixed addresses ({}), which stay with its old card",
                        it.name,
                        it.addresses.join(", ")
                    );
                    self.add("fixed-addresses", None, what, how_to_give(vm, it));
                }
            }
        }
    }
}

/// Cards of virtio that a Windows gets, by its guest id, and has no driver for unless it has one already: nobody looked.
pub(crate) fn unlooked_network_driver(vm: &PlannedVm) -> Option<Concern> {
    let is_due = vm.is_windows() && !vm.gets_drivers() && vm.nics.iter().any(|nic| vm.has_virtio(nic));
    let mut found = Found { vm: &vm.vm, list: Vec::new() };
    if is_due {
        let what = "its guest id names Windows, which comes without netkvm, the driver of its virtio card: without it there is no network";
        found.add(NO_NETWORK_DRIVER, None, what, how_to_drive(vm));
    }
    found.list.pop()
}

/// The concern of a Windows whose card has no driver.
pub const NO_NETWORK_DRIVER: &str = "windows-without-network-driver";

/// What gives a Windows a card that it drives.
fn how_to_drive(vm: &PlannedVm) -> &'static str {
    match vm.convert {
        Convert::Never => {
            "let it be converted (`convert: auto`), use `nic_model: e1000e`, or install virtio-win in it before the move"
        }
        // It boots, and is left as it is.
        Convert::Auto if vm.boots_from_sata() => {
            "write `convert: always`, use `nic_model: e1000e`, or install virtio-win in it before the move"
        }
        Convert::Auto | Convert::Always => "it is converted with virt-v2v-in-place",
    }
}

/// Fixed addresses of a card that VMware Tools tell.
fn addresses_of(nic: &Nic) -> Vec<String> {
    nic.fixed.iter().flat_map(|it| &it.addresses).map(|(ip, bits)| format!("{ip}/{bits}")).collect()
}

/// The line of a plan that gives a card its addresses, and what else has to be so that the plan is taken.
fn how_to_give(vm: &PlannedVm, it: &WindowsAddresses) -> String {
    let mut words: Vec<&str> = Vec::new();
    for (index, address) in it.addresses.iter().enumerate() {
        let gateway = it.gateways.get(index);
        let dns = gateway.iter().filter(|_| index == 0).flat_map(|_| &it.dns);
        words.extend([address].into_iter().chain(gateway).chain(dns).map(String::as_str));
    }
    let mac = it.mac.as_deref().unwrap_or("the card's MAC address");
    let before = match vm.vm.may_be_windows() {
        true => "",
        false => "correct the guest OS at the source, and ",
    };
    let convert = match vm.convert {
        Convert::Never => " with `convert: auto`",
        Convert::Auto | Convert::Always => "",
    };
    let line = format!("`addresses: {{\"{mac}\": \"{}\"}}`", words.join(" "));
    format!("{before}write {line}{convert}, or set them anew at the target")
}

#[cfg(test)]
mod tests {
    use drover_types::NicModel;
    use drover_types::guest::FoundSystem;

    use super::super::tests::planned;
    use super::super::{concerns_inside, fates};
    use super::*;
    use crate::StaticAddress;
    use crate::model::NicChoice;

    fn driver(name: &str, starts_at_boot: bool, has_file: bool) -> WindowsDriver {
        WindowsDriver { name: name.into(), starts_at_boot, has_file }
    }

    fn holding(windows: Windows) -> Inside {
        Inside {
            windows: Some(windows),
            system: Some("Windows Server 2019 Standard".into()),
            ..Inside::default()
        }
    }

    /// A VM that vSphere calls Windows.
    fn vm() -> PlannedVm {
        let mut vm = planned();
        vm.vm.guest_id = "windows2019srv_64Guest".into();
        vm
    }

    fn ids(vm: &PlannedVm, inside: &Inside) -> Vec<String> {
        concerns_inside(vm, inside).into_iter().map(|concern| concern.id).collect()
    }

    #[test]
    fn a_driver_is_needed_for_the_bus_that_the_disk_goes_to_with_its_file_and_at_boot() {
        let lacks = |drivers: &[WindowsDriver], bus| {
            let windows = Windows { drivers: Some(drivers.to_vec()), ..Windows::default() };
            lacking_windows_driver(&windows, bus)
        };
        let ready = [driver("viostor", true, true)];
        assert_eq!(lacks(&ready, TargetBus::Virtio), None);
        assert_eq!(lacks(&ready, TargetBus::Scsi), Some(("vioscsi", "is not installed")));
        assert_eq!(lacks(&[], TargetBus::Sata), None);
        assert_eq!(
            lacks(&[driver("viostor", true, false)], TargetBus::Virtio),
            Some(("viostor", "has no file"))
        );
        let late = [driver("viostor", false, true)];
        assert_eq!(lacks(&late, TargetBus::Virtio), Some(("viostor", "does not start at boot")));
        assert_eq!(lacking_windows_driver(&Windows::default(), TargetBus::Virtio), None, "nobody looked");
        let (mut vm, bare) = (vm(), holding(Windows { drivers: Some(vec![]), ..Windows::default() }));
        vm.nics.clear();
        let told = concerns_inside(&vm, &bare).remove(0);
        assert_eq!(
            (told.id.as_str(), told.advice.as_str()),
            ("windows-without-driver", "it is converted with virt-v2v-in-place")
        );
        vm.disks[0].bus = TargetBus::Sata;
        assert_eq!(ids(&vm, &bare), Vec::<String>::new());
    }

    #[test]
    fn a_card_of_virtio_wants_its_driver_whenever_that_starts() {
        let told = |vm: &PlannedVm, drivers: &[WindowsDriver]| {
            let disks = [driver("viostor", true, true), driver("vioscsi", true, true)];
            let drivers = Some([&disks[..], drivers].concat());
            let inside = holding(Windows { drivers, ..Windows::default() });
            let found = concerns_inside(vm, &inside);
            assert!(found.iter().all(|it| it.id == "windows-without-network-driver"), "{found:?}");
            found.into_iter().map(|it| format!("{} ({})", it.message, it.advice)).next()
        };
        let (mut vm, lacks) = (vm(), [driver("netkvm", false, false)]);
        assert_eq!(told(&vm, &[driver("netkvm", false, true)]), None);
        let none = "its driver netkvm is not installed, so Windows would have no network by its virtio card";
        assert_eq!(told(&vm, &[]), Some(format!("{none} (it is converted with virt-v2v-in-place)")));
        assert!(told(&vm, &lacks).unwrap().contains("netkvm has no file"));
        vm.disks[0].bus = TargetBus::Sata;
        assert_eq!(told(&vm, &[]), None, "one that boots is left alone, and gets a card that it drives");
        vm.nic_model = NicChoice::Virtio;
        assert!(told(&vm, &[]).unwrap().contains("(write `convert: always`, use `nic_model: e1000e`, or"));
        vm.convert = Convert::Never;
        assert!(told(&vm, &[]).unwrap().contains("(let it be converted"));
        vm.nic_model = NicChoice::Auto;
        assert_eq!(told(&vm, &[]), None);
        // QEMU has VMware's cards, and KubeVirt has not.
        (vm.nic_model, vm.nics[0].model) = (NicChoice::Keep, "vmxnet3".into());
        assert_eq!(told(&vm, &[]), None);
        vm.site = Some("kubevirt:vms".into());
        assert!(told(&vm, &[]).is_some());
        vm.nics[0].model = "e1000e".into();
        assert_eq!(told(&vm, &[]), None);
    }

    #[test]
    fn a_card_of_virtio_that_nobody_looked_for_a_driver_of_is_told_by_the_guest_id() {
        let told = |nic_model: &str, convert: &str, disk_bus: &str, guest_id: &str| -> Vec<String> {
            let text = format!(
                "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\ntarget: {{type: qemu, folder: /vms, \
                 nic_model: {nic_model}, disk_bus: {disk_bus}}}\nconvert: {convert}\nnetworks: {{\"*\": user}}\nvms: [{{name: web01}}]\n"
            );
            let vm = drover_types::inventory::Vm { guest_id: guest_id.into(), ..planned().vm };
            let inventory = drover_types::inventory::Inventory { vms: vec![vm], ..Default::default() };
            let vm = crate::resolve(&crate::Plan::parse(&text).unwrap(), &inventory).vms.remove(0);
            let of_cards = vm.concerns.iter().filter(|it| it.id == NO_NETWORK_DRIVER);
            of_cards.map(|it| it.advice.clone()).collect()
        };
        let (windows, linux) = ("windows2019srv_64Guest", "debian12_64Guest");
        let never = told("virtio", "never", "sata", windows);
        assert!(never.len() == 1 && never[0].starts_with("let it be converted"), "{never:?}");
        assert!(told("virtio", "auto", "sata", windows)[0].starts_with("write `convert: always`"));
        for [nic_model, convert, disk_bus, guest_id] in [
            ["virtio", "auto", "virtio", windows],
            ["virtio", "always", "sata", windows],
            ["auto", "never", "sata", windows],
            ["e1000e", "never", "sata", windows],
            ["virtio", "never", "sata", linux],
        ] {
            assert_eq!(
                told(nic_model, convert, disk_bus, guest_id),
                Vec::<String>::new(),
                "{nic_model} {convert} {disk_bus}"
            );
        }
    }

    #[test]
    fn a_card_is_one_that_the_guest_drives() {
        let model = |vm: &PlannedVm| vm.nic_model_of(&vm.nics[0]);
        let found = |has_netkvm| Some(FoundSystem::Windows { build: None, is_server: true, has_netkvm });
        let (mut linux, mut vm) = (planned(), vm());
        (linux.nics[0].model, vm.nics[0].model) = ("vmxnet3".into(), "vmxnet3".into());
        assert_eq!(model(&linux), NicModel::Virtio);
        assert_eq!(model(&vm), NicModel::Virtio, "its conversion puts the driver in");
        vm.convert = Convert::Never;
        assert_eq!(model(&vm), NicModel::E1000e);
        vm.found = found(true);
        assert_eq!(model(&vm), NicModel::Virtio);
        vm.found = found(false);
        assert_eq!(model(&vm), NicModel::E1000e);
        vm.nics[0].model = "e1000".into();
        assert_eq!(model(&vm), NicModel::E1000);
        (vm.convert, vm.disks[0].bus) = (Convert::Auto, TargetBus::Sata);
        assert_eq!(model(&vm), NicModel::E1000);
        vm.convert = Convert::Always;
        assert_eq!(model(&vm), NicModel::Virtio);
        vm.nic_model = NicChoice::E1000e;
        assert_eq!((model(&vm), vm.has_virtio(&vm.nics[0])), (NicModel::E1000e, false));
        vm.found = Some(FoundSystem::Linux);
        (vm.nic_model, vm.convert) = (NicChoice::Auto, Convert::Never);
        assert_eq!(model(&vm), NicModel::Virtio, "whatever its guest id says");
        for (id, wanted) in
            [("freebsd12_64Guest", NicModel::E1000), ("other3xLinux64Guest", NicModel::Virtio)]
        {
            (linux.vm.guest_id, linux.nics[0].model) = (id.into(), "e1000".into());
            assert_eq!(model(&linux), wanted, "{id}");
        }
    }

    #[test]
    fn a_guest_id_is_held_against_what_the_disks_hold() {
        let (windows, mut linux) = (holding(Windows::default()), Inside::default());
        linux.free.push(drover_types::guest::FreeSpace { place: "/".into(), bytes: 1 << 40 });
        let differs =
            |vm: &PlannedVm, inside: &Inside| ids(vm, inside).contains(&"guest-id-differs".to_string());
        assert!(!differs(&vm(), &windows) && differs(&planned(), &windows));
        assert!(differs(&vm(), &linux) && !differs(&planned(), &linux));
        // Both: a Linux beside which a Windows lies is judged as a Linux.
        let both = Inside { windows: windows.windows.clone(), ..linux };
        assert!(differs(&vm(), &both) && !differs(&planned(), &both));
        assert!(!differs(&vm(), &Inside::default()), "nobody knows");
    }

    #[test]
    fn fixed_addresses_are_told_for_cards_that_are_there_and_get_none() {
        let it = |mac: Option<&str>| WindowsAddresses {
            name: "Ethernet0".into(),
            mac: mac.map(str::to_string),
            addresses: vec!["192.0.2.7/24".into(), "192.0.2.8/24".into()],
            gateways: vec!["192.0.2.1".into()],
            dns: vec!["192.0.2.53".into()],
        };
        let inside = |mac: Option<&str>| holding(Windows { fixed: vec![it(mac)], ..Windows::default() });
        let card = "00:50:56:aa:bb:cc";
        let told = |vm: &PlannedVm, mac: Option<&str>| {
            let found = concerns_inside(vm, &inside(mac)).into_iter().find(|it| it.id == "fixed-addresses");
            (found, fates(vm, &inside(mac)).remove(0).to_string())
        };
        let mut vm = vm();
        vm.vm.nics = vec![Nic { mac: card.into(), ..Nic::default() }];
        let (concern, fate) = told(&vm, Some(card));
        assert_eq!(
            concern.unwrap().to_string(),
            "web01: Ethernet0 has fixed addresses (192.0.2.7/24, 192.0.2.8/24), which stay with its old card (write \
             `addresses: {\"00:50:56:aa:bb:cc\": \"192.0.2.7/24 192.0.2.1 192.0.2.53 192.0.2.8/24\"}`, or set them anew at the target)"
        );
        assert_eq!(
            fate,
            "Ethernet0 with 192.0.2.7/24, 192.0.2.8/24: does not hold, Windows binds it to the card that it had"
        );
        assert!(told(&vm, None).0.is_some_and(|it| it.advice.contains("the card's MAC address")));
        let (concern, fate) = told(&vm, Some("00:50:56:00:00:01"));
        assert!(
            concern.is_none() && fate.ends_with("no card of the plan has the MAC address 00:50:56:00:00:01")
        );
        let given = StaticAddress::parse(card, "192.0.2.7/24").unwrap().remove(0);
        vm.first_boot.addresses.push(StaticAddress { mac: card.to_uppercase(), ..given });
        for mac in [Some(card), None] {
            let (concern, fate) = told(&vm, mac);
            assert_eq!(
                concern.unwrap().to_string(),
                "web01/Ethernet0: is given 192.0.2.7/24 and loses its other fixed addresses (192.0.2.8/24) (add them to its \
                 `addresses`, or set them at the target)"
            );
            assert!(
                fate.ends_with("does not hold, the conversion gives the card 192.0.2.7/24 alone"),
                "{fate}"
            );
        }
        // What it is given is none of what it has.
        vm.first_boot.addresses[0].address = "192.0.2.9".parse().unwrap();
        let (concern, fate) = told(&vm, Some(card));
        assert!(concern.unwrap().message.contains("(192.0.2.7/24, 192.0.2.8/24)"));
        assert!(fate.ends_with("does not hold, the conversion gives the card 192.0.2.9/24 alone"), "{fate}");
        // What it keeps is read once more; what it is given has to be all that it has.
        vm.first_boot.addresses[0].kept = true;
        assert!(told(&vm, Some(card)).0.is_none() && told(&vm, None).0.is_some());
        vm.first_boot.addresses = StaticAddress::parse(card, "192.0.2.7/24 192.0.2.8/24").unwrap();
        for mac in [Some(card), None] {
            let (concern, fate) = told(&vm, mac);
            assert!(
                concern.is_none() && fate.ends_with("holds, the conversion gives it to the card"),
                "{fate}"
            );
        }
    }

    #[test]
    fn the_line_for_a_plan_is_one_that_plans_take() {
        let card = "00:50:56:aa:bb:cc";
        let addresses = WindowsAddresses {
            name: "Ethernet0".into(),
            mac: Some(card.into()),
            addresses: vec!["192.0.2.7/24".into()],
            ..WindowsAddresses::default()
        };
        let inside = holding(Windows { fixed: vec![addresses], ..Windows::default() });
        let advice = |vm: &PlannedVm| {
            let found = concerns_inside(vm, &inside).into_iter().find(|it| it.id == "fixed-addresses");
            found.unwrap().advice
        };
        let mut vm = planned();
        for (id, begins) in [
            ("windows2019srv_64Guest", "write `addresses"),
            ("otherGuest64", "write `addresses"),
            ("otherLinux64Guest", "correct the guest OS at the source, and write `addresses"),
            ("debian12_64Guest", "correct the guest OS at the source, and write `addresses"),
        ] {
            vm.vm.guest_id = id.into();
            assert!(advice(&vm).starts_with(begins), "{id}: {}", advice(&vm));
        }
        vm.convert = Convert::Never;
        assert!(advice(&vm).contains(" with `convert: auto`"));
        // What VMware Tools told of one card hides nothing of another.
        let said = super::super::Concern {
            id: "fixed-addresses".into(),
            severity: crate::Weight::Warning,
            subject: String::new(),
            message: String::new(),
            advice: String::new(),
        };
        vm.concerns.push(said);
        assert!(advice(&vm).contains("192.0.2.7/24"));
        let fixed = drover_types::inventory::FixedAddresses {
            addresses: vec![("192.0.2.7".parse().unwrap(), 24)],
            ..Default::default()
        };
        vm.vm.nics[0].fixed = Some(fixed);
        assert!(!ids(&vm, &inside).contains(&"fixed-addresses".to_string()), "that was said");
    }
}
