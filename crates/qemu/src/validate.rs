use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::child;
use crate::folder::VmFolder;
use crate::libvirt::libvirt_xml;
use crate::spec::MachineSpec;
use drover_child::Kind;

/// What libvirt's schema says of a domain XML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validation {
    /// It is a domain.
    Valid,
    /// It is not, and why.
    Invalid(String),
    /// Nobody here can tell, and why.
    NotChecked(String),
}

/// Checks domain XML against libvirt's own schema, with libvirt's own tool or `xmllint`.
pub fn validate_xml(xml: &str) -> Validation {
    let found = if on_path("xmllint") { checker() } else { None };
    let Some((program, arguments)) = found else {
        return Validation::NotChecked(
            "no libvirt schema here (packages libvirt-clients and libxml2-utils have it)".into(),
        );
    };
    check_with(drover_child::command(program, Kind::Plain).args(arguments), xml)
        .unwrap_or_else(|why| Validation::NotChecked(format!("{program}: {why}")))
}

/// As [`validate_xml`], of a machine's definition. What differs from one that was found valid in names, addresses and
/// memory alone is not checked again: the checker takes half of the time that a small VM's move takes of a processor.
pub(crate) fn validate_machine(spec: &MachineSpec, xml: &str) -> Validation {
    static VALID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let valid = || VALID.lock().unwrap_or_else(PoisonError::into_inner);
    let shape = libvirt_xml(&shape_of(spec));
    if valid().contains(&shape) {
        return Validation::Valid;
    }
    let found = validate_xml(xml);
    if found == Validation::Valid && valid().len() < SHAPES_MAX {
        valid().insert(shape);
    }
    found
}

/// The machine without what tells it from others of its kind. What has a character that a schema could mind stays.
fn shape_of(spec: &MachineSpec) -> MachineSpec {
    let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c));
    let name =
        |text: &str| if is_plain(text) && !text.is_empty() { "x".to_string() } else { text.to_string() };
    let path = |path: &Path| match path.to_str() {
        Some(text) if path.is_absolute() && is_plain(text) => PathBuf::from("/x"),
        _ => path.to_path_buf(),
    };
    let words = |text: &Option<String>| {
        text.as_ref().map(|text| match is_plain(&text.replace([' ', '(', ')', ','], "")) {
            true => "x".to_string(),
            false => text.clone(),
        })
    };
    let mut shape = spec.clone();
    shape.name = name(&spec.name);
    (shape.title, shape.description) = (words(&spec.title), words(&spec.description));
    shape.folder = VmFolder::new(&path(spec.folder.path()));
    // Both were looked at by the machine's own check.
    shape.uuid = spec.uuid.as_ref().map(|_| UUID.into());
    shape.nics.iter_mut().for_each(|nic| nic.mac = MAC.into());
    shape.disks.iter_mut().for_each(|disk| disk.path = path(&disk.path));
    shape.memory_mib = 1;
    shape
}

const UUID: &str = "00000000-0000-4000-8000-000000000000";
const MAC: &str = "52:54:00:00:00:00";
/// Kinds of machines that are remembered; a plan has a few.
const SHAPES_MAX: usize = 1000;

fn checker() -> Option<(&'static str, &'static [&'static str])> {
    if on_path("virt-xml-validate") {
        return Some(("virt-xml-validate", &[]));
    }
    Path::new(SCHEMA).is_file().then_some(("xmllint", &["--noout", "--relaxng", SCHEMA]))
}

fn check_with(command: &mut Command, xml: &str) -> Result<Validation, String> {
    let folder = child::private_folder().map_err(|error| error.to_string())?;
    let file = folder.path().join("domain.xml");
    fs::write(&file, xml).map_err(|error| error.to_string())?;
    command.arg(&file);
    if command.get_program() == "virt-xml-validate" {
        command.arg("domain");
    }
    let ended = child::run(command, VALIDATE_TIME_MAX).map_err(|error| error.to_string())?;
    if ended.success { Ok(Validation::Valid) } else { Ok(Validation::Invalid(ended.words())) }
}

/// Whether a program can be started by its name.
pub(crate) fn on_path(program: &str) -> bool {
    find_program(program, &[]).is_some()
}

/// The program of that name in `PATH`, then in other folders.
pub(crate) fn find_program(program: &str, others: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(others.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";
const VALIDATE_TIME_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::machine;
    use crate::spec::{DiskBus, MachineFirmware};

    #[test]
    fn machines_that_differ_in_names_and_numbers_are_of_one_shape_and_others_are_not() {
        let one = machine(Path::new("/vms/web01"));
        let shape = |change: &dyn Fn(&mut MachineSpec)| {
            let mut other = machine(Path::new("/vms/db-02"));
            other.name = "db-02".into();
            other.nics.iter_mut().for_each(|nic| nic.mac = "52:54:00:12:34:56".into());
            other.memory_mib += 1;
            change(&mut other);
            libvirt_xml(&shape_of(&other))
        };
        let same = libvirt_xml(&shape_of(&one));
        assert_eq!(shape(&|_| ()), same);
        assert_ne!(same, libvirt_xml(&one));
        assert_ne!(shape(&|it| it.name = "a b".into()), same, "what a schema could mind is checked");
        assert_ne!(shape(&|it| it.disks[0].path = "/vms/a b".into()), same);
        assert_ne!(shape(&|it| it.disks.truncate(1)), same);
        assert_ne!(shape(&|it| it.disks[0].bus = DiskBus::Sata), same);
        let uefi = || MachineFirmware::Uefi { secure_boot: true, files: None };
        assert_ne!(shape(&|it| it.firmware = uefi()), same);
    }

    #[test]
    fn what_is_no_domain_is_refused_with_a_reason() {
        match validate_xml("<domain type='kvm'><name>x</name><bogus/></domain>") {
            Validation::Invalid(why) => assert!(why.contains("domain"), "{why}"),
            Validation::NotChecked(why) => println!("skipped: {why}"),
            Validation::Valid => panic!("a domain without memory passed"),
        }
    }
}
