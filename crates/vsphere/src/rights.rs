//! What the session's user may do.

use std::collections::BTreeMap;

use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::vm_ref;
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::xml::Element;

/// Objects asked about in one request.
const OBJECTS_MAX: usize = 500;

/// What privileges are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// VMs.
    Vm,
    /// Datastores.
    Datastore,
}

impl Entity {
    fn reference(self, id: &str) -> Moref {
        match self {
            Entity::Vm => vm_ref(id),
            Entity::Datastore => Moref::new("Datastore", id),
        }
    }
}

/// Privileges that are missing, by id of the object; objects that lack none are left out.
pub type MissingPrivileges = BTreeMap<String, Vec<String>>;

impl Session {
    /// Which of `privileges` (`VirtualMachine.Interact.PowerOn`) this session's user lacks on each object; nothing
    /// if the server cannot tell.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn missing_privileges(
        &self,
        entity: Entity,
        ids: &[&str],
        privileges: &[&str],
    ) -> Result<Option<MissingPrivileges>, VsphereError> {
        let mut missing = MissingPrivileges::new();
        for some in ids.chunks(OBJECTS_MAX) {
            match self.inner.missing_privileges(entity, some, privileges) {
                Ok(Some(found)) => missing.extend(found),
                Ok(None) => return Ok(None),
                Err(error) if is_untold(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(missing))
    }
}

/// Servers that do not know the question, and users who may not put it.
fn is_untold(error: &VsphereError) -> bool {
    matches!(error.kind, VsphereErrorKind::Unsupported | VsphereErrorKind::PermissionDenied)
}

impl Inner {
    fn missing_privileges(
        &self,
        entity: Entity,
        ids: &[&str],
        privileges: &[&str],
    ) -> Result<Option<MissingPrivileges>, VsphereError> {
        let Some(authorization) = &self.content.authorization else { return Ok(None) };
        let op = "look at the user's rights";
        let entities: String = ids.iter().map(|id| entity.reference(id).tag("entity")).collect();
        let asked: String = privileges.iter().map(|privilege| tag("privId", privilege)).collect();
        let mut version = self.auth().version;
        loop {
            // The key is that of the login: once it has expired, the question names another.
            let arguments = entities.clone() + &tag("sessionId", &self.auth().key) + &asked;
            let call = Call {
                op,
                method: "HasPrivilegeOnEntities",
                this: authorization,
                arguments: &arguments,
                is_read: true,
            };
            let answer = self.call(&call);
            let now = self.auth().version;
            if now != std::mem::replace(&mut version, now) {
                continue;
            }
            return answer.map(|answer| Some(missing_of(&answer, privileges)));
        }
    }
}

/// A privilege that the answer does not speak of counts as missing, as far as it speaks of the object at all.
fn missing_of(answer: &Element, privileges: &[&str]) -> MissingPrivileges {
    let of_object = |entity: &Element| {
        let is_granted = |privilege: &&&str| {
            let told = entity.all("privAvailability").find(|it| it.text_at("privId") == Some(privilege));
            told.is_some_and(|it| it.flag_at("isGranted"))
        };
        let lacking: Vec<String> =
            privileges.iter().filter(|it| !is_granted(it)).map(|it| it.to_string()).collect();
        let id = Moref::of(entity.child("entity")?).id;
        (!lacking.is_empty()).then_some((id, lacking))
    };
    answer.all("returnval").filter_map(of_object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn what_is_not_granted_is_missing() {
        let availability = |id: &str, granted: bool| {
            format!(
                "<privAvailability><privId>{id}</privId><isGranted>{granted}</isGranted></privAvailability>"
            )
        };
        let text = format!(
            "<r><returnval><entity type=\"VirtualMachine\">vm-1</entity>{}{}</returnval>\
             <returnval><entity type=\"VirtualMachine\">vm-2</entity>{}</returnval></r>",
            availability("A", true),
            availability("B", true),
            availability("A", false),
        );
        let missing = missing_of(&xml::parse(&text).unwrap(), &["A", "B"]);
        assert_eq!(missing, MissingPrivileges::from([("vm-2".into(), vec!["A".into(), "B".into()])]));
    }
}
