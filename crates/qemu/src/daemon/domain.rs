use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use roxmltree::Node;

use super::{Daemon, parsed};
use crate::child::private_folder;
use crate::error::{QemuError, QemuErrorKind};
use crate::machine::{WATCH_KVM, kvm_words};
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

/// What a disk of a domain lies on, or is backed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainDisk {
    /// The domain's name.
    pub domain: String,
    /// Whose that is; absent if drover did not define it.
    pub owner: Option<Owner>,
    /// A file or device of its host; absent if it is told by its volume.
    pub path: Option<PathBuf>,
    /// A pool and a volume of it.
    pub volume: Option<(String, String)>,
}

impl DomainDisk {
    fn read(domain: &str, xml: &str) -> Result<Vec<DomainDisk>, QemuError> {
        let document = parsed(xml, "the domain's XML")?;
        let root = document.root_element();
        let owner = Owner::read(root);
        let disks = root.descendants().filter(|node| node.has_tag_name("disk"));
        let sources = disks.flat_map(|disk| disk.descendants().filter(|node| node.has_tag_name("source")));
        let disk = |source: Node<'_, '_>| {
            let told = |name: &str| source.attribute(name).map(str::to_string);
            let path = told("dev").or(told("file")).map(PathBuf::from);
            let volume = told("pool").zip(told("volume"));
            let is_told = path.is_some() || volume.is_some();
            is_told.then(|| DomainDisk { domain: domain.to_string(), owner: owner.clone(), path, volume })
        };
        Ok(sources.filter_map(disk).collect())
    }
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

