//! What becomes of a guest's network settings at the target, where its cards have the same MAC addresses in other places.

use std::fmt;

use drover_types::guest::{Inside, Interface, WindowsAddresses};
use serde::Serialize;

use super::windows::{given, lost, may_be_there, told};
use crate::resolution::{PlannedNic, PlannedVm};

/// What becomes of the settings for one card, or of a card without settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// What finds the card: `ens192`, its MAC address, or its place; absent for settings of any card, and for none.
    pub interface: Option<String>,
    /// Its fixed addresses.
    pub addresses: Vec<String>,
    /// The file that says so; absent for a card without settings.
    pub file: Option<String>,
    /// MAC address of the card; absent where nobody knows which it is.
    pub mac: Option<String>,
    /// Whether they hold at the target.
    pub stays: Stays,
    /// Why.
    pub why: String,
}

/// Whether settings hold at the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stays {
    /// They do.
    ByItself,
    /// If a file in the guest gives the card of this MAC address its old name, as a conversion does.
    IfNamed {
        /// The name.
        name: String,
        /// The MAC address, lower case.
        mac: String,
    },
    /// They do not.
    No,
    /// There are none for this card.
    Unset,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let it = self.interface.as_deref().or(self.mac.as_deref()).unwrap_or("any card");
        write!(f, "{it}")?;
        if !self.addresses.is_empty() {
            write!(f, " with {}", self.addresses.join(", "))?;
        }
        if let Some(file) = &self.file {
            write!(f, " in {file}")?;
        }
        let stays = match &self.stays {
            Stays::ByItself => "holds, ",
            Stays::IfNamed { .. } => "holds if the name is kept, ",
            Stays::No => "does not hold, ",
            Stays::Unset => "",
        };
        write!(f, ": {stays}{}", self.why)
    }
}

/// What becomes of each of a guest's network settings; then cards of the plan that have none, where the guest's files were read.
pub fn fates(vm: &PlannedVm, inside: &Inside) -> Vec<Fate> {
    if vm.nics.is_empty() {
        return Vec::new();
    }
    if let Some(windows) = inside.only_windows() {
        return windows.fixed.iter().map(|it| of_windows(vm, it)).collect();
    }
    let mut found: Vec<Fate> = inside.interfaces.iter().map(|it| fate(vm, inside, it)).collect();
    let takes_any = found.iter().any(|it| it.stays == Stays::ByItself && it.mac.is_none());
    if inside.saw_root() && !takes_any {
        let is_bare = |nic: &&PlannedNic| !found.iter().any(|it| it.mac.as_deref() == Some(nic.mac.as_str()));
        let bare = |nic: &PlannedNic| Fate {
            interface: None,
            addresses: Vec::new(),
            file: None,
            mac: Some(nic.mac.clone()),
            stays: Stays::Unset,
            why: "no settings that are surely its own were found".into(),
        };
        let more: Vec<Fate> = vm.nics.iter().filter(is_bare).map(bare).collect();
        found.extend(more);
    }
    found
}

/// Windows binds addresses to a card, and takes the target's for another.
fn of_windows(vm: &PlannedVm, it: &WindowsAddresses) -> Fate {
    let (stays, why) = match it.mac.as_ref().filter(|_| !may_be_there(vm, it)) {
        Some(mac) => (Stays::No, format!("no card of the plan has the MAC address {mac}")),
        None => match given(vm, it) {
            given if given.is_empty() => (Stays::No, "Windows binds it to the card that it had".into()),
            given if lost(&given, it).is_empty() => {
                (Stays::ByItself, "the conversion gives it to the card".into())
            }
            given => (Stays::No, format!("the conversion gives the card {} alone", told(&given))),
        },
    };
    let (interface, addresses) = (Some(it.name.clone()), it.addresses.clone());
    Fate { interface, addresses, file: None, mac: it.mac.clone(), stays, why }
}

fn fate(vm: &PlannedVm, inside: &Inside, it: &Interface) -> Fate {
    let card = card_of(vm, inside, it);
    let (stays, why) = judged(vm, inside, it, card);
    Fate {
        interface: it.name.clone().or_else(|| it.mac.clone()).or_else(|| it.place.clone()),
        addresses: it.addresses.clone(),
        file: Some(it.file.clone()),
        mac: card.map(|card| card.mac.clone()),
        stays,
        why,
    }
}

