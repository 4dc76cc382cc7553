use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;

use crate::files::{KeyPair, TlsError, authorities, certificates};

/// The settings of a server. With `clients`, only those come in whose certificate an authority in that PEM file signed.
///
/// # Errors
/// If a file cannot be used, or key and certificate do not fit.
pub fn server_config(own: &KeyPair, clients: Option<&Path>) -> Result<ServerConfig, TlsError> {
    let (chain, key) = own.read()?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::settings(&error))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = authorities(path, &certificates(path)?)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::file(path, &error))?)
        }
    };
    builder.with_single_cert(chain, key).map_err(|error| TlsError::file(&own.key, &error))
}
