//! From what the command line says to a session.

use std::path::Path;

use drover_plan::{SecretSource, Trust as PlanTrust};
use drover_source::login;
use drover_vsphere::{ConnectOptions, Session, Timeouts, Trust};

use crate::cli::{ProviderArgs, SecretArgs};
use crate::exit::{Exit, Failure};
use crate::out::say;

/// Logs in as the command line says.
pub fn connect_args(provider: &ProviderArgs) -> Result<Session, Failure> {
    connect_host(&provider.provider, provider.user.as_deref(), &provider.secret)
}

/// Logs in to a host.
pub fn connect_host(host: &str, user: Option<&str>, secret: &SecretArgs) -> Result<Session, Failure> {
    let user = user.ok_or_else(|| {
        Failure::new(Exit::Usage, "no user given").advise("--user NAME, or the variable DROVER_USER")
    })?;
    let password = match &secret.password_file {
        Some(path) => SecretSource::File(path.clone()),
        None => SecretSource::Env("DROVER_PASSWORD".into()),
    };
    let options = ConnectOptions {
        endpoint: host.to_string(),
        user: user.to_string(),
        password: login::secret_of(&password, Path::new(""))?,
        trust: trust_of(secret)?,
        timeouts: Timeouts::default(),
    };
    Ok(login::connect(options, |words| say(words))?)
}

/// Trust as the command line says it.
pub fn trust_of(secret: &SecretArgs) -> Result<Trust, Failure> {
    let trust = match (&secret.ca_file, &secret.thumbprint) {
        (Some(path), _) => PlanTrust::CaFile(path.clone()),
        (None, Some(text)) => PlanTrust::Thumbprint(text.clone()),
        (None, None) if secret.insecure => PlanTrust::Insecure,
        (None, None) => PlanTrust::System,
    };
    Ok(login::trust(&trust, Path::new(""))?)
}
