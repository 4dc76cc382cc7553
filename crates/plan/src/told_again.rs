//! What VMware Tools tell of a Windows after its plan was checked: its guest runs until it is shut down, and somebody may give its cards
//! other addresses, or have them ask for some.

use drover_types::inventory::{Nic, Vm};

use crate::model::{NetworkTarget, StaticAddress};
use crate::resolution::{PlannedNic, PlannedVm};

impl PlannedVm {
    /// Has cards that keep their own addresses keep those that are told now. Gives a line about each card that has others than before. One
    /// that nothing is told of, as of each once the guest is off, stays as it was.
    pub fn keep_told(&mut self, now: &Vm) -> Vec<String> {
        if !self.keeps_addresses {
            return Vec::new();
        }
        let mut lines = Vec::new();
        for index in 0..self.vm.nics.len() {
            let is_left_out = |nic: &PlannedNic| nic.index == index && nic.target == NetworkTarget::None;
            let was = &self.vm.nics[index];
            let told = now.nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(&was.mac));
            let Some(fixed) = told.and_then(|nic| nic.fixed.as_ref()) else { continue };
            let is_given = |it: &StaticAddress| !it.kept && it.mac.eq_ignore_ascii_case(&was.mac);
            let is_same = was.fixed.as_ref() == Some(fixed);
            if is_same || self.nics.iter().any(is_left_out) || self.first_boot.addresses.iter().any(is_given)
            {
                continue;
            }
            let is = Nic { fixed: Some(fixed.clone()), ..was.clone() };
            lines.push(self.told_again(was, &is));
            let addresses = &mut self.first_boot.addresses;
            addresses.retain(|it| !it.mac.eq_ignore_ascii_case(&is.mac));
            addresses.extend(StaticAddress::kept_of(&is));
            self.vm.nics[index] = is;
        }
        lines
    }

    fn told_again(&self, was: &Nic, is: &Nic) -> String {
        let then = match StaticAddress::kept_of(is).is_empty() {
            true => "so it is given none when it boots for the first time",
            false => "which it is given when it boots for the first time, if it is converted",
        };
        format!(
            "{} ({}) of {} had {} when the plan was checked, and VMware Tools told {} before the shutdown, {then}",
            was.label,
            was.mac,
            self.vm.name,
            in_words(was),
            in_words(is)
        )
    }
}

/// Addresses with gateways and name servers, as `addresses` of a plan has them.
fn in_words(nic: &Nic) -> String {
    let text = |it: &StaticAddress| {
        let more = it.gateway.iter().chain(&it.dns).map(|ip| format!(" {ip}"));
        it.with_prefix() + &more.collect::<String>()
    };
    match StaticAddress::kept_of(nic) {
        none if none.is_empty() => "no fixed address".into(),
        addresses => addresses.iter().map(text).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::FixedAddresses;

    use super::*;
    use crate::concern::tests::planned;

    fn fixed(address: &str) -> Option<FixedAddresses> {
        let (gateways, dns) = (vec!["192.0.2.1".parse().unwrap()], vec!["192.0.2.53".parse().unwrap()]);
        Some(FixedAddresses { addresses: vec![(address.parse().unwrap(), 24)], gateways, dns })
    }

    /// A VM whose card has this address and keeps it, and the same as it is told later.
    fn keeping(later: Option<FixedAddresses>) -> (PlannedVm, Vm) {
        let mut vm = planned();
        vm.keeps_addresses = true;
        vm.vm.nics[0].label = "Network adapter 1".into();
        vm.vm.nics[0].fixed = fixed("192.0.2.7");
        vm.first_boot.addresses = StaticAddress::kept_of(&vm.vm.nics[0]);
        let mut now = vm.vm.clone();
        now.nics[0].fixed = later;
        (vm, now)
    }

    fn given(vm: &PlannedVm) -> Vec<String> {
        vm.first_boot.addresses.iter().map(StaticAddress::with_prefix).collect()
    }

    #[test]
    fn a_card_that_asks_for_its_address_by_now_is_given_none_and_another_address_is_given() {
        let (mut vm, now) = keeping(Some(FixedAddresses::default()));
        assert_eq!(
            vm.keep_told(&now),
            [
                "Network adapter 1 (00:50:56:aa:bb:cc) of web01 had 192.0.2.7/24 192.0.2.1 192.0.2.53 when the plan was checked, and VMware Tools \
              told no fixed address before the shutdown, so it is given none when it boots for the first time"
            ]
        );
        assert_eq!(given(&vm), Vec::<String>::new());
        assert_eq!(vm.keep_told(&now), Vec::<String>::new(), "it is told once");
        let (mut vm, now) = keeping(fixed("192.0.2.8"));
        let told = vm.keep_told(&now);
        assert!(
            told[0].contains("told 192.0.2.8/24 192.0.2.1 192.0.2.53 before the shutdown, which it is given"),
            "{told:?}"
        );
        assert_eq!(
            (given(&vm), vm.vm.nics[0].fixed.clone()),
            (vec!["192.0.2.8/24".to_string()], fixed("192.0.2.8"))
        );
    }

    #[test]
    fn what_is_not_told_and_what_the_plan_gives_stays() {
        let stays = |(mut vm, now): (PlannedVm, Vm)| {
            assert_eq!(vm.keep_told(&now), Vec::<String>::new());
            assert_eq!(given(&vm), ["192.0.2.7/24"]);
        };
        stays(keeping(None));
        stays(keeping(fixed("192.0.2.7")));
        let (mut vm, now) = keeping(fixed("192.0.2.8"));
        vm.first_boot.addresses[0].kept = false;
        stays((vm.clone(), now.clone()));
        vm.first_boot.addresses[0].kept = true;
        vm.nics[0].target = NetworkTarget::None;
        stays((vm.clone(), now.clone()));
        vm.keeps_addresses = false;
        stays((vm, now));
    }
}
