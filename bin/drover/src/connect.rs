//! From what the command line says to a session.

use drover_plan::{SecretSource, Trust};
use drover_source::login::Credentials;
use drover_vsphere::Session;

use crate::cli::{ProviderArgs, SecretArgs};
use crate::exit::Failure;
use crate::out::say;

/// Logs in as the command line says.
pub fn connect_args(provider: &ProviderArgs) -> Result<Session, Failure> {
    connect_host(&provider.provider, provider.user.as_deref(), &provider.secret)
}

/// Logs in to a host.
pub fn connect_host(host: &str, user: Option<&str>, secret: &SecretArgs) -> Result<Session, Failure> {
    Ok(credentials(user, secret).connect(host, |words| say(words))?)
}

/// What the command line says of who asks, and whom they believe.
pub fn credentials(user: Option<&str>, secret: &SecretArgs) -> Credentials {
    let password = match &secret.password_file {
        Some(path) => SecretSource::File(path.clone()),
        None => SecretSource::Env("DROVER_PASSWORD".into()),
    };
    let trust = match (&secret.ca_file, &secret.thumbprint) {
        (Some(path), _) => Trust::CaFile(path.clone()),
        (None, Some(text)) => Trust::Thumbprint(text.clone()),
        (None, None) if secret.insecure => Trust::Insecure,
        (None, None) => Trust::System,
    };
    Credentials { user: user.map(str::to_string), password, trust }
}
