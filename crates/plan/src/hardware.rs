//! Hardware that a VM was given after its plan was checked: its owner may change it as long as it has not moved over.

use drover_types::count;
use drover_types::inventory::{Firmware, Nic, Vm};

use crate::model::{NetworkTarget, StaticAddress};
use crate::resolution::{PlannedNic, PlannedVm};

/// What was found, in words.
#[derive(Default)]
struct Found {
    taken: Vec<String>,
    refused: Vec<String>,
}

impl PlannedVm {
    /// Takes over the memory, CPUs and network cards that the VM has now. Gives a line about each thing that is another than before.
    ///
    /// # Errors
    /// A line about each thing that needs another look at the plan: firmware, and cards of which it is not known where they lead. Then
    /// nothing is taken over.
    pub fn take_hardware(&mut self, now: &Vm) -> Result<Vec<String>, Vec<String>> {
        // Every VM has memory: of this one nothing is told.
        if now.memory_mib == 0 && self.vm.memory_mib > 0 {
            return Ok(Vec::new());
        }
        let mut found = Found::default();
        self.compare_firmware(now, &mut found);
        let cards = self.cards_of(now, &mut found);
        let addresses = self.addresses_of(&cards);
        let cards: Vec<(Nic, PlannedNic)> =
            cards.into_iter().map(|(_, nic, planned)| (nic, planned)).collect();
        let Found { mut taken, refused } = found;
        if !refused.is_empty() {
            return Err(refused);
        }
        // What is not told is 0.
        let is_new = |now: u32, was: u32| now > 0 && now != was;
        if now.memory_mib != self.vm.memory_mib {
            taken.push(format!("its memory is {} MiB and was {} MiB", now.memory_mib, self.vm.memory_mib));
            self.vm.memory_mib = now.memory_mib;
        }
        if is_new(now.cpus, self.vm.cpus) {
            taken.push(format!("it has {} and had {}", count(now.cpus as usize, "CPU"), self.vm.cpus));
            self.vm.cpus = now.cpus;
        }
        if is_new(now.cores_per_socket, self.vm.cores_per_socket) {
            let (is, was) = (count(now.cores_per_socket as usize, "core"), self.vm.cores_per_socket);
            taken.push(format!("it has {is} in a socket and had {was}"));
            self.vm.cores_per_socket = now.cores_per_socket;
        }
        if !taken.is_empty() {
            (self.vm.nics, self.nics) = cards.into_iter().unzip();
            self.first_boot.addresses = addresses;
        }
        Ok(taken)
    }

    fn compare_firmware(&self, now: &Vm, found: &mut Found) {
        // Where it is not told the machine gets a BIOS.
        let was = self.vm.firmware.unwrap_or(Firmware::Bios);
        let is = now.firmware.unwrap_or(was);
        let word = |firmware| if firmware == Firmware::Uefi { "UEFI" } else { "BIOS" };
        if is != was {
            found.refused.push(format!("its firmware is {} and was {}", word(is), word(was)));
        } else if is == Firmware::Uefi && now.secure_boot != self.vm.secure_boot {
            let word = |on| if on { "on" } else { "off" };
            let (is, was) = (word(now.secure_boot), word(self.vm.secure_boot));
            found.refused.push(format!("secure boot is {is} and was {was}"));
        }
        if now.vtpm != self.vm.vtpm {
            let word = if now.vtpm { "added" } else { "removed" };
            found.refused.push(format!("a virtual TPM was {word}"));
        }
    }

    /// The cards of now, each with the place that it had before, if it was there.
    fn cards_of(&self, now: &Vm, found: &mut Found) -> Vec<(Option<usize>, Nic, PlannedNic)> {
        let mut gone: Vec<usize> = (0..self.vm.nics.len()).collect();
        let mut before: Vec<Option<usize>> = vec![None; now.nics.len()];
        // A card is known by its MAC address, and by its label if that is another.
        for by_mac in [true, false] {
            for (nic, place) in now.nics.iter().zip(&mut before).filter(|(_, place)| place.is_none()) {
                let is_it = |was: &Nic| match by_mac {
                    true => was.mac.eq_ignore_ascii_case(&nic.mac),
                    false => was.label == nic.label,
                };
                let at = gone.iter().position(|at| is_it(&self.vm.nics[*at]));
                *place = at.map(|at| gone.remove(at));
            }
        }
        for was in gone.iter().map(|at| &self.vm.nics[*at]) {
            let (label, mac) = (&was.label, &was.mac);
            match self.is_given_address(was) {
                true => {
                    found.refused.push(format!("{label} was removed, and the plan gives {mac} an address"))
                }
                false => found.taken.push(format!("{label} ({mac}) was removed")),
            }
        }
        let cards = now.nics.iter().zip(before).enumerate();
        cards
            .map(|(index, (nic, place))| {
                let (nic, planned) = match place {
                    Some(at) => self.known_card(at, nic, found),
                    None => self.new_card(nic, found),
                };
                (place, nic, PlannedNic { index, ..planned })
            })
            .collect()
    }

