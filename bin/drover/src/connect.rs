//! From what a user wrote to a session: secrets, trust, endpoints.

use std::path::Path;

use drover_engine::chain;
use drover_plan::{Login, SecretSource, Trust as PlanTrust, VsphereSource};
use drover_types::Secret;
use drover_vsphere::{ConnectOptions, Session, Thumbprint, Timeouts, Trust};

use crate::cli::{ProviderArgs, SecretArgs};
use crate::exit::{Exit, Failure};
use crate::files::read_text;

/// A password file may not be larger; a larger one is the wrong file.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Logs in to the source of a plan, whose paths are relative to `folder`.
pub fn connect_plan(source: &VsphereSource, folder: &Path) -> Result<Session, Failure> {
    let options = ConnectOptions {
        endpoint: source.endpoint.to_string(),
        user: source.login.user.clone(),
        password: secret(&source.login, folder)?,
        trust: trust(&source.trust, folder)?,
        timeouts: Timeouts::default(),
    };
    connect(options)
}

/// Logs in as the command line says.
pub fn connect_args(provider: &ProviderArgs) -> Result<Session, Failure> {
    connect_host(&provider.provider, provider.user.as_deref(), &provider.secret)
}

/// Logs in to a host.
pub fn connect_host(host: &str, user: Option<&str>, secret: &SecretArgs) -> Result<Session, Failure> {
    let user = user.ok_or_else(|| {
        Failure::new(Exit::Usage, "no user given").advise("--user NAME, or the variable DROVER_USER")
    })?;
    let options = ConnectOptions {
        endpoint: host.to_string(),
        user: user.to_string(),
        password: password_of(secret)?,
        trust: trust_of(secret)?,
        timeouts: Timeouts::default(),
    };
    connect(options)
}

fn connect(options: ConnectOptions) -> Result<Session, Failure> {
    if matches!(options.trust, Trust::Insecure) {
        crate::out::say(format_args!(
            "warning: the certificate of {} is not verified; anyone on the line can read and change everything",
            options.endpoint
        ));
    }
    Ok(Session::connect(options)?)
}

/// The password that a login names.
pub fn secret(login: &Login, folder: &Path) -> Result<Secret, Failure> {
    secret_of(&login.password, folder)
}

/// The secret that a plan names.
pub fn secret_of(source: &SecretSource, folder: &Path) -> Result<Secret, Failure> {
    match source {
        SecretSource::File(path) => read_password(&folder.join(path)),
        SecretSource::Env(name) => env_password(name),
    }
}

/// Trust as a plan says it.
pub fn trust(trust: &PlanTrust, folder: &Path) -> Result<Trust, Failure> {
    Ok(match trust {
        PlanTrust::System => Trust::System,
        PlanTrust::CaFile(path) => Trust::CaFile(folder.join(path)),
        PlanTrust::Thumbprint(text) => Trust::Thumbprint(thumbprint(text)?),
        PlanTrust::Insecure => Trust::Insecure,
    })
}

/// Trust as the command line says it.
pub fn trust_of(secret: &SecretArgs) -> Result<Trust, Failure> {
    Ok(match (&secret.ca_file, &secret.thumbprint) {
        (Some(path), _) => Trust::CaFile(path.clone()),
        (None, Some(text)) => Trust::Thumbprint(thumbprint(text)?),
        (None, None) if secret.insecure => Trust::Insecure,
        (None, None) => Trust::System,
    })
}

fn thumbprint(text: &str) -> Result<Thumbprint, Failure> {
    text.parse().map_err(|error: drover_http::ThumbprintError| Failure::new(Exit::Usage, error.to_string()))
}

fn password_of(secret: &SecretArgs) -> Result<Secret, Failure> {
    match &secret.password_file {
        Some(path) => read_password(path),
        None => env_password("DROVER_PASSWORD"),
    }
}

fn env_password(name: &str) -> Result<Secret, Failure> {
    std::env::var(name).map(Secret::new).map_err(|_| {
        Failure::new(Exit::Usage, format!("no password: the variable {name} is not set")).advise(
            "set it, or name a file that only you can read with --password-file (in a plan: password_file)",
        )
    })
}

fn read_password(path: &Path) -> Result<Secret, Failure> {
    let failed = |why: String| {
        Failure::new(Exit::Usage, format!("password file {}: {why}", path.display()))
            .advise("it holds the password on its first line and is readable by you alone (chmod 600)")
    };
    let text = read_text(path, PASSWORD_BYTES_MAX).map_err(|error| failed(chain(&error)))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => Err(failed("its first line is empty".into())),
    }
}
