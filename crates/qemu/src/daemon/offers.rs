use std::collections::BTreeMap;

use roxmltree::Node;

use super::parsed;
use crate::error::QemuError;

/// What a daemon offers to domains of a machine type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// CPU modes and models.
    pub cpus: Vec<String>,
    /// Models that it knows and its host cannot run, and the features that are missing.
    pub lacking: BTreeMap<String, Vec<String>>,
    /// Whether it chooses UEFI firmware.
    pub uefi: bool,
    /// Whether some of that has Secure Boot.
    pub secure_boot: bool,
    /// Whether it emulates a TPM.
    pub tpm: bool,
    /// Most virtual CPUs.
    pub cpus_max: Option<u32>,
    /// All of it, in libvirt's own form.
    pub(super) xml: String,
}

impl Offers {
    pub(super) fn read(xml: &str) -> Result<Offers, QemuError> {
        let document = parsed(xml, "what libvirt offers")?;
        let root = document.root_element();
        let os = child(root, "os");
        let loader = os.and_then(|os| child(os, "loader")).filter(is_supported);
        let tpm = child(root, "devices").and_then(|devices| child(devices, "tpm")).filter(is_supported);
        let cpu = child(root, "cpu");
        let (mut cpus, mut lacking) = (Vec::new(), BTreeMap::new());
        for mode in cpu
            .iter()
            .flat_map(|cpu| cpu.children())
            .filter(|node| node.has_tag_name("mode"))
            .filter(is_supported)
        {
            match mode.attribute("name").unwrap_or_default() {
                "custom" => {
                    let usable = |node: &Node<'_, '_>| node.attribute("usable") != Some("no");
                    let models = mode.children().filter(|node| node.has_tag_name("model")).filter(usable);
                    cpus.extend(models.filter_map(|node| node.text()).map(|name| name.trim().to_string()));
                    let blocked = mode.children().filter(|node| node.has_tag_name("blockers"));
                    lacking.extend(blocked.filter_map(|node| {
                        let features = node.children().filter_map(|it| it.attribute("name"));
                        Some((node.attribute("model")?.to_string(), features.map(str::to_string).collect()))
                    }));
                }
                name => cpus.push(name.to_string()),
            }
        }
        Ok(Offers {
            cpus,
            lacking,
            uefi: os.is_some_and(|os| values(os, "firmware").contains(&"efi")),
            secure_boot: loader.is_some_and(|loader| values(loader, "secure").contains(&"yes")),
            tpm: tpm.is_some_and(|tpm| values(tpm, "backendModel").contains(&"emulator")),
            cpus_max: child(root, "vcpu")
                .and_then(|node| node.attribute("max"))
                .and_then(|max| max.parse().ok()),
            xml: xml.to_string(),
        })
    }

    /// Why a CPU is not offered, in words; nothing if it is.
    pub fn lack_of_cpu(&self, cpu: &str) -> Option<String> {
        if self.cpus.iter().any(|it| it == cpu) {
            return None;
        }
        let why = match self.lacking.get(cpu) {
            Some(features) if !features.is_empty() => format!(": its host lacks {}", features.join(", ")),
            _ => String::new(),
        };
        Some(format!("does not offer the CPU {cpu}{why}"))
    }
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|it| it.has_tag_name(name))
}

fn is_supported(node: &Node<'_, '_>) -> bool {
    node.attribute("supported") == Some("yes")
}

/// The values of an enumeration.
fn values<'a>(node: Node<'a, '_>, name: &str) -> Vec<&'a str> {
    let all = node.children().filter(|it| it.has_tag_name("enum") && it.attribute("name") == Some(name));
    all.flat_map(|it| it.children())
        .filter(|it| it.has_tag_name("value"))
        .filter_map(|it| it.text())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_is_not_offered() {
        let xml = "<domainCapabilities><vcpu max='288'/><os supported='yes'><enum name='firmware'><value>efi</value></enum>\
                   <loader supported='yes'><enum name='secure'><value>yes</value><value>no</value></enum></loader></os>\
                   <cpu><mode name='host-passthrough' supported='no'/><mode name='host-model' supported='yes'/>\
                   <mode name='custom' supported='yes'><model usable='yes'>EPYC</model><model usable='no'>Skylake</model>\
                   <blockers model='Skylake'><feature name='hle'/><feature name='rtm'/></blockers><model usable='no'>486</model></mode></cpu>\
                   <devices><tpm supported='yes'><enum name='backendModel'><value>passthrough</value></enum></tpm></devices>\
                   </domainCapabilities>";
        let offers = Offers::read(xml).unwrap();
        assert_eq!(offers.cpus, ["host-model", "EPYC"]);
        let lack = |cpu: &str| offers.lack_of_cpu(cpu).unwrap_or_default();
        assert_eq!(lack("Skylake"), "does not offer the CPU Skylake: its host lacks hle, rtm");
        assert_eq!((lack("486").as_str(), lack("EPYC").as_str()), ("does not offer the CPU 486", ""));
        assert_eq!(
            (offers.uefi, offers.secure_boot, offers.tpm, offers.cpus_max),
            (true, true, false, Some(288))
        );
        let bare = xml.replace("supported='yes'><enum name='secure'", "supported='no'><enum name='secure'");
        assert!(!Offers::read(&bare).unwrap().secure_boot);
        let none = Offers::read("<domainCapabilities/>").unwrap();
        assert_eq!(none, Offers { xml: none.xml.clone(), ..Offers::default() });
    }
}
