//! Network settings of a Linux and what finds the cards that they are for, in the files of ifupdown, netplan, NetworkManager, the
//! initscripts of RHEL, wicked of SUSE, and systemd-networkd. On other hardware a card has another name and another place.

use std::collections::BTreeMap;

use drover_types::guest::Interface;

use crate::tree::Tree;

/// All of them, sorted by what finds the card; each once. Those of bonds, bridges and the like are left out.
pub(crate) fn interfaces(root: &Tree) -> Vec<Interface> {
    let mut all = Vec::new();
    for (folder, ending, read) in PLACES {
        for (name, text) in files(root, folder, ending) {
            let file = format!("{folder}/{name}");
            let found = read(&name, &text).into_iter().take(INTERFACES_MAX);
            all.extend(found.map(|it| Interface { file: file.clone(), ..it }));
        }
    }
    let mut namings: Vec<Naming> = files(root, NETWORKD, ".link").flat_map(|(_, text)| link(&text)).collect();
    for (_, text) in files(root, "/etc/udev/rules.d", "persistent-net.rules") {
        namings.extend(udev(&text).into_iter().take(INTERFACES_MAX));
    }
    merged(all, &namings)
}

fn files<'a>(
    root: &'a Tree,
    folder: &'a str,
    ending: &'a str,
) -> impl Iterator<Item = (String, String)> + 'a {
    let names = root.names(folder).into_iter().filter(move |name| name.ends_with(ending)).take(FILES_MAX);
    names.filter_map(move |name| {
        let text = root.short_text(&format!("{folder}/{name}"), FILE_BYTES_MAX)?;
        Some((name, text))
    })
}

/// Settings of several files for one card are one; what the guest names itself is known by what it goes by.
fn merged(all: Vec<Interface>, namings: &[Naming]) -> Vec<Interface> {
    let mut found: BTreeMap<[Option<String>; 3], Interface> = BTreeMap::new();
    for mut it in all {
        let naming = namings.iter().find(|naming| it.name.as_ref() == Some(&naming.name));
        if let Some(naming) = naming {
            it.is_named = true;
            it.mac = it.mac.or_else(|| naming.mac.clone());
            it.place = it.place.or_else(|| naming.place.clone());
        }
        if !is_of_a_card(&it) {
            continue;
        }
        let key = [&it.name, &it.mac, &it.place].map(Option::clone);
        if found.len() >= INTERFACES_MAX && !found.contains_key(&key) {
            continue;
        }
        let more = std::mem::take(&mut it.addresses);
        let known = &mut found.entry(key).or_insert(it).addresses;
        let room = ADDRESSES_MAX.saturating_sub(known.len());
        known.extend(more.into_iter().filter(|it| it.len() <= WORD_BYTES_MAX).take(room));
    }
    found.into_values().collect()
}

/// Whether it is for a network card, and says so in words of a length that is kept.
fn is_of_a_card(it: &Interface) -> bool {
    let words = [&it.name, &it.mac, &it.place];
    let is_short = words.iter().all(|word| word.as_ref().is_none_or(|word| word.len() <= WORD_BYTES_MAX));
    is_short && (it.mac.is_some() || it.place.is_some() || it.name.as_deref().is_none_or(is_of_hardware))
}

/// Where they are configured: folder, ending of the files, and who reads them.
const PLACES: [(&str, &str, Reader); 7] = [
    ("/etc/network", "interfaces", ifupdown),
    ("/etc/network/interfaces.d", "", ifupdown),
    ("/etc/netplan", ".yaml", netplan),
    ("/etc/NetworkManager/system-connections", "", keyfile),
    ("/etc/sysconfig/network-scripts", "", ifcfg),
    ("/etc/sysconfig/network", "", ifcfg_of_suse),
    (NETWORKD, ".network", networkd),
];
/// Reads the settings in a file of this name.
type Reader = fn(&str, &str) -> Vec<Interface>;
const NETWORKD: &str = "/etc/systemd/network";