fn judged(vm: &PlannedVm, inside: &Inside, it: &Interface, card: Option<&PlannedNic>) -> (Stays, String) {
    let no = |why: String| (Stays::No, why);
    match (it, card) {
        (Interface { mac: Some(mac), .. }, None) => {
            no(format!("no card of the plan has the MAC address {mac}"))
        }
        (Interface { mac: Some(mac), name, is_named, .. }, Some(_)) if *is_named || name.is_none() => {
            (Stays::ByItself, format!("it goes by the MAC address {mac}, which the card keeps"))
        }
        (Interface { place: Some(place), is_named: false, .. }, _) => {
            no(format!("it goes by {place}, which changes"))
        }
        (Interface { name: None, .. }, _) if vm.nics.len() == 1 => {
            (Stays::ByItself, "it takes any card, and there is one".into())
        }
        (Interface { name: None, .. }, _) => no("it takes any card, and there are several".into()),
        (Interface { name: Some(name), .. }, _) if name.contains(['*', '?', '[']) => of_pattern(name),
        (Interface { name: Some(name), .. }, _) if name.starts_with("eth") && inside.keeps_old_names => {
            of_old_names(vm)
        }
        (Interface { name: Some(name), .. }, _) if name.starts_with("eth") && vm.nics.len() > 1 => no(
            format!("cards may have other names here, and {name} cannot be given safely to one of several"),
        ),
        (Interface { name: Some(name), .. }, Some(card)) => {
            let mac = card.mac.to_ascii_lowercase();
            let why = format!("{mac} may have another name here");
            (Stays::IfNamed { name: name.clone(), mac }, why)
        }
        (Interface { name: Some(name), .. }, None) => {
            let macs: Vec<&str> = vm.nics.iter().map(|nic| nic.mac.as_str()).collect();
            no(format!(
                "cards may have other names here, and which of {} is {name} is not known",
                macs.join(", ")
            ))
        }
    }
}

/// systemd calls cards of the target `enpXsY` or `ensX`.
fn of_pattern(pattern: &str) -> (Stays, String) {
    match pattern {
        "*" | "e*" | "en*" => {
            (Stays::ByItself, format!("the target's names are of the pattern {pattern}, too"))
        }
        _ => (Stays::No, format!("the target's names may not be of the pattern {pattern}")),
    }
}

/// `net.ifnames=0`: the kernel counts cards in the order that it finds them, which is here the plan's.
fn of_old_names(vm: &PlannedVm) -> (Stays, String) {
    let places: Vec<Option<Place>> = vm.nics.iter().map(|nic| place(vm, nic)).collect();
    if places.windows(2).all(|pair| !matches!(pair, [Some(one), Some(next)] if one > next)) {
        return (Stays::ByItself, "the kernel counts its cards (net.ifnames=0)".into());
    }
    (Stays::No, "the kernel counts its cards (net.ifnames=0), whose order is another here".into())
}

/// The card that settings are for, where that can be known: by its MAC address, by what VMware's hardware has where, or because
/// there is one card and one name.
fn card_of<'a>(vm: &'a PlannedVm, inside: &Inside, it: &Interface) -> Option<&'a PlannedNic> {
    if let Some(mac) = &it.mac {
        return vm.nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(mac));
    }
    if let Some(place) = it.place.as_deref().and_then(|place| place.strip_prefix("pci-")) {
        return vm.nics.iter().find(|nic| self::place(vm, nic).is_some_and(|it| it.address() == place));
    }
    let name = it.name.as_deref()?;
    let of_slot =
        |nic: &&PlannedNic| slot(vm, nic).is_some_and(|slot| name == format!("ens{}", number(slot)));
    let of_place = |nic: &&PlannedNic| place(vm, nic).is_some_and(|it| name == it.name());
    let by_place = vm.nics.iter().find(|nic| of_slot(nic) || of_place(nic));
    match (vm.nics.as_slice(), inside.interfaces.as_slice()) {
        // Of a card whose slot is known the name is known, too.
        ([card], [_]) if slot(vm, card).is_none() || !name.starts_with("ens") => Some(card),
        _ => by_place,
    }
}

/// Names that Linux may have for the cards whose slots are known, each with the card's MAC address.
pub fn names_of_slots(vm: &PlannedVm) -> Vec<(String, String)> {
    let names = |nic: &PlannedNic| {
        let of_slot = slot(vm, nic).map(|slot| format!("ens{}", number(slot)));
        let names = of_slot.into_iter().chain(place(vm, nic).map(Place::name));
        names.map(|name| (name, nic.mac.to_ascii_lowercase())).collect::<Vec<_>>()
    };
    vm.nics.iter().flat_map(names).collect()
}

