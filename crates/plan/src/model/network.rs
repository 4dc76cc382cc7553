//! What NICs are attached to at the target.

use serde::{Deserialize, Serialize};

/// What a NIC is attached to at the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkTarget {
    /// A bridge of the target machine.
    Bridge(String),
    /// QEMU's user-mode network: outgoing connections only.
    User,
    /// Nothing: the NIC is left out.
    None,
    /// What only libvirt attaches a NIC to.
    Libvirt(LibvirtNetwork),
    /// What only KubeVirt attaches a NIC to.
    Kubevirt(KubevirtNetwork),
}

/// What KubeVirt attaches a NIC to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KubevirtNetwork {
    /// The network of the cluster's pods, behind an address translation of its own.
    PodMasquerade,
    /// The same as a bridge: the guest has the pod's address.
    PodBridge,
    /// A NetworkAttachmentDefinition of Multus, `NAME` or `NAMESPACE/NAME`.
    Nad(String),
}

/// What libvirt attaches a NIC to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LibvirtNetwork {
    /// What the name is the name of.
    pub kind: LibvirtNetworkKind,
    /// Name of the network, bridge or device.
    pub name: String,
    /// VLAN tags; more than one is a trunk.
    #[serde(default)]
    pub vlans: Vec<u16>,
    /// Port group of a libvirt network.
    #[serde(default)]
    pub portgroup: Option<String>,
}

/// Kinds of what libvirt attaches a NIC to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LibvirtNetworkKind {
    /// A network of libvirt's own.
    Network,
    /// A bridge of Open vSwitch.
    Ovs,
    /// A device of the host, shared by macvtap.
    Direct,
}

impl NetworkTarget {
    /// Reads what a plan's network map says: `br0`, `user`, `none`, `bridge:br0`, `network:lan,portgroup=p`,
    /// `ovs:br-int,vlan=42`, `direct:eth0`, `pod:masquerade`, `pod:bridge`, `nad:NAMESPACE/NAME`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<NetworkTarget, String> {
        let (kind, rest) = match (text, text.split_once(':')) {
            ("user", _) => return Ok(NetworkTarget::User),
            ("none", _) => return Ok(NetworkTarget::None),
            (_, None) => return Ok(NetworkTarget::Bridge(text.to_string())),
            (_, Some(("bridge", name))) => return device(name).map(NetworkTarget::Bridge),
            (_, Some(("pod", "masquerade"))) => {
                return Ok(NetworkTarget::Kubevirt(KubevirtNetwork::PodMasquerade));
            }
            (_, Some(("pod", "bridge"))) => return Ok(NetworkTarget::Kubevirt(KubevirtNetwork::PodBridge)),
            (_, Some(("pod", _))) => return Err("is neither pod:masquerade nor pod:bridge".into()),
            (_, Some(("nad", name))) => {
                return nad(name).map(|name| NetworkTarget::Kubevirt(KubevirtNetwork::Nad(name)));
            }
            (_, Some(("network", rest))) => (LibvirtNetworkKind::Network, rest),
            (_, Some(("ovs", rest))) => (LibvirtNetworkKind::Ovs, rest),
            (_, Some(("direct", rest))) => (LibvirtNetworkKind::Direct, rest),
            (_, Some(_)) => {
                return Err("begins with none of bridge:, network:, ovs:, direct:, pod: and nad:".into());
            }
        };
        let mut parts = rest.split(',');
        let name = parts.next().unwrap_or_default();
        let name = match kind {
            LibvirtNetworkKind::Network if is_name(name) => name.to_string(),
            LibvirtNetworkKind::Network => return Err("has no name of a network".into()),
            LibvirtNetworkKind::Ovs | LibvirtNetworkKind::Direct => device(name)?,
        };
        let mut network = LibvirtNetwork { kind, name, vlans: Vec::new(), portgroup: None };
        for part in parts {
            match (part.split_once('='), kind) {
                (Some(("vlan", tags)), LibvirtNetworkKind::Ovs | LibvirtNetworkKind::Network) => {
                    network.vlans = vlans(tags)?;
                }
                (Some(("portgroup", name)), LibvirtNetworkKind::Network) if is_name(name) => {
                    network.portgroup = Some(name.to_string());
                }
                _ => return Err(format!("has '{part}', which does not go with it")),
            }
        }
        Ok(NetworkTarget::Libvirt(network))
    }
}