/// A name that the guest gives a card.
#[derive(Debug, Default, PartialEq, Eq)]
struct Naming {
    name: String,
    mac: Option<String>,
    place: Option<String>,
}

/// Names that come of where the card is (`ens192`, `enp3s0`, `eno1`, `eth0`), and patterns for them.
fn is_of_hardware(name: &str) -> bool {
    let begins_so = ["en", "eth", "*", "e*"].iter().any(|start| name.starts_with(start));
    begins_so && name.len() <= NAME_BYTES_MAX && !name.contains(':')
}

fn of_name(name: &str) -> Interface {
    // Of a VLAN (`ens192.100`) the card counts.
    let name = name.split_once('.').filter(|(card, _)| is_of_hardware(card)).map_or(name, |(card, _)| card);
    Interface { name: Some(name.into()), ..Interface::default() }
}

fn ifupdown(_: &str, text: &str) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["iface", name, ..] => {
                is_open = true;
                found.push(of_name(name));
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

/// The keys below `ethernets`, by their indentation. With `match` the key itself is no name of a card.
///
/// Source: netplan's `doc/netplan-yaml.md`, "Properties for physical device types".
fn netplan(_: &str, text: &str) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    // Indents of `ethernets`, of the cards below it, and of the keys of a card; and the key that is open.
    let (mut below, mut cards, mut own, mut open) = (None, None, None, String::new());
    for line in text.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        let (indent, word) = (line.len() - line.trim_start().len(), line.trim());
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        let is_item = word.starts_with('-');
        if below.is_some_and(|below| indent <= below) {
            (below, cards) = (None, None);
        }
        if word == "ethernets:" {
            below = Some(indent);
            continue;
        }
        if below.is_none() {
            continue;
        }
        let (key, value) = word.split_once(':').filter(|_| !is_item).unwrap_or((word, ""));
        let (key, value) = (bare(key), value.trim());
        if indent == *cards.get_or_insert(indent) {
            found.push(of_name(&key));
            own = None;
            continue;
        }
        let Some(it) = found.last_mut() else { continue };
        if indent == *own.get_or_insert(indent) && !is_item {
            open.clone_from(&key);
            match key.as_str() {
                "match" => {
                    it.name = None;
                    let pairs = value.trim_start_matches('{').trim_end_matches('}').split(',');
                    let pairs = pairs.filter_map(|pair| pair.split_once(':'));
                    pairs.for_each(|(key, value)| netplan_match(it, key, value));
                }
                "addresses" => {
                    let list = value.trim_start_matches('[').trim_end_matches(']').split(',').map(bare);
                    it.addresses.extend(list.filter(|it| !it.is_empty()));
                }
                _ => {}
            }
        } else if open == "match" {
            netplan_match(it, &key, value);
        } else if open == "addresses" && is_item {
            it.addresses.push(bare(word.trim_start_matches('-').trim_end_matches(':')));
        }
    }
    found
}

fn netplan_match(it: &mut Interface, key: &str, value: &str) {
    let value = bare(value);
    match bare(key).as_str() {
        "macaddress" => it.mac = Some(value.to_ascii_lowercase()),
        "name" => it.name = Some(value),
        "driver" => it.place = Some(value),
        _ => {}
    }
}

/// Without quotes and space.
fn bare(word: &str) -> String {
    word.trim().trim_matches(['"', '\'']).to_string()
}