    /// The disks of all its domains, of those that run also such as were plugged in.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn disks_of_domains(&self) -> Result<Vec<DomainDisk>, QemuError> {
        let mut disks = Vec::new();
        for (uuid, name) in self.virsh.domains()? {
            for words in [&["dumpxml", "--inactive", uuid.as_str()][..], &["dumpxml", uuid.as_str()]] {
                match self.virsh.ask(words) {
                    Ok(xml) => disks.extend(DomainDisk::read(&name, &xml)?),
                    // It went away in between.
                    Err(_) if !self.virsh.domains()?.iter().any(|(other, _)| *other == uuid) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(disks)
    }

    fn look(&self, uuid: &str, name: &str) -> Result<FoundDomain, QemuError> {
        let xml = self.virsh.ask(&["dumpxml", "--inactive", uuid])?;
        let owner = Owner::read(parsed(&xml, "the domain's XML")?.root_element());
        let state = self.virsh.ask(&["domstate", uuid])?;
        let runs = !matches!(state.trim(), "shut off" | "crashed");
        Ok(FoundDomain { uuid: uuid.to_string(), name: name.to_string(), owner, runs })
    }

    /// Watches a domain that was started, and gives for how long it ran. What is not answered tells nothing of the domain, and
    /// is asked again. `is_unwanted` ends it early.
    ///
    /// # Errors
    /// If it stops: its state and the reason, with what QEMU says of it where its log can be read.
    pub fn watch(
        &self,
        domain: &FoundDomain,
        is_kvm: bool,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Duration, QemuError> {
        let (began, time) = (Instant::now(), if is_kvm { WATCH_KVM } else { LOOK });
        loop {
            let state = self.virsh.ask(&["domstate", &domain.uuid, "--reason"]).unwrap_or_default();
            if has_stopped(state.trim()) {
                return Err(self.stopped(domain, began.elapsed(), state.trim()));
            }
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() || is_unwanted() {
                return Ok(began.elapsed());
            }
            thread::sleep(left.min(LOOK));
        }
    }

    fn stopped(&self, domain: &FoundDomain, after: Duration, state: &str) -> QemuError {
        let log = Path::new(LOGS).join(format!("{}.log", domain.name));
        let what =
            format!("domain {} at {} stopped {} s after its start", domain.name, self.uri(), after.as_secs());
        let words = match self.uri().starts_with(HERE) {
            true => kvm_words(since_start(&std::fs::read(&log).unwrap_or_default())),
            false => None,
        };
        match words {
            Some(words) => QemuError::new(QemuErrorKind::Kvm, what).because(format!("{state}: {words}")),
            None => QemuError::new(QemuErrorKind::Failed, what)
                .because(format!("{state}; see {} on its host", log.display())),
        }
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

/// Whether a domain that was started does not run any more, and neither somebody nor its guest wanted that. `state` is what
/// `virsh domstate --reason` says; what libvirt has no reason for is `paused (unknown)`, also where KVM gave the guest up.
///
/// Source: libvirt `tools/virsh-domain-monitor.c`.
fn has_stopped(state: &str) -> bool {
    let bad: &[&str] = match state.split(" (").next().unwrap_or_default() {
        "paused" => &["unknown", "I/O error", "watchdog", "crashed", "api error"],
        "shut off" => &["unknown", "crashed", "failed"],
        "crashed" => return true,
        _ => return false,
    };
    bad.iter().any(|reason| state.ends_with(&format!("({reason})")))
}

/// What a domain's log says of its last start: libvirt appends to it, and begins each start with such a line.
///
/// Source: libvirt `src/qemu/qemu_process.c`, `qemuLogOperation`.
fn since_start(log: &[u8]) -> &[u8] {
    log.windows(STARTS.len()).rposition(|words| words == STARTS).map_or(log, |at| &log[at..])
}

const STARTS: &[u8] = b": starting up libvirt version: ";
const LOOK: Duration = Duration::from_secs(1);
/// The daemon of this host, and where it keeps what QEMU says.
const HERE: &str = "qemu:///system";
const LOGS: &str = "/var/log/libvirt/qemu";
/// Drover's own elements in a domain's metadata.
const NAMESPACE: &str = "urn:drover:domain:1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::{DomainOptions, domain_xml};
    use crate::spec::tests::machine;

    #[test]
    fn a_domain_that_nobody_wanted_to_stop_has_stopped() {
        let bad = ["paused (unknown)", "paused (I/O error)", "crashed (panicked)", "shut off (crashed)"];
        assert!(bad.iter().all(|state| has_stopped(state)));
        let fine = ["running (booted)", "paused (user)", "paused (starting up)", "shut off (shutdown)", ""];
        assert!(!fine.iter().any(|state| has_stopped(state)));
    }

    #[test]
    fn what_qemu_said_at_an_earlier_start_is_no_reason_of_this_one() {
        let gave_up = "2026-11-30 09:00:00.000+0000: starting up libvirt version: 11.3.0, qemu version: 10.0.2\nKVM: entry failed, hardware error 0x0\n";
        let words = |log: &str| kvm_words(since_start(log.as_bytes()));
        assert_eq!(words(gave_up).as_deref(), Some("KVM: entry failed, hardware error 0x0"));
        let again = "2026-11-30 10:00:00.000+0000: starting up libvirt version: 11.3.0, qemu version: 10.0.2\nchar device redirected\n";
        assert_eq!(words(&format!("{gave_up}{again}")), None);
        assert!(words("KVM: entry failed, hardware error 0x0\n").is_some(), "the rest of a log that was cut");
    }

    #[test]
    fn a_domain_says_what_its_disks_lie_on() {
        let xml = "<domain><name>a</name><devices>\
            <disk type='block'><source dev='/dev/disk/by-path/x'/></disk>\
            <disk type='file'><source file='/a.qcow2'/><backingStore type='block'><source dev='/dev/sdb'/></backingStore></disk>\
            <disk type='volume'><source pool='san' volume='unit:0:0:1'/></disk>\
            <disk type='network'><source protocol='rbd' name='vms/a'/></disk>\
            <interface><source dev='eth0'/></interface></devices></domain>";
        let found = DomainDisk::read("a", xml).unwrap();
        let paths: Vec<_> = found.iter().filter_map(|it| it.path.as_ref()?.to_str()).collect();
        assert_eq!(paths, ["/dev/disk/by-path/x", "/a.qcow2", "/dev/sdb"]);
        let volumes: Vec<_> = found.iter().filter_map(|it| it.volume.clone()).collect();
        assert_eq!(volumes, [("san".to_string(), "unit:0:0:1".to_string())]);
        assert!(found.iter().all(|it| it.domain == "a" && it.owner.is_none()));
    }

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
