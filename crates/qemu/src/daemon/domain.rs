use std::io::Write;

use roxmltree::Node;

use super::{Daemon, parsed};
use crate::child::private_folder;
use crate::error::QemuError;
use crate::xml::Xml;

/// Whose a domain is: of which plan, and which VM of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the plan.
    pub plan: String,
    /// The source's id of the VM.
    pub vm: String,
    /// The source's UUID of the VM.
    pub instance: String,
}

/// A domain that a daemon has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDomain {
    /// UUID.
    pub uuid: String,
    /// Name.
    pub name: String,
    /// Whose it is; absent if drover did not define it.
    pub owner: Option<Owner>,
    /// Whether it runs, or is paused or about to go down: anything but off.
    pub runs: bool,
}

impl Owner {
    pub(crate) fn write(&self, xml: &mut Xml) {
        xml.open("metadata", &[]);
        let whose = [("plan", self.plan.as_str()), ("vm", &self.vm), ("instance", &self.instance)];
        xml.leaf("drover:owner", &[&[("xmlns:drover", NAMESPACE)], &whose[..]].concat());
        xml.close();
    }

    fn read(domain: Node<'_, '_>) -> Option<Owner> {
        let metadata = domain.children().find(|node| node.has_tag_name("metadata"))?;
        let owner = metadata.children().find(|node| node.has_tag_name((NAMESPACE, "owner")))?;
        let told = |name: &str| owner.attribute(name).map(str::to_string);
        Some(Owner { plan: told("plan")?, vm: told("vm")?, instance: told("instance")? })
    }
}

impl Daemon {
    /// The domains that have this name or this UUID: none, one, or two.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn domains_of(&self, name: &str, uuid: Option<&str>) -> Result<Vec<FoundDomain>, QemuError> {
        let is_meant = |(its, called): &(String, String)| {
            called == name || uuid.is_some_and(|uuid| uuid.eq_ignore_ascii_case(its))
        };
        let meant = |virsh: &crate::Virsh| -> Result<Vec<(String, String)>, QemuError> {
            Ok(virsh.domains()?.into_iter().filter(is_meant).collect())
        };
        let mut found = Vec::new();
        for (uuid, name) in meant(&self.virsh)? {
            match self.look(&uuid, &name) {
                Ok(domain) => found.push(domain),
                // It went away in between.
                Err(_) if !meant(&self.virsh)?.iter().any(|(other, _)| *other == uuid) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn look(&self, uuid: &str, name: &str) -> Result<FoundDomain, QemuError> {
        let xml = self.virsh.ask(&["dumpxml", "--inactive", uuid])?;
        let owner = Owner::read(parsed(&xml, "the domain's XML")?.root_element());
        let state = self.virsh.ask(&["domstate", uuid])?;
        let runs = !matches!(state.trim(), "shut off" | "crashed");
        Ok(FoundDomain { uuid: uuid.to_string(), name: name.to_string(), owner, runs })
    }

    /// Defines a domain, checked by the daemon against its schema; one with the same name and UUID is changed.
    ///
    /// # Errors
    /// If the daemon refuses it, in its words.
    pub fn define(&self, xml: &str) -> Result<(), QemuError> {
        let failed = |error| QemuError::io("writing a domain's XML for virsh", error);
        let folder = private_folder().map_err(failed)?;
        let file = folder.path().join("domain.xml");
        std::fs::File::create_new(&file)
            .and_then(|mut file| file.write_all(xml.as_bytes()))
            .map_err(failed)?;
        self.virsh.ask(&["define", "--validate", &file.to_string_lossy()]).map(drop)
    }

    /// Whether the daemon starts a domain whenever it starts itself.
    ///
    /// # Errors
    /// If it refuses.
    pub fn set_autostart(&self, uuid: &str, is_on: bool) -> Result<(), QemuError> {
        let words: &[&str] = if is_on { &["autostart", uuid] } else { &["autostart", "--disable", uuid] };
        self.virsh.ask(words).map(drop)
    }

    /// Removes a domain's definition, and its firmware variables; its disks stay.
    ///
    /// # Errors
    /// If the daemon refuses: also where it holds a saved state or snapshots, which show that the guest was used.
    pub fn undefine(&self, uuid: &str) -> Result<(), QemuError> {
        self.virsh.ask(&["undefine", "--nvram", uuid]).map(drop)
    }
}

/// Drover's own elements in a domain's metadata.
const NAMESPACE: &str = "urn:drover:domain:1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::{DomainOptions, domain_xml};
    use crate::spec::tests::machine;

    #[test]
    fn a_domain_says_whose_it_is() {
        let owner = Owner { plan: "p".into(), vm: "vm-1".into(), instance: "<'&\">".into() };
        let spec = machine(std::path::Path::new("/vm"));
        let options = DomainOptions { owner: Some(owner.clone()), ..DomainOptions::default() };
        let read = |xml: &str| Owner::read(parsed(xml, "a domain").unwrap().root_element());
        assert_eq!(read(&domain_xml(&spec, &options)), Some(owner));
        assert_eq!(read(&domain_xml(&spec, &DomainOptions::default())), None);
        // The same words in somebody else's namespace are somebody else's.
        assert_eq!(read(&domain_xml(&spec, &options).replace(NAMESPACE, "urn:other")), None);
    }
}
