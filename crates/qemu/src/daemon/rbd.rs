use drover_types::Secret;
use roxmltree::Node;

use super::Daemon;
use crate::error::{QemuError, QemuErrorKind};
use crate::xml::Xml;

/// Where the images of a pool of Ceph are, and how they are reached.
///
/// Source: libvirt `formatstorage.html`, "Storage pool source elements"; `formatdomain.html`, "Hard drives, floppy disks, CDROMs".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdPool {
    /// The pool's name at Ceph.
    pub name: String,
    /// Monitors, each with its port if one is said; none: those of the host's `ceph.conf`.
    pub monitors: Vec<(String, Option<u16>)>,
    /// Who asks; absent without authentication.
    pub auth: Option<RbdAuth>,
}

/// A user of Ceph, and the secret of libvirt that is its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdAuth {
    /// The user's name, without `client.`.
    pub user: String,
    /// What the secret is known by.
    pub secret: SecretName,
}

/// What libvirt knows a secret by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretName {
    /// Its UUID.
    Uuid(String),
    /// What it is for.
    Usage(String),
}

impl RbdPool {
    pub(super) fn read(source: Node<'_, '_>) -> Option<RbdPool> {
        let child = |name: &str| source.children().find(|node| node.has_tag_name(name));
        let monitor = |node: Node<'_, '_>| {
            // A domain takes an address of IPv6 without brackets only.
            let name = node.attribute("name")?.trim_matches(['[', ']']);
            Some((name.to_string(), node.attribute("port").and_then(|it| it.parse().ok())))
        };
        Some(RbdPool {
            name: child("name")?.text()?.trim().to_string(),
            monitors: source.children().filter(|it| it.has_tag_name("host")).filter_map(monitor).collect(),
            auth: child("auth").and_then(RbdAuth::read),
        })
    }

    /// The monitors and the pool: what hosts that share it call it alike.
    pub(super) fn place(&self) -> String {
        let monitors: Vec<&str> = self.monitors.iter().map(|(host, _)| host.as_str()).collect();
        format!("rbd:{}:{}", monitors.join(","), self.name)
    }

    /// What QEMU opens an image of the pool by (`--image-opts`). The key is that of the object `key`.
    ///
    /// Source: QEMU `qapi/block-core.json`, `BlockdevOptionsRbd`.
    pub(crate) fn image_options(&self, image: &str) -> String {
        let mut options = vec![("driver", "raw".to_string()), ("file.driver", "rbd".into())];
        options.extend([("file.pool", self.name.clone()), ("file.image", image.into())]);
        if let Some(auth) = &self.auth {
            options.extend([("file.user", auth.user.clone()), ("file.key-secret", KEY.into())]);
        }
        let named = options.into_iter().map(|(name, value)| format!("{name}={}", escaped(&value)));
        let monitors = self.monitors.iter().enumerate().map(|(index, (host, port))| {
            // Ceph takes port 0 for any of those that monitors have; libvirt tells QEMU the same.
            format!(
                "file.server.{index}.host={},file.server.{index}.port={}",
                escaped(host),
                port.unwrap_or(0)
            )
        });
        named.chain(monitors).collect::<Vec<_>>().join(",")
    }

    /// The source of a domain's disk that is an image of the pool.
    pub(crate) fn write_source(&self, xml: &mut Xml, image: &str) {
        xml.open("source", &[("protocol", "rbd"), ("name", &format!("{}/{image}", self.name))]);
        for (host, port) in &self.monitors {
            match port {
                Some(port) => xml.leaf("host", &[("name", host), ("port", &port.to_string())]),
                None => xml.leaf("host", &[("name", host)]),
            }
        }
        if let Some(auth) = &self.auth {
            xml.open("auth", &[("username", &auth.user)]);
            let (by, name) = match &auth.secret {
                SecretName::Uuid(uuid) => ("uuid", uuid),
                SecretName::Usage(usage) => ("usage", usage),
            };
            xml.leaf("secret", &[("type", "ceph"), (by, name)]);
            xml.close();
        }
        xml.close();
    }
}