    fn known_card(&self, at: usize, nic: &Nic, found: &mut Found) -> (Nic, PlannedNic) {
        let (was, label) = (&self.vm.nics[at], &nic.label);
        let planned = self.nics.iter().find(|it| it.index == at);
        let mut target = planned.map_or(NetworkTarget::None, |it| it.target.clone());
        let is_other_mac = !nic.mac.eq_ignore_ascii_case(&was.mac);
        // What is not told is as it was.
        let is_other_network = !nic.network.is_empty() && nic.network != was.network;
        let (mac, had_mac, network, had_network) = (&nic.mac, &was.mac, &nic.network, &was.network);
        match (is_other_mac, is_other_network) {
            (true, _) if self.is_given_address(was) => {
                let text = format!("{label} has MAC address {mac}, and the plan gives {had_mac} an address");
                found.refused.push(text);
            }
            (true, false) if nic.network.is_empty() && !was.network.is_empty() => found.refused.push(format!(
                "{label} has MAC address {mac} on a network that the source does not tell, and had {had_mac} on '{had_network}', so it may be another card"
            )),
            // One that was added in place of one that was removed gets its label.
            (true, true) => found.refused.push(format!(
                "{label} has MAC address {mac} on network '{network}' and had {had_mac} on '{had_network}', so it may be another card"
            )),
            (true, false) => {
                found.taken.push(format!("{label} has MAC address {mac} and had {had_mac}"));
            }
            (false, true) => match self.target_of(network) {
                Some(new) => {
                    target = new;
                    let text = format!("{label} is on network '{network}' and was on '{had_network}'");
                    found.taken.push(text);
                }
                None => found.refused.push(format!(
                    "{label} was on network '{had_network}' and is on '{network}', where it had no card"
                )),
            },
            (false, false) => {}
        }
        if nic.model != was.model {
            found.taken.push(format!("{label} is of model {} and was of {}", nic.model, was.model));
        }
        // Whoever moves it may unplug it at the source, so that its addresses are not there twice.
        let connected = planned.map_or(was.connected, |it| it.connected);
        let network = if is_other_network { network.clone() } else { had_network.clone() };
        let is = Nic { connected, fixed: was.fixed.clone(), network, ..nic.clone() };
        let planned = planned_nic(&is, target);
        (is, planned)
    }

    fn new_card(&self, nic: &Nic, found: &mut Found) -> (Nic, PlannedNic) {
        let Nic { label, mac, network, .. } = nic;
        let text = format!("{label} ({mac}) was added on network '{network}'");
        let target = self.target_of(network);
        match &target {
            _ if self.keeps_addresses => {
                found.refused.push(format!("{text}, to a Windows whose cards keep their addresses"));
            }
            Some(_) => found.taken.push(text),
            None => found.refused.push(format!("{text}, where it had no card")),
        }
        (nic.clone(), planned_nic(nic, target.unwrap_or(NetworkTarget::None)))
    }

    /// What the plan attaches its cards on a network to, by one that is there.
    fn target_of(&self, network: &str) -> Option<NetworkTarget> {
        self.nics.iter().find(|nic| nic.network == network).map(|nic| nic.target.clone())
    }

    fn is_given_address(&self, nic: &Nic) -> bool {
        self.first_boot.addresses.iter().any(|it| !it.kept && it.mac.eq_ignore_ascii_case(&nic.mac))
    }

    /// The addresses of the first boot, by the MAC addresses of now and without those of cards that are gone.
    fn addresses_of(&self, cards: &[(Option<usize>, Nic, PlannedNic)]) -> Vec<StaticAddress> {
        let of = |it: &StaticAddress| {
            let was = self.vm.nics.iter().position(|nic| nic.mac.eq_ignore_ascii_case(&it.mac));
            let Some(at) = was else { return Some(it.clone()) };
            let (_, nic, _) = cards.iter().find(|(place, ..)| *place == Some(at))?;
            Some(StaticAddress { mac: nic.mac.to_ascii_lowercase(), ..it.clone() })
        };
        self.first_boot.addresses.iter().filter_map(of).collect()
    }
}

