//! Network interfaces that a Linux configures by their names, in the files of ifupdown, netplan, NetworkManager, the
//! initscripts of RHEL, and systemd-networkd. On other hardware they may have other names.

use std::collections::BTreeMap;

use drover_types::guest::Interface;

use crate::ext4::Tree;

/// All of them, sorted by name; each once. One that is found by its MAC address, or is named by it, is left out.
pub(crate) fn interfaces(root: &Tree) -> Vec<Interface> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    let mut named_by_mac = Vec::new();
    for (folder, ending, read) in PLACES {
        for name in root.names(folder).iter().filter(|name| name.ends_with(ending)).take(FILES_MAX) {
            let file = format!("{folder}/{name}");
            let Some(text) = root.short_text(&file, FILE_BYTES_MAX) else { continue };
            for Told { name, addresses } in read(&text).into_iter().take(INTERFACES_MAX) {
                if found.len() >= INTERFACES_MAX || !is_of_hardware(&name) {
                    continue;
                }
                let fresh = Interface { name: name.clone(), file: file.clone(), addresses: Vec::new() };
                let known = &mut found.entry(name).or_insert(fresh).addresses;
                let room = ADDRESSES_MAX.saturating_sub(known.len());
                known.extend(addresses.into_iter().filter(|it| it.len() <= ADDRESS_BYTES_MAX).take(room));
            }
        }
    }
    for name in root.names(NETWORKD).iter().filter(|name| name.ends_with(".link")).take(FILES_MAX) {
        let text = root.short_text(&format!("{NETWORKD}/{name}"), FILE_BYTES_MAX).unwrap_or_default();
        if text.contains("MACAddress=") {
            named_by_mac.extend(values(&text, "Name=").map(str::to_string));
        }
    }
    let udev = "/etc/udev/rules.d/70-persistent-net.rules";
    let udev = root.short_text(udev, FILE_BYTES_MAX).unwrap_or_default();
    named_by_mac
        .extend(udev.split("NAME=\"").skip(1).filter_map(|rest| rest.split('"').next().map(str::to_string)));
    found.retain(|name, _| !named_by_mac.contains(name));
    found.into_values().collect()
}

/// Where they are configured: folder, ending of the files, and who reads them.
const PLACES: [(&str, &str, Reader); 6] = [
    ("/etc/network", "interfaces", ifupdown),
    ("/etc/network/interfaces.d", "", ifupdown),
    ("/etc/netplan", ".yaml", netplan),
    ("/etc/NetworkManager/system-connections", "", keyfile),
    ("/etc/sysconfig/network-scripts", "", ifcfg),
    (NETWORKD, ".network", networkd),
];
/// Reads the interfaces of a file.
type Reader = fn(&str) -> Vec<Told>;
const NETWORKD: &str = "/etc/systemd/network";

/// An interface, as a file tells it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    name: String,
    addresses: Vec<String>,
}

/// Names that come of where the card is: `ens192`, `enp3s0`, `eno1`, `eth0`.
fn is_of_hardware(name: &str) -> bool {
    let begins_so = ["en", "eth"].iter().any(|start| name.starts_with(start));
    begins_so && name.len() <= NAME_BYTES_MAX && !name.contains(['*', ':'])
}

fn ifupdown(text: &str) -> Vec<Told> {
    let mut found: Vec<Told> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["iface", name, ..] => {
                is_open = true;
                found.push(Told { name: name.into(), addresses: Vec::new() });
            }
            ["auto" | "mapping" | "source" | "source-directory" | "allow-hotplug", ..] => is_open = false,
            ["address", address, ..] if is_open => {
                found.last_mut().iter_mut().for_each(|it| it.addresses.push(address.into()));
            }
            _ => {}
        }
    }
    found
}

/// The keys below `ethernets`, by their indentation. One with `macaddress` is found by that.
fn netplan(text: &str) -> Vec<Told> {
    let mut found: Vec<(usize, Told, bool)> = Vec::new();
    let (mut below, mut level, mut in_addresses) = (None, None, false);
    for line in text.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        let (indent, word) = (line.len() - line.trim_start().len(), line.trim());
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        if below.is_some_and(|below| indent <= below) {
            (below, level) = (None, None);
        }
        if word == "ethernets:" {
            below = Some(indent);
        } else if below.is_some() {
            let level = *level.get_or_insert(indent);
            let Some((key, value)) = word.split_once(':').filter(|_| !word.starts_with('-')) else {
                let address = word.trim_start_matches('-').trim().trim_matches(['"', '\'']);
                if in_addresses && let Some((_, told, _)) = found.last_mut() {
                    told.addresses.push(address.trim_end_matches(':').into());
                }
                continue;
            };
            let key = key.trim_matches(['"', '\'']);
            in_addresses = key == "addresses" && !found.is_empty();
            if indent == level {
                found.push((indent, Told { name: key.into(), addresses: Vec::new() }, false));
                in_addresses = false;
            } else if let Some((_, told, by_mac)) = found.last_mut() {
                *by_mac |= key == "macaddress";
                // Those of name servers lie deeper.
                in_addresses &= told.addresses.is_empty();
                if in_addresses && !value.trim().is_empty() {
                    let list = value.trim().trim_start_matches('[').trim_end_matches(']');
                    let plain = |it: &str| it.trim().trim_matches(['"', '\'']).to_string();
                    told.addresses.extend(list.split(',').map(plain).filter(|it| !it.is_empty()));
                }
            }
        }
    }
    found.into_iter().filter(|(_, _, by_mac)| !by_mac).map(|(_, told, _)| told).collect()
}