impl RbdAuth {
    fn read(auth: Node<'_, '_>) -> Option<RbdAuth> {
        let secret = auth.children().find(|node| node.has_tag_name("secret"))?;
        let by = |name: &str| secret.attribute(name).map(str::to_string);
        let secret = by("uuid").map(SecretName::Uuid).or(by("usage").map(SecretName::Usage))?;
        Some(RbdAuth { user: auth.attribute("username")?.to_string(), secret })
    }
}

impl Daemon {
    /// The key of a user of Ceph, as libvirt keeps it: in base64, as Ceph writes it.
    ///
    /// # Errors
    /// If the daemon does not tell it, as of a secret that is private, or has no value.
    pub fn ceph_key(&self, auth: &RbdAuth) -> Result<Secret, QemuError> {
        let uuid = match &auth.secret {
            SecretName::Uuid(uuid) => uuid.clone(),
            SecretName::Usage(usage) => self.secret_for(usage)?,
        };
        let told = Secret::new(self.virsh.ask(&["secret-get-value", &uuid])?.trim());
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
        match !told.reveal().is_empty() && told.reveal().chars().all(is_base64) {
            true => Ok(told),
            false => {
                Err(QemuError::new(QemuErrorKind::Failed, format!("reading secret {uuid} of {}", self.uri()))
                    .because("it has no value that is a key of Ceph (`virsh secret-set-value`)"))
            }
        }
    }

    /// The UUID of the secret of Ceph that is for this.
    fn secret_for(&self, usage: &str) -> Result<String, QemuError> {
        let lines = self.virsh.lines(&["secret-list"])?;
        let mut secrets = lines.iter().filter_map(|line| line.split_once(char::is_whitespace));
        let found = secrets.find(|(_, rest)| {
            rest.trim()
                .split_once(char::is_whitespace)
                .is_some_and(|(kind, name)| kind == "ceph" && name.trim() == usage)
        });
        found.map(|(uuid, _)| uuid.to_string()).ok_or_else(|| {
            QemuError::new(QemuErrorKind::NotFound, format!("looking for the secret of Ceph for '{usage}'"))
                .because(format!("{} has none (`virsh secret-list`)", self.uri()))
        })
    }
}

/// A comma in a value of QEMU's options is doubled.
pub(crate) fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

/// The object that has the key.
pub(crate) const KEY: &str = "key";

#[cfg(test)]
pub(crate) mod tests {
    use super::super::parsed;
    use super::*;

    pub(crate) fn pool() -> RbdPool {
        let xml = "<source><host name='mon1' port='6789'/><host name='[2001:db8::1]'/><name>vms</name>\
            <auth type='ceph' username='drover'><secret uuid='2ec115d7-3a88-3ceb-bc12-0ac909a6fd87'/></auth></source>";
        RbdPool::read(parsed(xml, "a source").unwrap().root_element()).unwrap()
    }

    #[test]
    fn qemu_and_libvirt_are_told_the_same_place_and_no_key() {
        let pool = pool();
        assert_eq!(
            pool.image_options("web,1"),
            "driver=raw,file.driver=rbd,file.pool=vms,file.image=web,,1,file.user=drover,file.key-secret=key,\
             file.server.0.host=mon1,file.server.0.port=6789,file.server.1.host=2001:db8::1,file.server.1.port=0"
        );
        let mut xml = Xml::new();
        pool.write_source(&mut xml, "web-0.raw");
        let xml = xml.finish();
        for part in [
            "protocol='rbd' name='vms/web-0.raw'",
            "<host name='mon1' port='6789'/>",
            "<auth username='drover'>",
            "<secret type='ceph' uuid='2ec115d7-3a88-3ceb-bc12-0ac909a6fd87'/>",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
    }

    #[test]
    fn a_pool_without_authentication_has_none() {
        let xml = "<source><name>vms</name></source>";
        let pool = RbdPool::read(parsed(xml, "a source").unwrap().root_element()).unwrap();
        assert_eq!((pool.monitors.len(), &pool.auth), (0, &None));
        assert_eq!(pool.image_options("a"), "driver=raw,file.driver=rbd,file.pool=vms,file.image=a");
    }
}