/// Source: nm-settings-keyfile(5).
fn keyfile(_: &str, text: &str) -> Vec<Interface> {
    let mut it = Interface::default();
    for (section, key, value) in keys(text) {
        match (section, key) {
            ("connection", "type") if !matches!(value, "ethernet" | "802-3-ethernet") => return Vec::new(),
            ("connection", "interface-name") | ("match", "interface-name") => {
                it.name = value.split(';').next().map(str::to_string);
            }
            ("ethernet" | "802-3-ethernet", "mac-address") => it.mac = Some(value.to_ascii_lowercase()),
            ("match", "path" | "driver") => it.place = value.split(';').next().map(str::to_string),
            ("ipv4" | "ipv6", key) if key.strip_prefix("address").is_some_and(is_number) => {
                it.addresses.extend(value.split(',').next().map(str::to_string));
            }
            _ => {}
        }
    }
    vec![it]
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Source: `sysconfig.txt` of the initscripts; nm-settings-ifcfg-rh(5).
fn ifcfg(file: &str, text: &str) -> Vec<Interface> {
    if !is_ifcfg(file) {
        return Vec::new();
    }
    let mut it = Interface::default();
    for (_, key, value) in keys(text) {
        let value = bare(value);
        match key {
            _ if value.is_empty() => {}
            "TYPE" if value != "Ethernet" => return Vec::new(),
            "DEVICE" => it.name = of_name(&value).name,
            "HWADDR" => it.mac = Some(value.to_ascii_lowercase()),
            "IPV6ADDR" => it.addresses.push(value),
            key if key.strip_prefix("IPADDR").is_some_and(|rest| rest.is_empty() || is_number(rest)) => {
                it.addresses.push(value);
            }
            _ => {}
        }
    }
    vec![it]
}

/// The name of the file says which card it is for. Source: ifcfg(5) of wicked.
fn ifcfg_of_suse(file: &str, text: &str) -> Vec<Interface> {
    let Some(name) = file.strip_prefix("ifcfg-").filter(|_| is_ifcfg(file)) else { return Vec::new() };
    let mut it = match name.strip_prefix("eth-id-") {
        Some(mac) => Interface { mac: Some(mac.to_ascii_lowercase()), ..Interface::default() },
        None => of_name(name),
    };
    let is_address = |key: &str| key == "IPADDR" || key.starts_with("IPADDR_");
    let values = keys(text).filter(|(_, key, _)| is_address(key)).map(|(_, _, value)| bare(value));
    it.addresses = values.filter(|value| !value.is_empty()).collect();
    vec![it]
}

/// Not what editors and packages left beside it.
fn is_ifcfg(file: &str) -> bool {
    let is_left = [".bak", ".orig", ".rpmsave", ".rpmnew", ".old", "~"].iter().any(|end| file.ends_with(end));
    file.starts_with("ifcfg-") && !is_left
}

/// Source: systemd.network(5).
fn networkd(_: &str, text: &str) -> Vec<Interface> {
    let mut it = Interface::default();
    let mut names: Vec<String> = Vec::new();
    for (section, key, value) in keys(text) {
        let first = value.split_whitespace().next().map(str::to_string);
        match (section, key) {
            ("Match", "Name") => {
                names.extend(value.split_whitespace().take(INTERFACES_MAX - names.len()).map(str::to_string));
            }
            ("Match", "MACAddress" | "PermanentMACAddress") => {
                it.mac = first.map(|it| it.to_ascii_lowercase())
            }
            ("Match", "Path" | "Driver") => it.place = first,
            ("Network" | "Address", "Address") if it.addresses.len() < ADDRESSES_MAX => {
                it.addresses.extend(first);
            }
            _ => {}
        }
    }
    if names.is_empty() {
        return vec![it];
    }
    names.into_iter().map(|name| Interface { name: of_name(&name).name, ..it.clone() }).collect()
}

/// Source: systemd.link(5).
fn link(text: &str) -> Option<Naming> {
    let mut naming = Naming::default();
    for (section, key, value) in keys(text) {
        match (section, key) {
            ("Match", "MACAddress" | "PermanentMACAddress") => naming.mac = Some(value.to_ascii_lowercase()),
            ("Match", "Path") => naming.place = Some(value.into()),
            ("Link", "Name") => naming.name = value.into(),
            _ => {}
        }
    }
    (!naming.name.is_empty() && (naming.mac.is_some() || naming.place.is_some())).then_some(naming)
}

/// Rules of `70-persistent-net.rules`: `..., ATTR{address}=="00:50:56:aa:bb:cc", ..., NAME="eth0"`, or `KERNELS=="0000:0b:00.0"`.
fn udev(text: &str) -> Vec<Naming> {
    let rule = |line: &str| {
        let value = |key: &str| {
            let word = line.split(',').map(str::trim).find_map(|word| word.strip_prefix(key));
            word.map(|word| word.trim_matches('"').to_string())
        };
        let mac = value("ATTR{address}==").map(|mac| mac.to_ascii_lowercase());
        let place = value("KERNELS==").map(|place| format!("pci-{place}"));
        let name = value("NAME=")?;
        (mac.is_some() || place.is_some()).then_some(Naming { name, mac, place })
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(rule).collect()
}

/// `KEY=VALUE` of each line with the section that it is in, as systemd and NetworkManager write them.
fn keys(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut section = "";
    text.lines().map(str::trim).filter(|line| !line.starts_with('#')).filter_map(move |line| {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        }
        line.split_once('=').map(|(key, value)| (section, key.trim(), value.trim()))
    })
}

/// Bounds on what a guest's files may make drover keep.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 64 << 10;
const INTERFACES_MAX: usize = 64;
const ADDRESSES_MAX: usize = 16;
const WORD_BYTES_MAX: usize = 64;
/// Linux has 15 bytes for a name.
const NAME_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is told in these tests: what finds the card, and the addresses.
    fn told(found: Vec<Interface>) -> Vec<String> {
        let line = |it: &Interface| {
            let words = [("name", &it.name), ("mac", &it.mac), ("at", &it.place)];
            let words = words.iter().filter_map(|(key, word)| Some(format!("{key}={}", word.as_ref()?)));
            let named = it.is_named.then(|| "named".to_string());
            words
                .chain(named)
                .chain([it.addresses.join(",")])
                .collect::<Vec<_>>()
                .join(" ")
                .trim()
                .to_string()
        };
        found.iter().map(line).collect()
    }

    fn read(reader: Reader, file: &str, text: &str) -> Vec<String> {
        told(merged(reader(file, text), &[]))
    }

    const NET: &str = "192.0.2.7/24";
    const MAC: &str = "00:50:56:aa:bb:cc";

    #[test]
    fn each_distributions_form_tells_what_finds_the_card_and_its_addresses() {
        let by_name = [format!("name=ens192 {NET}")];
        let by_mac = [format!("mac={MAC} {NET}")];
        let both = [format!("name=ens192 mac={MAC} {NET}")];
        // Debian, ifupdown; two stanzas of one card are one, and a VLAN is of its card.
        let text = "auto lo\niface lo inet loopback\nallow-hotplug ens192\niface ens192 inet static\n  address 192.0.2.7/24\n  \
                    gateway 192.0.2.1\niface ens192 inet6 static\n  address 2001:db8::7/64\n\nauto ens224\niface ens224 inet dhcp\n\
                    iface ens224.100 inet static\n  address 198.51.100.7/24\niface bond0 inet dhcp\n";
        let expected = ["name=ens192 192.0.2.7/24,2001:db8::7/64", "name=ens224 198.51.100.7/24"];
        assert_eq!(read(ifupdown, "interfaces", text), expected);
        // Ubuntu, netplan: by name, by MAC as cloud-init writes it, by driver, by pattern.
        let netplan_of =
            |body: &str| read(netplan, "50.yaml", &format!("network:\n  version: 2\n  ethernets:\n{body}"));
        assert_eq!(netplan_of("    ens192:\n      dhcp4: false\n      addresses: [192.0.2.7/24]\n"), by_name);
        let text = "    ens192:\n      match:\n        macaddress: 00:50:56:AA:bb:cc\n      set-name: ens192\n      addresses:\n      - \
                    192.0.2.7/24\n      nameservers:\n        addresses:\n        - 192.0.2.53\n";
        assert_eq!(netplan_of(text), by_mac);
        let inline =
            "    lan: \n      match: {macaddress: \"00:50:56:aa:bb:cc\"}\n      addresses: [192.0.2.7/24]\n";
        assert_eq!(netplan_of(inline), by_mac);
        let text = "    all:\n      nameservers:\n        addresses: [192.0.2.53]\n      match:\n        driver: vmxnet3\n      dhcp4: true\n    more:\n      match:\n        name: en*\n";
        assert_eq!(netplan_of(text), ["at=vmxnet3", "name=en*"]);
        // RHEL 7, ifcfg of the initscripts.
        let text = "TYPE=Ethernet\nBOOTPROTO=none\nNAME=ens192\nDEVICE=\"ens192\"\nIPADDR=192.0.2.7/24\n";
        assert_eq!(read(ifcfg, "ifcfg-ens192", text), by_name);
        assert_eq!(read(ifcfg, "ifcfg-ens192", &format!("{text}HWADDR=00:50:56:AA:BB:CC\n")), both);
        let text = "HWADDR=00:50:56:AA:BB:CC\nIPADDR0=192.0.2.7/24\n";
        assert_eq!(read(ifcfg, "ifcfg-eth0", text), by_mac);
        for (file, text) in
            [("ifcfg-bond0", "DEVICE=bond0\nTYPE=Bond\n"), ("route-ens192", "DEVICE=ens192\n")]
        {
            assert_eq!(read(ifcfg, file, text), Vec::<String>::new(), "{file}");
        }
        assert_eq!(read(ifcfg, "ifcfg-ens192.bak", "DEVICE=ens192\n"), Vec::<String>::new());
        // RHEL 9, keyfiles of NetworkManager.
        let text = "[connection]\nid=ens192\ntype=ethernet\ninterface-name=ens192\n[ipv4]\nmethod=manual\naddress1=192.0.2.7/24,192.0.2.1\n";
        assert_eq!(read(keyfile, "ens192.nmconnection", text), by_name);
        let more = format!("{text}[ethernet]\nmac-address=00:50:56:AA:BB:CC\n");
        assert_eq!(read(keyfile, "ens192.nmconnection", &more), both);
        assert_eq!(read(keyfile, "x", &more.replace("interface-name=ens192\n", "")), by_mac);
        assert_eq!(read(keyfile, "x", "[match]\npath=pci-0000:0b:00.0\n"), ["at=pci-0000:0b:00.0"]);
        assert_eq!(read(keyfile, "x", "[connection]\nid=any\n"), [""], "any card");
        assert_eq!(read(keyfile, "x", "[connection]\ntype=bond\ninterface-name=en0\n"), Vec::<String>::new());
        // SLES, wicked: the file's name is the card's.
        let text = "BOOTPROTO='static'\nIPADDR='192.0.2.7/24'\nIPADDR_1='192.0.2.8/24'\nSTARTMODE='auto'\n";
        assert_eq!(read(ifcfg_of_suse, "ifcfg-eth0", text), ["name=eth0 192.0.2.7/24,192.0.2.8/24"]);
        assert_eq!(read(ifcfg_of_suse, "ifcfg-eth-id-00:50:56:AA:BB:CC", "IPADDR=192.0.2.7/24\n"), by_mac);
        assert_eq!(read(ifcfg_of_suse, "ifcfg-lo", "IPADDR=127.0.0.1/8\n"), Vec::<String>::new());
        // systemd-networkd.
        let text = "[Match]\nName=ens192\n[Network]\nAddress=192.0.2.7/24\n";
        assert_eq!(read(networkd, "a.network", text), by_name);
        assert_eq!(
            read(networkd, "a.network", &text.replace("Name=ens192", &format!("MACAddress={MAC}"))),
            by_mac
        );
        let text = "[Match]\nPath=pci-0000:0b:00.0\n[Link]\nMACAddress=02:00:00:00:00:01\n[Address]\nAddress=192.0.2.7/24\n";
        assert_eq!(read(networkd, "a.network", text), [format!("at=pci-0000:0b:00.0 {NET}")]);
    }

    #[test]
    fn a_name_that_the_guest_gives_by_mac_or_place_is_known_by_that() {
        let rules = "# a comment, NAME=\"eth9\"\nSUBSYSTEM==\"net\", ACTION==\"add\", DRIVERS==\"?*\", ATTR{address}==\"00:50:56:AA:BB:CC\", \
                     ATTR{dev_id}==\"0x0\", ATTR{type}==\"1\", KERNEL==\"eth*\", NAME=\"eth0\"\n\
                     SUBSYSTEM==\"net\", KERNELS==\"0000:0b:00.0\", NAME=\"lan0\"\n";
        let namings = udev(rules);
        let found = ["eth0", "lan0", "lan1", "eth1"].map(of_name).to_vec();
        let expected = [
            format!("name=eth0 mac={MAC} named"),
            "name=eth1".into(),
            "name=lan0 at=pci-0000:0b:00.0 named".into(),
        ];
        assert_eq!(told(merged(found, &namings)), expected);
        let text = "[Match]\nMACAddress=00:50:56:AA:BB:CC\n[Link]\nName=lan1\n";
        let namings: Vec<Naming> = link(text).into_iter().collect();
        assert_eq!(told(merged(vec![of_name("lan1")], &namings)), [format!("name=lan1 mac={MAC} named")]);
        assert_eq!(link("[Match]\nOriginalName=*\n[Link]\nNamePolicy=kernel\n"), None);
    }

    #[test]
    fn netplan_tells_every_card_and_no_name_server() {
        let text = "network:\n  version: 2\n  ethernets:\n    ens160:\n      addresses: [192.0.2.7/24, \"2001:db8::7/64\"]\n      \
                    nameservers:\n        addresses: [192.0.2.53]\n    ens192:\n      dhcp4: true\n    ens224:\n      addresses:\n        - \
                    203.0.113.1/24\n      nameservers:\n        addresses:\n          - 203.0.113.53\n  bonds:\n    bond0:\n      \
                    interfaces: [ens192]\n";
        let expected =
            ["name=ens160 192.0.2.7/24,2001:db8::7/64", "name=ens192", "name=ens224 203.0.113.1/24"];
        assert_eq!(read(netplan, "a.yaml", text), expected);
        assert_eq!(read(netplan, "a.yaml", "# network:\nnetwork: {version: 2}\n"), Vec::<String>::new());
    }

    #[test]
    fn a_file_of_many_names_and_addresses_gives_a_few() {
        let many = |key: &str| format!("{key}=en0\n").repeat(2_000);
        let found = networkd("x", &format!("[Match]\n{}[Network]\n{}", many("Name"), many("Address")));
        assert_eq!((found.len(), found[0].addresses.len()), (INTERFACES_MAX, ADDRESSES_MAX));
        let found: Vec<Interface> = (0..2_000).map(|number| of_name(&format!("en{number}"))).collect();
        assert_eq!(merged(found, &[]).len(), INTERFACES_MAX);
        let long = Interface { place: Some("x".repeat(WORD_BYTES_MAX + 1)), ..Interface::default() };
        assert_eq!(merged(vec![long], &[]), []);
    }

    #[test]
    fn only_names_that_come_of_the_hardware_count() {
        assert!(["ens192", "enp3s0", "eno1", "eth0", "en*"].into_iter().all(is_of_hardware));
        let others = ["lo", "bond0", "br0", "lan", "eth0:1", "eth0123456789abcdef"];
        assert!(others.into_iter().all(|name| !is_of_hardware(name)));
    }
}
