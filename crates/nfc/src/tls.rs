//! TLS on port 902: twice on one socket, with the certificate that the ticket names.

use std::sync::Arc;
use std::time::Duration;

use drover_stream::{Socket, Stream, Tls};
use drover_tls::{Trust, client_config, refusal_of};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;

use crate::error::{NfcError, NfcErrorKind};

/// Makes TLS sessions. Hosts before vSphere 6.7 U1 speak TLS that this one does not; another may.
pub trait TlsMaker: Send + Sync {
    /// A handshake with `host`, which must show the certificate of `trust`. Nothing secret was sent before.
    ///
    /// # Errors
    /// [`NfcErrorKind::Certificate`] if it shows another.
    fn start(&self, socket: Socket, host: &str, trust: &Trust, limit: Duration) -> Result<Stream, NfcError>;
}

/// By rustls: TLS 1.2 and 1.3.
pub struct Rustls;

impl TlsMaker for Rustls {
    fn start(&self, socket: Socket, host: &str, trust: &Trust, limit: Duration) -> Result<Stream, NfcError> {
        let op = || format!("TLS with the NFC server of {host}");
        let config = client_config(trust)
            .map_err(|error| NfcError::new(NfcErrorKind::Certificate, op(), error.to_string()))?;
        let name = ServerName::try_from(host.to_string())
            .map_err(|error| NfcError::new(NfcErrorKind::Refused, op(), error.to_string()))?;
        // The certificate is to be shown, and looked at, in each handshake.
        let mut config = ClientConfig::clone(&config);
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        Stream::Plain(socket).into_tls(&Tls { config, name }, limit).map_err(|error| {
            let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            let Some(tls) = tls else { return NfcError::io(op(), &error) };
            match refusal_of(tls) {
                Some(refusal) => NfcError::new(NfcErrorKind::Certificate, op(), refusal.to_string()),
                None => NfcError::new(NfcErrorKind::Refused, op(), tls.to_string()),
            }
        })
    }
}
