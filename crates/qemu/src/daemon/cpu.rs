use std::collections::BTreeSet;

use super::{Daemon, Offers, parsed};
use crate::child::private_folder;
use crate::error::{QemuError, QemuErrorKind};

/// A CPU as libvirt describes it: a model, and what differs from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuModel {
    /// The model.
    pub model: String,
    /// Who makes hosts that have it; absent: nobody in particular.
    pub vendor: Option<String>,
    /// Features with what is to become of each (`require`, `disable`).
    pub features: Vec<(String, String)>,
}

impl CpuModel {
    fn read(xml: &str) -> Result<CpuModel, QemuError> {
        let document = parsed(xml, "a CPU's XML")?;
        let root = document.root_element();
        let text = |name: &str| {
            let node = root.children().find(|node| node.has_tag_name(name))?;
            node.text().map(|text| text.trim().to_string())
        };
        let features = root.children().filter(|node| node.has_tag_name("feature"));
        let pair = |node: roxmltree::Node<'_, '_>| {
            Some((node.attribute("name")?.to_string(), node.attribute("policy")?.to_string()))
        };
        Ok(CpuModel {
            model: text("model").ok_or_else(|| {
                QemuError::new(QemuErrorKind::Failed, "reading a CPU's XML").because("it names no model")
            })?,
            vendor: text("vendor"),
            features: features.filter_map(pair).collect(),
        })
    }
}

impl Daemon {
    /// The CPU that all of these daemons offer to domains of this machine type, by what each said.
    ///
    /// # Errors
    /// In libvirt's words if there is none, as between hosts of different makers.
    pub fn common_cpu(&self, is_kvm: bool, machine: &str, offers: &[&Offers]) -> Result<CpuModel, QemuError> {
        let all = offers.iter().map(|offers| offers.xml.as_str()).collect::<Vec<_>>();
        CpuModel::read(&self.baseline(is_kvm, machine, &all, &[])?)
    }

    /// All features of the CPU that a daemon offers to domains of this machine type.
    ///
    /// # Errors
    /// If it does not tell.
    pub fn cpu_features(
        &self,
        is_kvm: bool,
        machine: &str,
        offers: &Offers,
    ) -> Result<BTreeSet<String>, QemuError> {
        let cpu =
            CpuModel::read(&self.baseline(is_kvm, machine, &[offers.xml.as_str()], &["--features"])?)?;
        Ok(cpu.features.into_iter().filter(|(_, policy)| policy == "require").map(|(name, _)| name).collect())
    }

    fn baseline(
        &self,
        is_kvm: bool,
        machine: &str,
        offers: &[&str],
        more: &[&str],
    ) -> Result<String, QemuError> {
        let failed = |error| QemuError::io("writing what hosts offer for virsh", error);
        let folder = private_folder().map_err(failed)?;
        let file = folder.path().join("offers.xml");
        std::fs::write(&file, offers.concat()).map_err(failed)?;
        let file = file.to_string_lossy();
        let kind = if is_kvm { "kvm" } else { "qemu" };
        let words = ["hypervisor-cpu-baseline", "--virttype", kind, "--arch", "x86_64", "--machine", machine];
        self.virsh.ask(&[&words[..], &["--file", &file], more].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_a_model_and_what_differs_from_it() {
        let xml = "<cpu mode='custom' match='exact'>\n  <model fallback='forbid'>EPYC</model>\n<vendor>AMD</vendor>\
                   <feature policy='require' name='pku'/><feature policy='disable' name='vme'/></cpu>\n";
        let cpu = CpuModel::read(xml).unwrap();
        let features = [("pku", "require"), ("vme", "disable")].map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(
            cpu,
            CpuModel { model: "EPYC".into(), vendor: Some("AMD".into()), features: features.into() }
        );
        assert!(CpuModel::read("<cpu/>").is_err() && CpuModel::read("").is_err());
    }
}