fn vlans(text: &str) -> Result<Vec<u16>, String> {
    let tags: Option<Vec<u16>> =
        text.split('+').map(|tag| tag.parse().ok().filter(|tag| (1..=4094).contains(tag))).collect();
    match tags {
        Some(mut tags) if tags.len() <= VLANS_MAX => {
            tags.sort_unstable();
            tags.dedup();
            Ok(tags)
        }
        _ => Err(format!("has VLAN tags '{text}', which are not numbers from 1 to 4094 with + between them")),
    }
}

/// A name that Linux gives a network device.
fn device(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if (1..=DEVICE_CHARS_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(name.to_string());
    }
    Err(format!("has '{name}', which is no name of a network device"))
}

/// The name of a NetworkAttachmentDefinition.
fn nad(name: &str) -> Result<String, String> {
    let parts: Vec<&str> = name.split('/').collect();
    if (1..=2).contains(&parts.len()) && parts.iter().all(|part| is_kube_name(part)) {
        return Ok(name.to_string());
    }
    Err(format!("has '{name}', which is no NAME or NAMESPACE/NAME of a NetworkAttachmentDefinition"))
}

/// Whether it can be the name of an object of Kubernetes: RFC 1123, with dots.
pub(crate) fn is_kube_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    (1..=KUBE_NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(fits)
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
}

/// Source: RFC 1123 as Kubernetes reads it.
const KUBE_NAME_BYTES_MAX: usize = 253;

fn is_name(name: &str) -> bool {
    !name.trim().is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(|c: char| c.is_control() || c == '/')
}

/// `IFNAMSIZ` of Linux less the closing zero.
const DEVICE_CHARS_MAX: usize = 15;
const NAME_BYTES_MAX: usize = 255;
/// There are no more tags.
const VLANS_MAX: usize = 4094;

#[cfg(test)]
mod tests {
    use super::*;

    fn libvirt(
        kind: LibvirtNetworkKind,
        name: &str,
        vlans: &[u16],
        portgroup: Option<&str>,
    ) -> NetworkTarget {
        let (name, portgroup) = (name.to_string(), portgroup.map(str::to_string));
        NetworkTarget::Libvirt(LibvirtNetwork { kind, name, vlans: vlans.to_vec(), portgroup })
    }

    #[test]
    fn each_kind_of_network_is_read_with_its_own_settings() {
        use LibvirtNetworkKind as K;
        for (text, wanted) in [
            ("br0", NetworkTarget::Bridge("br0".into())),
            ("bridge:none", NetworkTarget::Bridge("none".into())),
            ("user", NetworkTarget::User),
            ("none", NetworkTarget::None),
            ("network:the lan", libvirt(K::Network, "the lan", &[], None)),
            ("network:lan,portgroup=db,vlan=7", libvirt(K::Network, "lan", &[7], Some("db"))),
            ("ovs:br-int,vlan=42+10+42", libvirt(K::Ovs, "br-int", &[10, 42], None)),
            ("direct:eth0.7", libvirt(K::Direct, "eth0.7", &[], None)),
            ("pod:masquerade", NetworkTarget::Kubevirt(KubevirtNetwork::PodMasquerade)),
            ("pod:bridge", NetworkTarget::Kubevirt(KubevirtNetwork::PodBridge)),
            ("nad:prod/vlan7", NetworkTarget::Kubevirt(KubevirtNetwork::Nad("prod/vlan7".into()))),
        ] {
            assert_eq!(NetworkTarget::parse(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_with_its_reason() {
        for (text, words) in [
            ("vlan:7", "begins with none"),
            ("network:", "no name of a network"),
            ("pod:x", "is neither"),
            ("nad:a/b/c", "no NAME"),
            ("nad:Prod", "no NAME"),
            ("bridge:a name that is too long", "no name of a network device"),
            ("ovs:br0,vlan=0", "VLAN tags '0'"),
            ("ovs:br0,vlan=+5", "VLAN tags '+5'"),
            ("direct:eth0,vlan=5", "'vlan=5', which does not go with it"),
            ("ovs:br0,portgroup=x", "does not go with it"),
        ] {
            let why = NetworkTarget::parse(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
