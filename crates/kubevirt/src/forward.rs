//! A port of this host that leads to a port of a pod, through the API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::access::words_of;
use crate::cluster::{Cluster, KubeError, KubeErrorKind};

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 64;
/// How long the API server may take to connect one.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// How long an error of a connection that has ended is waited for.
const TOLD_MAX: Duration = Duration::from_millis(100);

/// Takes connections at an address of this host's loopback for as long as it lives. The pod is looked up by its name for each: it may
/// have been made anew.
pub struct Forward {
    address: SocketAddr,
    refused: Refused,
    task: JoinHandle<()>,
    // The last, so that what runs on it ends before.
    _cluster: Arc<Cluster>,
}

/// Why the last connection could not be carried, if it could not.
type Refused = Arc<Mutex<Option<String>>>;

impl Forward {
    /// Begins to listen.
    ///
    /// # Errors
    /// When no port of this host can be had.
    pub fn open(cluster: &Arc<Cluster>, namespace: &str, pod: &str, port: u16) -> Result<Forward, KubeError> {
        let failed = |error: std::io::Error| KubeError {
            kind: KubeErrorKind::Config,
            what: format!("listening at 127.0.0.1 for the pod {pod}: {error}"),
        };
        let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        let runtime = cluster.runtime();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let pod = pod.to_string();
        let refused = Refused::default();
        let told = refused.clone();
        let task = runtime.spawn(async move { accept(&listener, &pods, &pod, port, &told).await });
        Ok(Forward { address, refused, task, _cluster: cluster.clone() })
    }

    /// Why the API server did not connect the last that asked, if so.
    pub fn last_refusal(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: &TcpListener, pods: &Api<Pod>, pod: &str, port: u16, refused: &Refused) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (pods, pod, refused) = (pods.clone(), pod.to_string(), refused.clone());
        tokio::spawn(async move {
            let carried = carry(stream, &pods, &pod, port).await;
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = carried.err();
            drop(seat);
        });
    }
}

/// Carries a connection to its end. One that the pod cannot take ends at once, as if nobody listened there.
async fn carry(mut here: TcpStream, pods: &Api<Pod>, pod: &str, port: u16) -> Result<(), String> {
    let _ = here.set_nodelay(true);
    let asked = tokio::time::timeout(CONNECT_MAX, pods.portforward(pod, &[port])).await;
    let mut forward = asked
        .map_err(|_| format!("no port-forward within {} s", CONNECT_MAX.as_secs()))?
        .map_err(|error| words_of(&error))?;
    let error = forward.take_error(port);
    if let Some(mut there) = forward.take_stream(port) {
        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    }
    forward.abort();
    match error {
        // It was told before the stream ended, or never is.
        Some(error) => match tokio::time::timeout(TOLD_MAX, error).await {
            Ok(Some(words)) => Err(crate::access::shortened(&words)),
            _ => Ok(()),
        },
        None => Ok(()),
    }
}
