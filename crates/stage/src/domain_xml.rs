//! Domain XML held against what was asked for.

use std::collections::HashMap;

use roxmltree::{Document, Node};

/// What a domain lacks of the XML that it was defined by, and has beyond it of devices that were asked for. Devices of one kind count in
/// their order; what libvirt fills in does not.
pub fn differences(asked: &str, has: &str) -> Vec<String> {
    let (asked, has) = (Document::parse(asked).unwrap(), Document::parse(has).unwrap());
    let mut found = missing(asked.root_element(), has.root_element());
    for kind in ["disk", "interface", "serial", "channel", "tpm", "rng", "graphics", "video"] {
        let count = |document: &Document<'_>| devices(document, kind).count();
        if count(&asked) != count(&has) {
            found.push(format!("{} of {kind}, not {}", count(&has), count(&asked)));
        }
    }
    found
}

/// What an element lacks of another.
fn missing(asked: Node<'_, '_>, has: Node<'_, '_>) -> Vec<String> {
    let tag = asked.tag_name().name();
    if tag == "memory" {
        return if kib(asked) == kib(has) { Vec::new() } else { vec![source(asked)] };
    }
    let mut lacks = Vec::new();
    for attribute in asked.attributes() {
        let (name, value) = (attribute.name(), attribute.value());
        // The newest of a family of machines is asked for by the family's name.
        let is_it = |it: &str| it == value || name == "machine" && it.starts_with(&format!("pc-{value}-"));
        if !has.attribute(name).is_some_and(is_it) {
            lacks.push(format!("{tag} {name}='{value}'"));
        }
    }
    let text = |node: Node<'_, '_>| node.text().unwrap_or_default().trim().to_string();
    if text(asked) != text(has) {
        lacks.push(source(asked));
    }
    let mut next: HashMap<&str, usize> = HashMap::new();
    for child in asked.children().filter(Node::is_element) {
        let name = child.tag_name().name();
        let from = if tag == "devices" { next.get(name).copied().unwrap_or_default() } else { 0 };
        let mut all = has.children().filter(|it| it.tag_name() == child.tag_name()).enumerate().skip(from);
        match all.find(|(_, it)| missing(child, *it).is_empty()) {
            Some((at, _)) => drop(next.insert(name, at + 1)),
            None => lacks.push(source(child)),
        }
    }
    lacks
}

/// What a domain is, a line for each part.
pub fn parts(xml: &str) -> Vec<String> {
    let document = Document::parse(xml).unwrap();
    let root = document.root_element();
    let text = |name| child(root, name).and_then(|it| it.text()).unwrap_or_default().to_string();
    let cpu = child(root, "cpu").unwrap();
    let cpu = child(cpu, "model").and_then(|it| it.text()).or(cpu.attribute("mode")).unwrap();
    let (memory_mib, cpus) = (kib(child(root, "memory").unwrap()) / 1024, text("vcpu"));
    let os = child(root, "os").unwrap();
    let is_on = |it: &Node<'_, '_>| it.attribute("enabled") == Some("yes");
    let mut on: Vec<&str> = os.descendants().filter(is_on).filter_map(|it| it.attribute("name")).collect();
    on.sort_unstable();
    let firmware = os.attribute("firmware").unwrap_or("bios");
    let nvram = if child(os, "nvram").is_some() { " nvram" } else { "" };
    let mut parts = vec![
        format!("{} {} {memory_mib} MiB, {cpus} of {cpu}", text("name"), text("uuid")),
        format!("{firmware}{nvram} {}", on.join(" ")),
        format!("clock {}", child(root, "clock").and_then(|it| it.attribute("offset")).unwrap()),
    ];
    parts.extend(devices(&document, "disk").map(|disk| {
        let (source, driver) = (child(disk, "source").unwrap(), child(disk, "driver").unwrap());
        let target = child(disk, "target").unwrap();
        format!(
            "{} disk {} {} {} {} {} {}",
            driver.attribute("type").unwrap(),
            source.attribute("file").unwrap_or_default(),
            target.attribute("dev").unwrap(),
            target.attribute("bus").unwrap(),
            child(disk, "serial").and_then(|it| it.text()).unwrap_or("no serial"),
            child(disk, "boot").and_then(|it| it.attribute("order")).unwrap_or("no order"),
            ["cache", "io", "discard"].map(|name| driver.attribute(name).unwrap_or("usual")).join("/")
        )
    }));
    parts.extend(devices(&document, "interface").map(|nic| {
        let to = child(nic, "source");
        let to = ["bridge", "network"].into_iter().find_map(|name| to?.attribute(name)).unwrap_or("nothing");
        let attribute = |name: &str, of: &str| child(nic, name).and_then(|it| it.attribute(of)).unwrap();
        let kind = nic.attribute("type").unwrap();
        format!("NIC {} {} to {kind} {to}", attribute("mac", "address"), attribute("model", "type"))
    }));
    let is_scsi = |it: &Node<'_, '_>| it.attribute("type") == Some("scsi");
    let scsi = devices(&document, "controller").filter(is_scsi);
    parts.extend(scsi.map(|it| format!("SCSI {}", it.attribute("model").unwrap_or_default())));
    parts
}

fn devices<'a, 'i>(document: &'a Document<'i>, kind: &'a str) -> impl Iterator<Item = Node<'a, 'i>> {
    let devices = child(document.root_element(), "devices").unwrap();
    devices.children().filter(move |it| it.has_tag_name(kind))
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|it| it.has_tag_name(name))
}

fn kib(memory: Node<'_, '_>) -> u64 {
    let number: u64 = memory.text().unwrap().trim().parse().unwrap();
    if memory.attribute("unit") == Some("MiB") { number * 1024 } else { number }
}

fn source(node: Node<'_, '_>) -> String {
    node.document().input_text()[node.range()].to_string()
}
