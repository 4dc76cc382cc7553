//! TLS of a link: both sides show a key, and each looks up that of the other.

use std::sync::Arc;

use drover_tls::{peer_client, peer_server};
use rustls::{ClientConfig, ServerConfig};

use super::identity::{Fingerprint, Identity};

/// Settings of the side that dials: only an agent with a key that `judge` trusts.
///
/// # Errors
/// When this host's own key cannot be used.
pub fn client_config(
    identity: &Identity,
    judge: impl Fn(Fingerprint) -> Result<(), String> + Send + Sync + 'static,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = peer_client(identity.own(), move |key| judge(Fingerprint(key)))?;
    config.alpn_protocols = vec![drover_link::ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Settings of the side that listens: every client must show a key, and only those that `judge` trusts come in.
///
/// # Errors
/// When this host's own key cannot be used.
pub fn server_config(
    identity: &Identity,
    judge: impl Fn(Fingerprint) -> Result<(), String> + Send + Sync + 'static,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = peer_server(identity.own(), move |key| judge(Fingerprint(key)))?;
    config.alpn_protocols = vec![drover_link::ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
