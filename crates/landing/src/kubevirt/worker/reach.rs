//! How the agent of a worker pod is reached: at the pod's address, through the API server, or by a Service of the pod's own.
//!
//! Whoever answers, the agent is known by its key.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use drover_agent::sites::own_name;
use drover_agent::trust::Fingerprint;
use drover_agent::{Refusal, Route, dial};
use drover_disk::DiskErrorKind;
use drover_kubevirt::objects::{self, AGENT_PORT, Kind};
use drover_kubevirt::{Forward, KubeError};
use drover_link::Session;
use drover_plan::Reach;
use serde_json::Value;

use super::{Holder, LOOK, Worker, refused};

/// How long the agent of a pod that runs may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// How long it is waited for that a pod's address answers at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The same outside of the cluster, where whoever refuses a connection may be somebody else.
const LISTEN_WITHIN: Duration = Duration::from_secs(3);

/// Where routers of OpenShift take connections that they pass through.
const ROUTER_PORT: u16 = 443;

/// Where an agent is dialled, and for how long.
struct Way {
    addresses: Vec<String>,
    /// By which connections are passed on.
    server_name: Option<String>,
    words: String,
    within: Duration,
}

impl Worker {
    /// A session to the agent; makes the pod if there is none.
    pub fn dial(&self) -> Result<Session, Refusal> {
        let (pod, agent) = self.ensure().map_err(|error| refused(&error))?;
        let session = match self.kubevirt.reach {
            Reach::Auto => self.dial_somehow(&pod, agent),
            Reach::Pod => self.dial_by(&self.at_pod(&pod)?, agent),
            Reach::Forward => self.dial_by(&self.through_api()?, agent),
            Reach::NodePort | Reach::LoadBalancer => self.dial_by(&self.by_service(&pod)?, agent),
            Reach::Route => self.dial_by(&self.by_route(&pod)?, agent),
            Reach::Upload => {
                let what = format!(
                    "{} was begun by a worker pod, and the plan says `reach: upload` by now",
                    self.name()
                );
                Err(Refusal::new(DiskErrorKind::Unsupported, what))
            }
        }?;
        // It has served its purpose; with the pod it goes at the latest.
        let _ = self.remove_unless(Kind::Secret, &[Holder::Successor]);
        *self.dialled.lock().unwrap_or_else(PoisonError::into_inner) = Some(objects::uid(&pod).to_string());
        Ok(session)
    }

    /// At the pod's address if the agent answers there, else through the API server.
    fn dial_somehow(&self, pod: &Value, agent: Fingerprint) -> Result<Session, Refusal> {
        let is_apart = self.is_apart.load(Ordering::SeqCst);
        if !is_apart
            && self.answers(pod)
            && let Ok(session) = self.dial_by(&self.at_pod(pod)?, agent)
        {
            return Ok(session);
        }
        let session = self.dial_by(&self.through_api()?, agent)?;
        // In a pod it is a line that was down for a while.
        self.is_apart.store(!self.cluster.is_inside(), Ordering::SeqCst);
        Ok(session)
    }

    /// Whether somebody takes connections at the pod's address.
    fn answers(&self, pod: &Value) -> bool {
        let address = objects::pod_address(pod).and_then(|address| address.to_socket_addrs().ok()?.next());
        let Some(address) = address else { return false };
        let within = if self.cluster.is_inside() { ANSWER_WITHIN } else { LISTEN_WITHIN };
        takes_connections(address, within, &|| self.stop.is_set())
    }

    fn at_pod(&self, pod: &Value) -> Result<Way, Refusal> {
        let address = objects::pod_address(pod).ok_or_else(|| {
            Refusal::new(DiskErrorKind::Transient, format!("the worker pod {} has no address", self.name()))
        })?;
        let words = format!("at its address {address}");
        Ok(Way { addresses: vec![address], server_name: None, words, within: ANSWER_WITHIN })
    }

    fn through_api(&self) -> Result<Way, Refusal> {
        let address = self.forwarded().map_err(|error| refused(&error))?;
        let words = "through the API server (port-forward)".to_string();
        Ok(Way { addresses: vec![address], server_name: None, words, within: ANSWER_WITHIN })
    }

    fn forwarded(&self) -> Result<String, KubeError> {
        let mut forward = self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(forward) = forward.as_ref() {
            return Ok(forward.address().to_string());
        }
        let made = Forward::open(&self.cluster, &self.kubevirt.namespace, &self.name(), AGENT_PORT)?;
        let address = made.address().to_string();
        *forward = Some(made);
        Ok(address)
    }

    fn by_service(&self, pod: &Value) -> Result<Way, Refusal> {
        let addresses = self.service_of(pod).map_err(|error| refused(&error))?;
        let kind = self.kubevirt.reach.service().unwrap_or_default();
        let words = format!("by a Service of type {kind}, at {}", addresses.join(", "));
        // Who carries it there may take as long as a pod.
        let within = ANSWER_WITHIN.max(Duration::from_secs(self.kubevirt.worker_timeout_s));
        Ok(Way { addresses, server_name: None, words, within })
    }

    fn by_route(&self, pod: &Value) -> Result<Way, Refusal> {
        let host = self.route_of(pod).map_err(|error| refused(&error))?;
        let words = format!("by a Route, at {host}:{ROUTER_PORT}");
        // The router hears of the pod some time after it runs.
        let within = ANSWER_WITHIN.max(Duration::from_secs(self.kubevirt.worker_timeout_s));
        let addresses = vec![format!("{host}:{ROUTER_PORT}")];
        Ok(Way { addresses, server_name: Some(host), words, within })
    }

