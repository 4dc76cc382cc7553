//! The issuer of JWTs: what the settings say of it, and how it is asked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_engine::chain;
use drover_http::{Client, HttpError, Request, Timeouts, Trust, Url};
use drover_server::{Grant, IssuerDocuments, LoginClient, OidcOptions, Role};

use crate::remote::is_here;

/// Who logs in waits for it.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    stall: Duration::from_secs(5),
    answer: Duration::from_secs(10),
};
/// Values of the claim that grant something.
const ROLES_MAX: usize = 1_000;
/// Scopes that a login asks for, and characters of one.
const SCOPES_MAX: usize = 20;
const SCOPE_CHARS_MAX: usize = 200;
/// Without it there is no ID token (OpenID Connect Core 1.0, 3.1.2.1).
const OPENID: &str = "openid";

/// What the settings below `oidc` say so far.
#[derive(Debug, Default)]
pub struct OidcSettings {
    issuer: Option<String>,
    audience: Option<String>,
    claim: Option<String>,
    client_id: Option<String>,
    scopes: Vec<String>,
    trust: Trust,
    roles: Vec<(String, Grant)>,
    is_named: bool,
}

impl OidcSettings {
    /// Takes a setting in. Paths are relative to `folder`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn take(&mut self, name: &str, value: String, folder: &Path) -> Result<(), String> {
        self.is_named = true;
        match name {
            "issuer" => {
                safe(&value)?;
                self.issuer = Some(value);
            }
            "audience" => self.audience = Some(value),
            "claim" => self.claim = Some(value),
            "client_id" => self.client_id = Some(value),
            "scopes" => {
                // RFC 6749, 3.3.
                let is_of_scope = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
                if value.is_empty() || value.len() > SCOPE_CHARS_MAX || !value.bytes().all(is_of_scope) {
                    return Err("a scope is 1 to 200 letters, digits and signs without spaces".into());
                }
                if self.scopes.len() >= SCOPES_MAX {
                    return Err(format!("there are {SCOPES_MAX} scopes already, and no more are asked for"));
                }
                self.scopes.push(value);
            }
            "ca_file" => self.trust = Trust::CaFile(folder.join(value)),
            _ => {
                let (project, role) = match name.strip_prefix("projects.") {
                    Some(rest) => rest.rsplit_once('.').map(|(project, role)| (Some(project.into()), role)),
                    None => name.strip_prefix("roles.").map(|role| (None, role)),
                }
                .ok_or("there is no such setting; issuer, audience, claim, client_id, scopes, ca_file, roles, projects")?;
                let role = match role {
                    "viewer" => Role::Viewer,
                    "operator" => Role::Operator,
                    "admin" => Role::Admin,
                    _ => return Err("a role is viewer, operator or admin".into()),
                };
                if self.roles.len() >= ROLES_MAX {
                    return Err(format!("there are {ROLES_MAX} values already, and no more are kept"));
                }
                self.roles.push((value, Grant { role, project }));
            }
        }
        Ok(())
    }

    /// All of it.
    ///
    /// # Errors
    /// What is missing.
    pub fn end(self) -> Result<Option<OidcOptions>, String> {
        if !self.is_named {
            return Ok(None);
        }
        if self.roles.is_empty() {
            return Err("oidc: nobody has a role; name values of the claim under oidc.roles.viewer, operator or admin, or oidc.projects.PROJECT.viewer ...".into());
        }
        if self.client_id.is_none() && !self.scopes.is_empty() {
            return Err("oidc.scopes are those of the page's login, which takes oidc.client_id, too".into());
        }
        let others = self.scopes.iter().map(String::as_str).filter(|scope| *scope != OPENID);
        let scope = [OPENID].into_iter().chain(others).collect::<Vec<_>>().join(" ");
        Ok(Some(OidcOptions {
            client: self.client_id.map(|id| LoginClient { id, scope }),
            issuer: self.issuer.ok_or("oidc.issuer is missing")?,
            audience: self.audience.ok_or("oidc.audience is missing")?,
            claim: self.claim.unwrap_or_else(|| "groups".into()),
            roles: self.roles,
            documents: Arc::new(Issuer(self.trust)),
        }))
    }
}

/// A URL whose answers nobody on the way can change.
fn safe(url: &str) -> Result<Url, String> {
    let parsed: Url = url.parse().map_err(|error: HttpError| chain(&error))?;
    match parsed.endpoint.https || is_here(&parsed.endpoint) {
        true => Ok(parsed),
        false => Err("it is not https, so that anybody on the way could give other keys".into()),
    }
}

/// Asks an issuer over HTTPS.
#[derive(Debug)]
struct Issuer(Trust);

impl IssuerDocuments for Issuer {
    fn get(&self, url: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        let url = safe(url)?;
        let read = || -> Result<(u16, Vec<u8>), HttpError> {
            let mut connection = Client::new(url.endpoint, &self.0, TIMEOUTS)?.connect()?;
            connection.send(&Request::get(url.path).with_header("Accept", "application/json"))?;
            let head = connection.read_head()?;
            Ok((head.status, connection.read_body(bytes_max)?))
        };
        match read().map_err(|error| chain(&error))? {
            (200, body) => Ok(body),
            (status, _) => Err(format!("it answered with status {status}")),
        }
    }
}
