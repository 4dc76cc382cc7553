use serde::{Deserialize, Serialize};

/// Model of a NIC at a target, by the name that QEMU, libvirt and KubeVirt have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicModel {
    /// virtio-net: fastest; the guest needs its driver.
    Virtio,
    /// Intel 82574: Windows brings its driver along.
    E1000e,
    /// Intel 82545.
    E1000,
    /// VMware's own. KubeVirt has none, and builds of QEMU may leave it out.
    Vmxnet3,
}

impl NicModel {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            NicModel::Virtio => "virtio",
            NicModel::E1000e => "e1000e",
            NicModel::E1000 => "e1000",
            NicModel::Vmxnet3 => "vmxnet3",
        }
    }
}