    /// The name of the Route of the pod; makes it, and the Service that it leads to, where there is none.
    pub(super) fn route_of(&self, pod: &Value) -> Result<String, KubeError> {
        let service = |uid: &str| {
            objects::service(&self.vm, &self.kubevirt, &self.plan, &self.run, "ClusterIP", Some(uid))
        };
        self.part_of(pod, Kind::Service, &service, &|_| Some(()), "")?;
        let route = |uid: &str| objects::route(&self.vm, &self.kubevirt, &self.plan, &self.run, Some(uid));
        let host = |found: &Value| objects::route_host(found).map(str::to_string);
        self.part_of(pod, Kind::Route, &route, &host, "no router has admitted it")
    }

    /// Where the Service of the pod is reached; makes it if there is none.
    pub(super) fn service_of(&self, pod: &Value) -> Result<Vec<String>, KubeError> {
        let Some(kind) = self.kubevirt.reach.service() else { return Ok(Vec::new()) };
        let node = self.node_of(pod);
        let service =
            |uid: &str| objects::service(&self.vm, &self.kubevirt, &self.plan, &self.run, kind, Some(uid));
        let addresses = |found: &Value| {
            Some(objects::service_addresses(found, pod, node.as_ref())).filter(|all| !all.is_empty())
        };
        self.part_of(pod, Kind::Service, &service, &addresses, "nothing in the cluster gives it one")
    }

    /// What an object of the pod's own says once it says it; makes it, for the UID of the pod, if there is none.
    fn part_of<T>(
        &self,
        pod: &Value,
        kind: Kind,
        fresh: &dyn Fn(&str) -> Value,
        says: &dyn Fn(&Value) -> Option<T>,
        lacks: &str,
    ) -> Result<T, KubeError> {
        let path = self.path(kind);
        let wanted = fresh(objects::uid(pod));
        let name = match wanted["spec"]["type"].as_str() {
            Some(of_type) => format!("Service of type {of_type}"),
            None => format!("{kind:?}"),
        };
        let until = Instant::now() + Duration::from_secs(self.kubevirt.worker_timeout_s);
        loop {
            let why = match self.cluster.get(&path)? {
                None => {
                    self.cluster.create(&objects::path(&self.kubevirt, kind, ""), &wanted, false)?;
                    continue;
                }
                Some(found) if !objects::is_of(&found, &self.owner()) => {
                    return Err(self.taken(&format!("{kind:?}"), &found));
                }
                // Of an earlier pod, or of a plan that said otherwise.
                Some(found)
                    if !objects::is_owned_by(&found, pod)
                        || found["spec"]["type"] != wanted["spec"]["type"] =>
                {
                    if !objects::is_going(&found) {
                        self.cluster.delete(&path, objects::uid(&found))?;
                    }
                    "the one before is still there"
                }
                Some(found) => match says(&found) {
                    None => lacks,
                    Some(said) => return Ok(said),
                },
            };
            if self.stop.is_set() || Instant::now() >= until {
                let waited = self.kubevirt.worker_timeout_s;
                return Err(self.failed(format!("has no address by its {name} within {waited} s: {why}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The pod's node, where it may be read: it has addresses for others than the cluster.
    fn node_of(&self, pod: &Value) -> Option<Value> {
        let name = pod["spec"]["nodeName"].as_str()?;
        self.cluster.get(&format!("/api/v1/nodes/{name}")).ok()?
    }

    fn dial_by(&self, way: &Way, agent: Fingerprint) -> Result<Session, Refusal> {
        let until = Instant::now() + way.within;
        loop {
            let route = Route {
                addresses: way.addresses.clone(),
                server_name: way.server_name.clone(),
                own_name: own_name(),
                rate_limit: Some(self.limit.clone()),
                ..Route::default()
            };
            match dial(&self.identity, agent, &route) {
                Err(_) if Instant::now() < until && !self.stop.is_set() => std::thread::sleep(LOOK),
                Err(error) => {
                    let refusal = Refusal::from(error);
                    let forward = self.forward.lock().unwrap_or_else(PoisonError::into_inner);
                    return Err(match forward.as_ref().and_then(Forward::last_refusal) {
                        Some(why) => Refusal::new(refusal.kind, format!("{}: {why}", refusal.why)),
                        None => refusal,
                    });
                }
                Ok(session) => {
                    self.tell(&way.words);
                    return Ok(session);
                }
            }
        }
    }

    /// Says how the agent is reached, if that is another way than before.
    fn tell(&self, words: &str) {
        let mut told = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_deref() != Some(words) {
            let place = format!("worker pod {}/{}", self.kubevirt.namespace, self.name());
            (self.say)(&format!("{place} is reached {words}"));
            *told = Some(words.to_string());
        }
    }
}

/// Whether somebody takes connections there. Who refuses one may be about to; who does not answer is not there.
fn takes_connections(address: SocketAddr, within: Duration, stops: &dyn Fn() -> bool) -> bool {
    let until = Instant::now() + within;
    loop {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(_) => return true,
            Err(error) if error.kind() != ErrorKind::ConnectionRefused => return false,
            Err(_) if stops() || Instant::now() >= until => return false,
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_answers_if_somebody_takes_connections_within_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(takes_connections(address, Duration::ZERO, &|| false));
        drop(listener);
        assert!(!takes_connections(address, Duration::ZERO, &|| false));
        assert!(!takes_connections(address, ANSWER_WITHIN, &|| true), "nobody waits any more");
        let listening = std::thread::spawn(move || {
            std::thread::sleep(LOOK);
            TcpListener::bind(address).unwrap()
        });
        assert!(takes_connections(address, ANSWER_WITHIN, &|| false));
        drop(listening.join().unwrap());
    }
}
