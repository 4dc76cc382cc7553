use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child;

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
    check_with(drover_child::command(program, drover_child::Kind::Plain).args(arguments), xml)
        .unwrap_or_else(|why| Validation::NotChecked(format!("{program}: {why}")))
}

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

    #[test]
    fn what_is_no_domain_is_refused_with_a_reason() {
        match validate_xml("<domain type='kvm'><name>x</name><bogus/></domain>") {
            Validation::Invalid(why) => assert!(why.contains("domain"), "{why}"),
            Validation::NotChecked(why) => println!("skipped: {why}"),
            Validation::Valid => panic!("a domain without memory passed"),
        }
    }
}