fn planned_nic(nic: &Nic, target: NetworkTarget) -> PlannedNic {
    PlannedNic {
        index: 0,
        mac: nic.mac.clone(),
        network: nic.network.clone(),
        target,
        connected: nic.connected,
        model: nic.model.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concern::tests::planned;

    const MAC: &str = "00:50:56:aa:bb:cc";

    /// A VM with a card on network `prod`, and the same as it is looked at later.
    fn vm() -> (PlannedVm, Vm) {
        let mut vm = planned();
        (vm.vm.memory_mib, vm.vm.cpus, vm.vm.cores_per_socket) = (128, 1, 1);
        vm.vm.firmware = Some(Firmware::Bios);
        (vm.vm.nics[0].label, vm.vm.nics[0].network) = ("Network adapter 1".into(), "prod".into());
        vm.nics[0].network = "prod".into();
        let now = vm.vm.clone();
        (vm, now)
    }

    fn card(number: u32, mac: &str, network: &str) -> Nic {
        Nic {
            label: format!("Network adapter {number}"),
            mac: mac.into(),
            network: network.into(),
            connected: true,
            ..Nic::default()
        }
    }

    #[test]
    fn what_is_as_it_was_or_not_told_is_no_change() {
        let (mut vm, mut now) = vm();
        let was = vm.clone();
        assert_eq!(vm.take_hardware(&now), Ok(Vec::new()));
        // A card that is unplugged for the move is plugged in at the target.
        (now.firmware, now.cpus, now.nics[0].connected) = (None, 0, false);
        now.nics[0].mac = MAC.to_ascii_uppercase();
        assert_eq!(vm.take_hardware(&now), Ok(Vec::new()));
        // Of one whose host is away nothing is told.
        assert_eq!(vm.take_hardware(&Vm { memory_mib: 0, nics: Vec::new(), ..now }), Ok(Vec::new()));
        assert_eq!(vm, was);
    }

    #[test]
    fn memory_cpus_and_cards_are_taken_over_and_each_change_is_told_once() {
        let (mut vm, mut now) = vm();
        (now.memory_mib, now.cpus) = (256, 2);
        now.nics[0].mac = "00:50:56:01:02:03".into();
        let told = [
            "Network adapter 1 has MAC address 00:50:56:01:02:03 and had 00:50:56:aa:bb:cc",
            "its memory is 256 MiB and was 128 MiB",
            "it has 2 CPUs and had 1",
        ];
        assert_eq!(vm.take_hardware(&now).unwrap(), told);
        assert_eq!((vm.vm.memory_mib, vm.vm.cpus, vm.nics[0].mac.as_str()), (256, 2, "00:50:56:01:02:03"));
        assert_eq!(vm.take_hardware(&now), Ok(Vec::new()));
        // Another card on a network that is known; then the first one is removed.
        now.nics.push(card(2, "00:50:56:00:00:02", "prod"));
        let told = vm.take_hardware(&now).unwrap();
        assert_eq!(told, ["Network adapter 2 (00:50:56:00:00:02) was added on network 'prod'"]);
        assert_eq!((vm.nics.len(), &vm.nics[1].target, vm.nics[1].index), (2, &NetworkTarget::User, 1));
        now.nics.remove(0);
        let told = vm.take_hardware(&now).unwrap();
        assert_eq!(told, ["Network adapter 1 (00:50:56:01:02:03) was removed"]);
        assert_eq!((vm.nics.len(), vm.nics[0].mac.as_str(), vm.nics[0].index), (1, "00:50:56:00:00:02", 0));
        assert_eq!(vm.vm.nics, now.nics);
    }

    #[test]
    fn a_known_card_goes_to_what_another_card_of_its_network_goes_to_and_keeps_its_own_where_none_is_told() {
        let (mut vm, mut now) = vm();
        now.nics[0].network = String::new();
        let was = vm.clone();
        assert_eq!(vm.take_hardware(&now), Ok(Vec::new()));
        assert_eq!(vm, was);
        let dmz = NetworkTarget::Bridge("dmz".into());
        vm.vm.nics.push(card(2, "00:50:56:00:00:02", "dmz"));
        vm.nics.push(PlannedNic { index: 1, ..planned_nic(&vm.vm.nics[1], dmz.clone()) });
        let mut now = vm.vm.clone();
        now.nics[0].network = "dmz".into();
        let told = vm.take_hardware(&now).unwrap();
        assert_eq!(told, ["Network adapter 1 is on network 'dmz' and was on 'prod'"]);
        assert_eq!(vm.nics[0].target, dmz);
        // Of what is not told while something else is another, nothing is forgotten either.
        now.memory_mib = 256;
        now.nics[0].network = String::new();
        assert_eq!(vm.take_hardware(&now).unwrap().len(), 1);
        assert_eq!((vm.vm.nics[0].network.as_str(), vm.nics[0].network.as_str()), ("dmz", "dmz"));
    }

    #[test]
    fn firmware_and_cards_that_lead_nobody_knows_where_are_refused_and_nothing_is_taken_over() {
        type Change = fn(&mut Vm);
        let changes: [(Change, &str); 6] = [
            (|vm| vm.firmware = Some(Firmware::Uefi), "its firmware is UEFI and was BIOS"),
            (|vm| vm.vtpm = true, "a virtual TPM was added"),
            (
                |vm| vm.nics.push(card(2, "00:50:56:00:00:02", "dmz")),
                "Network adapter 2 (00:50:56:00:00:02) was added on network 'dmz', where it had no card",
            ),
            (
                |vm| vm.nics[0].network = "dmz".into(),
                "Network adapter 1 was on network 'prod' and is on 'dmz', where it had no card",
            ),
            (
                |vm| vm.nics[0].mac = "00:50:56:01:02:03".into(),
                "Network adapter 1 has MAC address 00:50:56:01:02:03, and the plan gives 00:50:56:aa:bb:cc an address",
            ),
            (
                |vm| vm.nics.clear(),
                "Network adapter 1 was removed, and the plan gives 00:50:56:aa:bb:cc an address",
            ),
        ];
        for (change, why) in changes {
            let (mut vm, mut now) = vm();
            vm.first_boot.addresses = StaticAddress::parse(MAC, "192.0.2.7/24").unwrap();
            let was = vm.clone();
            now.memory_mib = 256;
            change(&mut now);
            assert_eq!(vm.take_hardware(&now), Err(vec![why.to_string()]));
            assert_eq!(vm, was, "{why}");
        }
        let (mut vm, _) = vm();
        (vm.vm.firmware, vm.vm.secure_boot) = (Some(Firmware::Uefi), true);
        let now = Vm { secure_boot: false, ..vm.vm.clone() };
        assert_eq!(vm.take_hardware(&now), Err(vec!["secure boot is off and was on".to_string()]));
    }

    #[test]
    fn a_card_of_another_mac_address_and_network_is_refused_whatever_its_label() {
        let (mut vm, mut now) = vm();
        vm.vm.nics.push(card(2, "00:50:56:00:00:02", "dmz"));
        vm.nics.push(PlannedNic { index: 1, ..planned_nic(&vm.vm.nics[1], NetworkTarget::User) });
        let was = vm.clone();
        // The first one was removed, and another added.
        now.nics = vec![card(1, "00:50:56:01:02:03", "dmz"), vm.vm.nics[1].clone()];
        let why = "Network adapter 1 has MAC address 00:50:56:01:02:03 on network 'dmz' and had 00:50:56:aa:bb:cc on 'prod', so it may be another card";
        assert_eq!(vm.take_hardware(&now), Err(vec![why.to_string()]));
        assert_eq!(vm, was);
        // Nobody tells that it is on the network that the first one was on.
        now.nics[0].network.clear();
        let why = "Network adapter 1 has MAC address 00:50:56:01:02:03 on a network that the source does not tell, and had 00:50:56:aa:bb:cc on 'prod', so it may be another card";
        assert_eq!(vm.take_hardware(&now), Err(vec![why.to_string()]));
        assert_eq!(vm, was);
    }

    #[test]
    fn addresses_that_a_windows_keeps_go_with_their_card() {
        let (mut vm, mut now) = vm();
        vm.keeps_addresses = true;
        vm.first_boot.addresses = StaticAddress::parse(MAC, "192.0.2.7/24").unwrap();
        vm.first_boot.addresses[0].kept = true;
        now.nics[0].mac = "00:50:56:01:02:03".into();
        assert_eq!(vm.take_hardware(&now).unwrap().len(), 1);
        assert_eq!(vm.first_boot.addresses[0].mac, "00:50:56:01:02:03");
        let more =
            Vm { nics: vec![now.nics[0].clone(), card(2, "00:50:56:00:00:02", "prod")], ..now.clone() };
        assert!(vm.clone().take_hardware(&more).unwrap_err()[0].contains("keep their addresses"));
        now.nics.clear();
        assert_eq!(vm.take_hardware(&now).unwrap().len(), 1);
        assert_eq!((vm.first_boot.addresses.len(), vm.nics.len()), (0, 0));
    }
}
