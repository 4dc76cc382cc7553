//! A port of this host that leads to a port of a pod, through the API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, KubeError, KubeErrorKind};

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 64;
/// How long the API server may take to connect one.
const CONNECT_MAX: Duration = Duration::from_secs(20);

/// Takes connections at an address of this host's loopback for as long as it lives. The pod is looked up by its name for each: it may
/// have been made anew.
pub struct Forward {
    address: SocketAddr,
    task: JoinHandle<()>,
    // The last, so that what runs on it ends before.
    _cluster: Arc<Cluster>,
}

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
        let task = runtime.spawn(async move { accept(&listener, &pods, &pod, port).await });
        Ok(Forward { address, task, _cluster: cluster.clone() })
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

async fn accept(listener: &TcpListener, pods: &Api<Pod>, pod: &str, port: u16) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (pods, pod) = (pods.clone(), pod.to_string());
        tokio::spawn(async move {
            carry(stream, &pods, &pod, port).await;
            drop(seat);
        });
    }
}

/// Carries a connection to its end. One that the pod cannot take ends at once, as if nobody listened there.
async fn carry(mut here: TcpStream, pods: &Api<Pod>, pod: &str, port: u16) {
    let _ = here.set_nodelay(true);
    let Ok(Ok(mut forward)) = tokio::time::timeout(CONNECT_MAX, pods.portforward(pod, &[port])).await else {
        return;
    };
    if let Some(mut there) = forward.take_stream(port) {
        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    }
    forward.abort();
}
