//! What there is to know about a Windows once its registry was looked into.

use drover_types::guest::{Inside, Windows, WindowsAddresses, WindowsDriver};

use super::Found;
use crate::model::Convert;
use crate::resolution::{PlannedVm, TargetBus};

/// What keeps a Windows from starting from a bus: a driver, and what is wrong with it. Absent where its drivers were not read.
pub fn lacking_windows_driver(windows: &Windows, bus: TargetBus) -> Option<(&'static str, &'static str)> {
    let name = match bus {
        TargetBus::Virtio => "viostor",
        TargetBus::Scsi | TargetBus::Nvme => "vioscsi",
        TargetBus::Sata | TargetBus::Ide => return None,
    };
    let why = match windows.drivers.as_ref()?.iter().find(|driver| driver.name == name) {
        None => "is not installed",
        Some(WindowsDriver { has_file: false, .. }) => "has no file",
        Some(WindowsDriver { starts_at_boot: false, .. }) => "does not start at boot",
        Some(WindowsDriver { starts_at_boot: true, has_file: true, .. }) => return None,
    };
    Some((name, why))
}

/// Whether the plan gives the card of these addresses new ones.
pub(super) fn is_given(vm: &PlannedVm, it: &WindowsAddresses) -> bool {
    vm.first_boot.addresses.iter().any(|given| match &it.mac {
        Some(mac) => given.mac.eq_ignore_ascii_case(mac),
        None => it.addresses.contains(&format!("{}/{}", given.address, given.prefix)),
    })
}

/// Whether a card that Windows knows is one of the plan's, where that can be told: it remembers cards that are there no more.
pub(super) fn may_be_there(vm: &PlannedVm, it: &WindowsAddresses) -> bool {
    it.mac.as_ref().is_none_or(|mac| vm.nics.iter().any(|nic| nic.mac.eq_ignore_ascii_case(mac)))
}

impl Found<'_> {
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
        self.windows_addresses(vm, windows);
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
        let is_named = self.vm.guest_id.to_ascii_lowercase().starts_with("win");
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
            "correct the guest OS at the source: the clock of the target's VM and the conversion follow it";
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

    fn windows_addresses(&mut self, vm: &PlannedVm, windows: &Windows) {
        // VMware Tools told them already.
        if vm.concerns.iter().any(|it| it.id == "fixed-addresses") {
            return;
        }
        for it in windows.fixed.iter().filter(|it| may_be_there(vm, it) && !is_given(vm, it)) {
            let what = format!(
                "{} has fixed addresses ({}), which stay with its old card",
                it.name,
                it.addresses.join(", ")
            );
            let dns = it.gateway.iter().flat_map(|_| &it.dns);
            let words: Vec<&str> =
                it.addresses.iter().take(1).chain(&it.gateway).chain(dns).map(String::as_str).collect();
            let mac = it.mac.as_deref().unwrap_or("the card's MAC address");
            let advice = format!(
                "write `addresses: {{\"{mac}\": \"{}\"}}`, or set them anew at the target",
                words.join(" ")
            );
            self.add("fixed-addresses", None, what, advice);
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::Nic;

    use super::super::tests::planned;
    use super::super::{concerns_inside, fates};
    use super::*;
    use crate::StaticAddress;

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
        let told = concerns_inside(&vm, &bare).remove(0);
        assert_eq!(
            (told.id.as_str(), told.advice.as_str()),
            ("windows-without-driver", "it is converted with virt-v2v-in-place")
        );
        vm.disks[0].bus = TargetBus::Sata;
        assert_eq!(ids(&vm, &bare), Vec::<String>::new());
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
            gateway: Some("192.0.2.1".into()),
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
             `addresses: {\"00:50:56:aa:bb:cc\": \"192.0.2.7/24 192.0.2.1 192.0.2.53\"}`, or set them anew at the target)"
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
        vm.first_boot.addresses.push(StaticAddress {
            mac: card.to_uppercase(),
            address: "192.0.2.7".parse().unwrap(),
            prefix: 24,
            gateway: None,
            dns: Vec::new(),
        });
        for mac in [Some(card), None] {
            let (concern, fate) = told(&vm, mac);
            assert!(
                concern.is_none() && fate.ends_with("holds, the conversion gives it to the card"),
                "{fate}"
            );
        }
    }
}