fn keyfile(text: &str) -> Vec<Told> {
    let Some(name) = values(text, "interface-name=").next() else { return Vec::new() };
    let addresses = (1..=ADDRESSES_MAX).flat_map(|number| {
        let key = format!("address{number}=");
        values(text, &key).map(|it| it.split(',').next().unwrap_or(it).to_string()).collect::<Vec<_>>()
    });
    vec![Told { name: name.into(), addresses: addresses.collect() }]
}

fn ifcfg(text: &str) -> Vec<Told> {
    let value = |key: &str| values(text, key).next().map(|it| it.trim_matches(['"', '\'']).to_string());
    match (value("DEVICE="), value("HWADDR=")) {
        (Some(name), None) => {
            let addresses =
                ["IPADDR=", "IPADDR0=", "IPV6ADDR="].iter().filter_map(|key| value(key)).collect();
            vec![Told { name, addresses }]
        }
        _ => Vec::new(),
    }
}

fn networkd(text: &str) -> Vec<Told> {
    if values(text, "MACAddress=").next().is_some() {
        return Vec::new();
    }
    let addresses: Vec<String> = values(text, "Address=").take(ADDRESSES_MAX).map(str::to_string).collect();
    let names = values(text, "Name=").flat_map(str::split_whitespace).take(INTERFACES_MAX);
    names.map(|name| Told { name: name.into(), addresses: addresses.clone() }).collect()
}

fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.trim().strip_prefix(key)).map(str::trim)
}

/// Bounds on what a guest's files may make drover keep.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 64 << 10;
const INTERFACES_MAX: usize = 64;
const ADDRESSES_MAX: usize = 16;
const ADDRESS_BYTES_MAX: usize = 64;
/// Linux has 15 bytes for a name.
const NAME_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(found: Vec<Told>) -> Vec<String> {
        found.iter().map(|it| format!("{} {}", it.name, it.addresses.join(",")).trim().to_string()).collect()
    }

    #[test]
    fn ifupdown_tells_names_and_addresses() {
        let text = "auto lo\niface lo inet loopback\nallow-hotplug ens192\niface ens192 inet static\n  address 192.0.2.7/24\n  \
                    gateway 192.0.2.1\n\nauto ens224\niface ens224 inet dhcp\n";
        assert_eq!(told(ifupdown(text)), ["lo", "ens192 192.0.2.7/24", "ens224"]);
    }

    #[test]
    fn netplan_tells_names_and_addresses_and_leaves_out_what_goes_by_mac() {
        let text = "network:\n  version: 2\n  ethernets:\n    ens160:\n      addresses: [192.0.2.7/24, \"2001:db8::7/64\"]\n      \
                    nameservers:\n        addresses: [192.0.2.53]\n    ens192:\n      dhcp4: true\n    lan:\n      match:\n        \
                    macaddress: 00:50:56:aa:bb:cc\n      addresses: [198.51.100.1/24]\n    ens224:\n      addresses:\n        - \
                    203.0.113.1/24\n      nameservers:\n        addresses:\n          - 203.0.113.53\n  bonds:\n    bond0:\n      \
                    interfaces: [ens192]\n";
        assert_eq!(
            told(netplan(text)),
            ["ens160 192.0.2.7/24,2001:db8::7/64", "ens192", "ens224 203.0.113.1/24"]
        );
        assert_eq!(told(netplan("# network:\nnetwork: {version: 2}\n")), Vec::<String>::new());
    }

    #[test]
    fn the_other_files_are_read_too() {
        let text = "[connection]\nid=wired\ninterface-name=ens192\n[ipv4]\nmethod=manual\naddress1=192.0.2.7/24,192.0.2.1\n";
        assert_eq!(told(keyfile(text)), ["ens192 192.0.2.7/24"]);
        assert_eq!(told(keyfile("[connection]\nid=any\n")), Vec::<String>::new());
        assert_eq!(told(ifcfg("DEVICE=\"ens192\"\nIPADDR=192.0.2.7\nPREFIX=24\n")), ["ens192 192.0.2.7"]);
        assert_eq!(told(ifcfg("DEVICE=ens192\nHWADDR=00:50:56:aa:bb:cc\n")), Vec::<String>::new());
        let text = "[Match]\nName=ens192\n[Network]\nAddress=192.0.2.7/24\n";
        assert_eq!(told(networkd(text)), ["ens192 192.0.2.7/24"]);
        assert_eq!(
            told(networkd(&text.replace("Name=ens192", "MACAddress=00:50:56:aa:bb:cc"))),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_file_of_many_names_and_addresses_gives_a_few() {
        let many = |key: &str| format!("{key}=en0\n").repeat(2_000);
        let found = networkd(&(many("Name") + &many("Address")));
        assert_eq!((found.len(), found[0].addresses.len()), (INTERFACES_MAX, ADDRESSES_MAX));
    }

    #[test]
    fn only_names_that_come_of_the_hardware_count() {
        assert!(["ens192", "enp3s0", "eno1", "eth0"].into_iter().all(is_of_hardware));
        assert!(
            ["lo", "bond0", "br0", "lan", "en*", "eth0:1", "eth0123456789abcdef"]
                .into_iter()
                .all(|name| !is_of_hardware(name))
        );
    }
}
