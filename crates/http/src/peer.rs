use drover_tls::{Thumbprint, Trust, client_config};

use crate::endpoint::Endpoint;
use crate::error::{HttpError, HttpErrorKind, HttpOp};
use crate::stream::{Reads, Stream, Timeouts};

/// The SHA-1 thumbprint of the certificate that a server shows, once it is believed under `trust`.
///
/// # Errors
/// When the server cannot be reached or is not believed.
pub fn thumbprint_of(
    endpoint: &Endpoint,
    trust: &Trust,
    timeouts: &Timeouts,
) -> Result<Thumbprint, HttpError> {
    let peer = endpoint.authority();
    let config =
        client_config(trust).map_err(|error| HttpError::new(error.into(), HttpOp::Connect, &peer))?;
    let stream = Stream::connect(endpoint, Some(&config), timeouts, Reads::Small)?;
    let presented = stream.presented();
    presented
        .map(|it| Thumbprint::Sha1(it.sha1))
        .ok_or_else(|| HttpError::new(HttpErrorKind::Tls, HttpOp::Connect, &peer))
}