fn slot(vm: &PlannedVm, nic: &PlannedNic) -> Option<u32> {
    vm.vm.nics.get(nic.index)?.pci_slot
}

/// What Linux calls a card after (`ens192`) that VMware has in this slot: ten bits of slot, and above them the function of the bridge.
///
/// Source: VMware KB 2047927 ("FFF.BBBBB.DDDDD"); systemd.net-naming-scheme(7), `ens`. No real guest was looked at.
fn number(pci_slot: u32) -> u32 {
    (pci_slot & 1023) + (pci_slot >> 10)
}

/// Where a card is on the buses of VMware's hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    bus: u32,
    device: u32,
}

impl Place {
    fn address(self) -> String {
        format!("0000:{:02x}:{:02x}.0", self.bus, self.device)
    }

    fn name(self) -> String {
        format!("enp{}s{}", self.bus, self.device)
    }
}

/// The first bridge (`pciBridge0`) has bus 2 with 32 devices; from the fifth on, a bridge has eight functions with a bus each.
///
/// Source: as [`number`]; logs of kernels (`vmxnet3 0000:0b:00.0 ens192: renamed from eth0`). No real guest was looked at.
fn place(vm: &PlannedVm, nic: &PlannedNic) -> Option<Place> {
    let slot = slot(vm, nic)?;
    match (slot >> 5 & 31, slot & 31, slot >> 10) {
        (1, device, 0) => Some(Place { bus: 2, device }),
        (bridge @ 5..=8, 0, function @ 0..8) => {
            Some(Place { bus: 3 + (bridge - 5) * 8 + function, device: 0 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use drover_types::guest::FreeSpace;
    use drover_types::inventory::Nic;

    use super::super::tests::planned;
    use super::*;

    const A: &str = "00:50:56:aa:00:01";
    const B: &str = "00:50:56:aa:00:02";
    const C: &str = "00:50:56:aa:00:03";

    /// A VM with these cards.
    fn vm(cards: &[(&str, Option<u32>)]) -> PlannedVm {
        let mut vm = planned();
        let card =
            |(mac, slot): &(&str, Option<u32>)| Nic { mac: (*mac).into(), pci_slot: *slot, ..Nic::default() };
        vm.vm.nics = cards.iter().map(card).collect();
        let one = vm.nics.remove(0);
        let nic = |(index, card): (usize, &Nic)| PlannedNic { index, mac: card.mac.clone(), ..one.clone() };
        vm.nics = vm.vm.nics.iter().enumerate().map(nic).collect();
        vm
    }

    fn named(name: &str) -> Interface {
        Interface { name: Some(name.into()), file: "/f".into(), ..Interface::default() }
    }

    fn with_mac(mac: &str, it: Interface) -> Interface {
        Interface { mac: Some(mac.into()), ..it }
    }

    fn at(place: &str, it: Interface) -> Interface {
        Interface { place: Some(place.into()), ..it }
    }

    fn by_guest(it: Interface) -> Interface {
        Interface { is_named: true, ..it }
    }

    /// `+` what stays, `NAME=MAC` what a file keeps, `-` what does not, each with the reason.
    fn judged(vm: &PlannedVm, interfaces: &[Interface], keeps_old_names: bool) -> Vec<String> {
        let inside = Inside { interfaces: interfaces.to_vec(), keeps_old_names, ..Inside::default() };
        let told = |it: &Fate| match &it.stays {
            Stays::ByItself => format!("+ {}", it.why),
            Stays::IfNamed { name, mac } => format!("{name}={mac}"),
            Stays::No => format!("- {}", it.why),
            Stays::Unset => format!("? {}", it.why),
        };
        fates(vm, &inside).iter().map(told).collect()
    }

    #[test]
    fn each_form_of_settings_is_told_whether_it_holds_and_why() {
        let any = Interface { file: "/f".into(), ..Interface::default() };
        let one = vm(&[(A, None)]);
        let three = vm(&[(A, Some(192)), (B, Some(160)), (C, Some(1184))]);
        let kept = |name: &str, mac: &str| format!("{name}={mac}");
        for (case, vm, interface, old_names, expected) in [
            ("Debian ifupdown, netplan, networkd by name", &one, named("ens192"), false, kept("ens192", A)),
            ("by name, several cards, by slot", &three, named("ens192"), false, kept("ens192", A)),
            ("by name, a function of the bridge", &three, named("ens161"), false, kept("ens161", C)),
            ("by name, by place", &three, named("enp11s0"), false, kept("enp11s0", A)),
            ("by name, the same for a function", &three, named("enp4s0"), false, kept("enp4s0", C)),
            ("by name, no such card", &three, named("ens224"), false, "which of".into()),
            (
                "netplan or keyfile by MAC",
                &three,
                with_mac(B, any.clone()),
                false,
                "+ it goes by the MAC".into(),
            ),
            (
                "the same in capitals",
                &three,
                with_mac(&B.to_uppercase(), any.clone()),
                false,
                "+ it goes by".into(),
            ),
            (
                "by a MAC that is not there",
                &three,
                with_mac("00:50:56:00:00:09", any.clone()),
                false,
                "- no card".into(),
            ),
            (
                "RHEL 7 ifcfg or keyfile, name and MAC",
                &three,
                with_mac(B, named("lan")),
                false,
                kept("lan", B),
            ),
            (
                "SLES, udev's rule by MAC",
                &three,
                by_guest(with_mac(C, named("eth0"))),
                false,
                "+ it goes by".into(),
            ),
            (
                "udev's rule by place",
                &three,
                by_guest(at("pci-0000:0b:00.0", named("lan0"))),
                false,
                kept("lan0", A),
            ),
            (
                "keyfile or networkd by place",
                &three,
                at("pci-0000:0b:00.0", any.clone()),
                false,
                "- it goes by pci-".into(),
            ),
            ("eth0 of several", &three, named("eth0"), false, "- cards may have other names".into()),
            ("netplan by driver", &one, at("vmxnet3", any.clone()), false, "- it goes by vmxnet3".into()),
            ("any card of one", &one, any.clone(), false, "+ it takes any card".into()),
            ("any card of several", &three, any, false, "- it takes any card".into()),
            ("a pattern", &three, named("en*"), false, "+ the target's names".into()),
            ("another pattern", &three, named("ens*"), false, "- the target's names".into()),
            ("eth0 with net.ifnames=0", &one, named("eth0"), true, "+ the kernel counts".into()),
            ("the same, other order", &three, named("eth0"), true, "- the kernel counts".into()),
            ("eth0 of one card", &one, named("eth0"), false, kept("eth0", A)),
        ] {
            let found = judged(vm, &[interface], old_names);
            assert!(found.len() == 1 && found[0].contains(&expected), "{case}: {found:?}");
        }
        assert_eq!(judged(&vm(&[]), &[named("ens192")], false), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_an_earlier_card_had_is_not_given_to_another() {
        let one = vm(&[(A, Some(160))]);
        assert!(judged(&one, &[named("ens192")], false)[0].starts_with('-'));
        let mut two = vm(&[(A, Some(192)), (B, Some(160))]);
        two.nics.remove(0);
        let found = judged(&two, &[named("ens160"), named("ens192")], false);
        assert!(
            found[0] == format!("ens160={B}") && found[1].starts_with('-'),
            "one that the plan leaves out: {found:?}"
        );
    }

    #[test]
    fn a_card_without_settings_is_told_where_the_guests_files_were_read() {
        let two = vm(&[(A, Some(192)), (B, Some(224))]);
        let mut inside = Inside { interfaces: vec![named("ens192")], ..Inside::default() };
        assert_eq!(fates(&two, &inside).len(), 1);
        inside.free.push(FreeSpace { place: "/".into(), bytes: 0 });
        let told = fates(&two, &inside)[1].to_string();
        assert_eq!(told, format!("{B}: no settings that are surely its own were found"));
    }

    #[test]
    fn places_are_those_that_kernels_tell_of_vmwares_hardware() {
        let slots = [32, 33, 160, 1184, 192, 224, 256, 7424];
        let cards: Vec<(&str, Option<u32>)> = slots.iter().map(|slot| (A, Some(*slot))).collect();
        let vm = vm(&cards);
        let found: Vec<String> =
            vm.nics.iter().map(|nic| place(&vm, nic).map_or("none".into(), Place::address)).collect();
        let expected = [
            "0000:02:00.0",
            "0000:02:01.0",
            "0000:03:00.0",
            "0000:04:00.0",
            "0000:0b:00.0",
            "0000:13:00.0",
            "0000:1b:00.0",
            "0000:22:00.0",
        ];
        assert_eq!(found, expected);
        let names: Vec<String> = names_of_slots(&vm).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[2..8], ["ens33", "enp2s1", "ens160", "enp3s0", "ens161", "enp4s0"]);
    }
}
