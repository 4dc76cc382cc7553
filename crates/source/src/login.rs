//! From what a plan names to a session: secrets, whose certificates are believed, endpoints.

use std::fs::File;
use std::path::Path;

use drover_engine::{ProviderError, chain};
use drover_http::ThumbprintError;
use drover_plan::{Login, SecretSource, Trust as PlanTrust, VsphereSource};
use drover_types::{Secret, read_text};
use drover_vsphere::{ConnectOptions, Session, Timeouts, Trust};

use crate::setting::{Setting, SourceError};
use crate::vsphere::provider_error;

/// A password file may not be larger; a larger one is the wrong file.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What is named to log in with, and cannot be read or is none.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct LoginError {
    /// What it is, and why.
    pub what: String,
    /// What to try.
    pub advice: Option<String>,
}

/// Logs in to the source of a plan.
pub(crate) fn connect_plan(source: &VsphereSource, setting: &Setting<'_>) -> Result<Session, SourceError> {
    let options = ConnectOptions {
        endpoint: source.endpoint.to_string(),
        user: source.login.user.clone(),
        password: secret(&source.login, setting.folder)?,
        trust: trust(&source.trust, setting.folder)?,
        timeouts: Timeouts::default(),
    };
    Ok(connect(options, setting.host.say)?)
}

/// Who asks a provider that no plan describes, and whom they believe.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// User, if one is named.
    pub user: Option<String>,
    /// Where the password is.
    pub password: SecretSource,
    /// Whose certificate is believed.
    pub trust: PlanTrust,
}

impl Credentials {
    /// Logs in to a host.
    ///
    /// # Errors
    /// If no user is named, what is named cannot be read, the host is not reached or believed, or lets nobody in.
    pub fn connect(&self, host: &str, say: fn(&str)) -> Result<Session, SourceError> {
        let user = self.user.clone().ok_or_else(|| LoginError {
            what: "no user given".into(),
            advice: Some("--user NAME, or the variable DROVER_USER".into()),
        })?;
        let options = ConnectOptions {
            endpoint: host.to_string(),
            user,
            password: secret_of(&self.password, Path::new(""))?,
            trust: self.trust()?,
            timeouts: Timeouts::default(),
        };
        Ok(connect(options, say)?)
    }

    /// Whose certificate is believed.
    ///
    /// # Errors
    /// As [`trust`].
    pub fn trust(&self) -> Result<Trust, LoginError> {
        trust(&self.trust, Path::new(""))
    }
}

/// Logs in. People are told where anyone could stand in for the server.
fn connect(options: ConnectOptions, say: fn(&str)) -> Result<Session, ProviderError> {
    if matches!(options.trust, Trust::Insecure) {
        say(&format!(
            "warning: the certificate of {} is not verified; anyone on the line can read and change everything",
            options.endpoint
        ));
    }
    Session::connect(options).map_err(provider_error)
}

/// The password that a login names.
///
/// # Errors
/// If it cannot be read, or is empty.
pub fn secret(login: &Login, folder: &Path) -> Result<Secret, LoginError> {
    secret_of(&login.password, folder)
}

/// The secret that is named; a path is relative to `folder`.
///
/// # Errors
/// If it cannot be read, or is empty.
pub fn secret_of(source: &SecretSource, folder: &Path) -> Result<Secret, LoginError> {
    match source {
        SecretSource::File(path) => read_password(&folder.join(path)),
        SecretSource::Env(name) => env_password(name),
    }
}

/// Whom a plan has believed; a path is relative to `folder`.
///
/// # Errors
/// If its thumbprint is none.
pub fn trust(trust: &PlanTrust, folder: &Path) -> Result<Trust, LoginError> {
    Ok(match trust {
        PlanTrust::System => Trust::System,
        PlanTrust::CaFile(path) => Trust::CaFile(folder.join(path)),
        PlanTrust::Thumbprint(text) => {
            let no_thumbprint = |error: ThumbprintError| LoginError { what: error.to_string(), advice: None };
            Trust::Thumbprint(text.parse().map_err(no_thumbprint)?)
        }
        PlanTrust::Insecure => Trust::Insecure,
    })
}

fn env_password(name: &str) -> Result<Secret, LoginError> {
    let advice =
        "set it, or name a file that only you can read with --password-file (in a plan: password_file)";
    std::env::var(name).map(Secret::new).map_err(|_| LoginError {
        what: format!("no password: the variable {name} is not set"),
        advice: Some(advice.into()),
    })
}

fn read_password(path: &Path) -> Result<Secret, LoginError> {
    let advice = "it holds the password on its first line and is readable by you alone (chmod 600)";
    let failed = |why: String| LoginError {
        what: format!("password file {}: {why}", path.display()),
        advice: Some(advice.into()),
    };
    let text = File::open(path).and_then(|file| read_text(file, PASSWORD_BYTES_MAX));
    let text = text.map_err(|error| failed(chain(&error)))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => Err(failed("its first line is empty".into())),
    }
}
