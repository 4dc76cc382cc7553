//! Credentials for QEMU's own encryption: objects that it has, or that drover makes from files for one move.

use drover_live::{Credentials, Side};
use serde_json::{Value, json};

use super::guest::Guest;
use super::mark::{names, objects};
use super::run::TlsBy;
use crate::error::QemuError;

/// Those that drover makes.
pub(super) const OWN: &str = "drover-tls";

impl Guest {
    /// Whether its moves are set to be encrypted by QEMU.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub fn is_set_to_encrypt(&mut self) -> Result<bool, QemuError> {
        let parameters = self.qmp.execute("query-migrate-parameters", Value::Null)?;
        Ok(parameters["tls-creds"].as_str().is_some_and(|name| !name.is_empty()))
    }

    /// What it says of an object that may be credentials; nothing where there is none of this name.
    pub(super) fn credentials(&mut self, name: &str) -> Result<Option<Credentials>, QemuError> {
        let (command, arguments) = objects();
        let objects = self.qmp.execute(command, arguments)?;
        if !names(&objects).any(|object| object == name) {
            return Ok(None);
        }
        let path = format!("/objects/{name}");
        let asked = ["type", "endpoint"].map(|property| json!({"path": path, "property": property}));
        // What is no credentials has no endpoint.
        let answers = self.qmp.execute_each("qom-get", &asked)?;
        let mut words = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_default().as_str().unwrap_or_default().to_string());
        let (kind, endpoint) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        Ok(Some(Credentials { kind, endpoint }))
    }

    /// Makes credentials of files on its host.
    pub(super) fn make_credentials(&mut self, by: &TlsBy) -> Result<(), QemuError> {
        let endpoint = match self.side {
            Side::Source => "client",
            Side::Target => "server",
        };
        let mut object = json!({"id": OWN, "endpoint": endpoint});
        match by {
            TlsBy::Object(_) => return Ok(()),
            TlsBy::X509(folder) => {
                object["qom-type"] = json!("tls-creds-x509");
                object["dir"] = json!(folder);
                object["verify-peer"] = json!(true);
            }
            TlsBy::Psk { folder, username } => {
                object["qom-type"] = json!("tls-creds-psk");
                object["dir"] = json!(folder);
                // A server takes whoever has a key in that file.
                if self.side == Side::Source {
                    object["username"] = json!(username);
                }
            }
        }
        self.qmp.execute("object-add", object).map(drop)
    }

    /// Removes what drover made, and has no move use it any more; there may be none.
    pub(super) fn drop_credentials(&mut self) -> Result<(), QemuError> {
        let [parameters, objects] =
            self.qmp.execute_in_turn([("query-migrate-parameters", Value::Null), objects()])?;
        self.drop_credentials_of(&parameters, &objects)
    }

    /// The same, with what is set on it and was made on it.
    pub(super) fn drop_credentials_of(
        &mut self,
        parameters: &Value,
        objects: &Value,
    ) -> Result<(), QemuError> {
        if parameters["tls-creds"] == OWN {
            self.qmp.execute("migrate-set-parameters", json!({"tls-creds": "", "tls-hostname": ""}))?;
        }
        match names(objects).any(|object| object == OWN) {
            true => self.qmp.execute("object-del", json!({ "id": OWN })).map(drop),
            false => Ok(()),
        }
    }
}
