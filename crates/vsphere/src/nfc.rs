//! Tickets for the NFC servers of hosts. The service is in no public WSDL; it is found among the internal managers.

use std::fmt;
use std::sync::{Arc, Mutex};

use drover_http::ExtentSource;
use drover_types::Secret;
use drover_types::inventory::VmDisk;

use crate::Trust;
use crate::areas::AllocatedAreas;
use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::vm_ref;
use crate::session::{Call, Inner, Session, lock};
use crate::soap::{Moref, tag};
use crate::xml::Element;

/// Leave to open disks of a VM once, over one connection to an NFC server.
#[derive(Clone)]
pub struct NfcTicket {
    /// The host that serves the data; absent where the host itself gave the ticket.
    pub host: Option<String>,
    /// Its port; absent: 902.
    pub port: Option<u16>,
    /// SHA-1 thumbprint of its certificate.
    pub thumbprint: Option<String>,
    /// Its certificate in PEM, which vSphere 9 may tell in the place of the thumbprint.
    pub certificate: Option<String>,
    /// `nfc` or `vpxa-nfc`.
    pub service: String,
    /// The ticket itself: a secret.
    pub session: Secret,
}

impl fmt::Debug for NfcTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfcTicket({} at {:?})", self.service, self.host)
    }
}

/// What a ticket is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfcAccess {
    /// Reading.
    Read,
    /// Reading and writing one disk.
    Write,
}

impl Session {
    /// A ticket for a disk of a VM, with all the files that it is a chain of. `host` is the VM's host.
    ///
    /// # Errors
    /// [`VsphereErrorKind::PermissionDenied`] without the privileges, [`VsphereErrorKind::Unsupported`] where there is
    /// no NFC service.
    pub fn nfc_ticket(
        &self,
        vm: &str,
        disk_key: i32,
        host: &str,
        access: NfcAccess,
    ) -> Result<NfcTicket, VsphereError> {
        let op = self.inner.op("ask for an NFC ticket for", vm);
        let vm = vm_ref(vm).tag("vm");
        let one_disk = |method| {
            let disk = format!("{vm}{}", tag("diskDeviceKey", &disk_key.to_string()));
            let anywhere = || self.inner.ticket(&op, method, &disk);
            if host.is_empty() {
                return anywhere();
            }
            let there = format!("{disk}{}", Moref::new("HostSystem", host).tag("hostForAccess"));
            match self.inner.ticket(&op, method, &there) {
                // The VM may have moved to another host since: the server knows which.
                Err(error) if error.fault.is_some() && error.kind != VsphereErrorKind::PermissionDenied => {
                    anywhere().map_err(|_| error)
                }
                done => done,
            }
        };
        if access == NfcAccess::Write {
            return one_disk("NfcRandomAccessOpenDisk");
        }
        match self.inner.ticket(&op, "NfcGetVmFiles", &vm) {
            // The privileges differ, and an account may have only those of the other.
            Err(files) if files.kind == VsphereErrorKind::PermissionDenied => {
                one_disk("NfcRandomAccessOpenReadonly").map_err(|disk| match disk.kind {
                    VsphereErrorKind::PermissionDenied | VsphereErrorKind::Unsupported => files,
                    _ => disk,
                })
            }
            done => done,
        }
    }

    /// What was ever written to a disk up to a snapshot, as change tracking tells it. Why it cannot be told in the end goes
    /// to `notes`. `None` for a disk that is not tracked, and for one with earlier snapshots: tracking that was switched on
    /// after them does not know what they hold.
    pub fn allocated_areas(
        &self,
        vm: &str,
        snapshot: Option<&str>,
        frozen: &VmDisk,
        notes: &Arc<Mutex<Vec<String>>>,
    ) -> Option<Arc<dyn ExtentSource>> {
        let is_known = frozen.change_id.is_some() && !frozen.has_parent;
        is_known.then(|| -> Arc<dyn ExtentSource> {
            Arc::new(AllocatedAreas::of(self.inner.clone(), vm, snapshot, frozen, notes))
        })
    }

    /// A small call that keeps the session alive, or renews it.
    ///
    /// # Errors
    /// When the endpoint cannot be reached, or does not let us in any more.
    pub fn keep_alive(&self) -> Result<(), VsphereError> {
        self.cookie().map(drop)
    }

    /// What a message calls the endpoint's host.
    pub fn endpoint_host(&self) -> &str {
        &self.inner.client.endpoint().host
    }

    /// By what the endpoint's own certificate is verified.
    pub fn trust(&self) -> &Trust {
        &self.inner.options.trust
    }
}

impl Inner {
    fn ticket(&self, op: &str, method: &str, arguments: &str) -> Result<NfcTicket, VsphereError> {
        let answer = self.nfc_call(op, method, arguments)?;
        answer
            .child("returnval")
            .and_then(ticket_of)
            .ok_or_else(|| VsphereError::new(VsphereErrorKind::NotVsphere, op, "no ticket in the answer"))
    }

    fn nfc_call(&self, op: &str, method: &str, arguments: &str) -> Result<Element, VsphereError> {
        let this = &self.nfc_service(op)?;
        // A ticket that nobody uses does no harm.
        self.call(&Call { op, method, this, arguments, is_read: true })
    }

    fn nfc_service(&self, op: &str) -> Result<Moref, VsphereError> {
        if let Some(known) = lock(&self.nfc).as_ref() {
            return Ok(known.clone());
        }
        let this = &Moref::new("ServiceInstance", "ServiceInstance");
        let call = Call { op, method: "RetrieveInternalContent", this, arguments: "", is_read: true };
        let answer = self.call(&call)?;
        let found = answer.at("returnval/nfcService").map(Moref::of).filter(|it| !it.id.is_empty());
        let found = found.ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::Unsupported, op, "the server has no NFC service")
        })?;
        // Its type is an attribute that not every server writes.
        let found = Moref::new("NfcService", &found.id);
        *lock(&self.nfc) = Some(found.clone());
        Ok(found)
    }
}

fn ticket_of(ticket: &Element) -> Option<NfcTicket> {
    let text = |name| ticket.text_at(name).map(str::to_string).filter(|text| !text.is_empty());
    Some(NfcTicket {
        host: text("host"),
        port: ticket.number_at("port"),
        thumbprint: text("sslThumbprint"),
        certificate: text("sslCertificate"),
        service: text("service")?,
        session: Secret::new(text("sessionId")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(text: &str) -> Option<NfcTicket> {
        ticket_of(&crate::xml::parse(&format!("<returnval>{text}</returnval>")).unwrap())
    }

    #[test]
    fn a_ticket_of_a_vcenter_names_the_host_and_one_of_a_host_does_not() {
        let text = "<host>esx1</host><port>902</port><sslThumbprint>AA:BB</sslThumbprint><service>vpxa-nfc</service>\
                    <serviceVersion>1.1</serviceVersion><url>nfc://x</url><sessionId>52-secret</sessionId>";
        let found = ticket(text).unwrap();
        assert_eq!(
            (found.host.as_deref(), found.port, found.service.as_str()),
            (Some("esx1"), Some(902), "vpxa-nfc")
        );
        assert_eq!((found.session.reveal(), found.thumbprint.as_deref()), ("52-secret", Some("AA:BB")));
        assert!(!format!("{found:?}").contains("secret"));
        let found =
            ticket("<service>nfc</service><sessionId>x</sessionId><sslCertificate>PEM</sslCertificate>")
                .unwrap();
        assert_eq!((found.host, found.port, found.certificate.as_deref()), (None, None, Some("PEM")));
        assert!(ticket("<service>nfc</service>").is_none(), "without its secret it is none");
    }
}
