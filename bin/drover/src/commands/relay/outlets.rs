//! To whom a relay, or an agent that carries connections for relays, tells how it stands: a control socket, and Prometheus.

use std::net::SocketAddr;
use std::path::Path;

use drover_relay::Teller;
use drover_relay::control::{ControlServer, control_path};
use drover_relay::metrics::MetricsServer;

use crate::exit::{Exit, Failure};

/// The page for Prometheus, if it was asked for.
pub fn metrics(address: Option<SocketAddr>, teller: &Teller) -> Result<Option<MetricsServer>, Failure> {
    let started = address.map(|address| {
        MetricsServer::start(address, teller.clone())
            .map_err(|error| Failure::new(Exit::Usage, format!("--metrics {address}: {error}")))
    });
    started.transpose()
}

/// The control socket of a `relay` or an `agent`. Without one it runs all the same, if nobody asked for it by name.
pub fn control(path: Option<&Path>, what: &str, teller: Teller) -> Result<Option<ControlServer>, Failure> {
    if let Some(path) = path {
        let failed = |error| Failure::new(Exit::Usage, format!("--control {}: {error}", path.display()));
        return ControlServer::start(path, teller).map(Some).map_err(failed);
    }
    let path = control_path(what);
    match ControlServer::start(&path, teller) {
        Ok(server) => Ok(Some(server)),
        Err(error) => {
            crate::out::say(format_args!("note: no control socket at {}: {error}", path.display()));
            Ok(None)
        }
    }
}

/// Where the page is.
pub fn url(metrics: &MetricsServer) -> String {
    format!("http://{}/metrics", metrics.address())
}
