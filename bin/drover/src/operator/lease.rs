//! One operator of a namespace leads: it has a Lease, which it renews.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_kubevirt::{Change, Cluster, KubeError, KubeErrorKind};
use serde_json::{Value, json};

const NAME: &str = "drover-operator";
/// A holder that has not renewed for so long has lost it, on the clock of whoever looks.
const SECONDS: u64 = 15;
const RENEW: Duration = Duration::from_secs(4);
/// A holder that could not renew for so long stops, before others take it for gone.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The Lease.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    cluster: Arc<Cluster>,
    all: String,
    me: String,
    renewed: Mutex<Instant>,
    /// Whether another was seen to have it.
    is_lost: AtomicBool,
    is_over: AtomicBool,
}

impl Lease {
    pub fn new(cluster: Arc<Cluster>, namespace: &str) -> Lease {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "drover".into());
        let me = format!("{host}_{:016x}", drover_mover::new_epoch(0));
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let (is_lost, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Lease(Arc::new(Inner { cluster, all, me, renewed: Mutex::new(Instant::now()), is_lost, is_over }))
    }

    /// Waits until it is had, then renews it; `false` if `stops` said so before. `tells` hears whether the server answers meanwhile.
    pub fn take(&self, stops: &dyn Fn() -> bool, tells: &dyn Fn(Result<(), String>)) -> bool {
        let mut seen: Option<(String, Instant)> = None;
        let mut said = String::new();
        while !stops() {
            match self.0.try_take(&mut seen) {
                Ok(true) => {
                    let inner = self.0.clone();
                    std::thread::spawn(move || inner.renew());
                    return true;
                }
                Ok(false) => tells(Ok(())),
                Err(error) => {
                    tells(Err(error.what.clone()));
                    if said != error.what {
                        crate::out::say(format_args!("{error}; it is tried again"));
                        said = error.what;
                    }
                }
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        false
    }

    pub fn is_held(&self) -> bool {
        let renewed = *self.0.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        !self.0.is_lost.load(Ordering::SeqCst) && renewed.elapsed() < GIVE_UP
    }

    /// Lets the next one begin at once.
    pub fn give_back(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        let body = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
        // Else it runs out.
        if self.is_held() {
            let _ = self.0.cluster.change(&self.0.path(), Change::Merge, &body);
        }
    }
}

impl Inner {
    fn path(&self) -> String {
        format!("{}/{NAME}", self.all)
    }

    fn spec(&self) -> Value {
        let now = super::now().text();
        let now = format!("{}.000000Z", now.trim_end_matches('Z'));
        json!({"holderIdentity": self.me, "leaseDurationSeconds": SECONDS, "renewTime": now, "acquireTime": now})
    }

    /// Takes it if nobody has it. What of it was `seen` last, and since when it is so.
    fn try_take(&self, seen: &mut Option<(String, Instant)>) -> Result<bool, KubeError> {
        let Some(lease) = self.cluster.get(&self.path())? else {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": self.spec(),
            });
            return self.judged(self.cluster.create(&self.all, &lease, false));
        };
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_string();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if !holder.is_empty() && holder != self.me {
            // By this clock: clocks of hosts differ.
            let since = match seen {
                Some((known, since)) if *known == version => *since,
                _ => {
                    *seen = Some((version.clone(), Instant::now()));
                    return Ok(false);
                }
            };
            if since.elapsed() < Duration::from_secs(SECONDS) {
                return Ok(false);
            }
        }
        let body = json!({"metadata": {"resourceVersion": version}, "spec": self.spec()});
        self.judged(self.cluster.change(&self.path(), Change::Merge, &body))
    }

    fn judged(&self, answer: Result<Value, KubeError>) -> Result<bool, KubeError> {
        match answer {
            Ok(_) => {
                *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                Ok(true)
            }
            Err(error) if error.kind == KubeErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn renew(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            std::thread::sleep(RENEW);
            let begun = Instant::now();
            let found = self.cluster.get(&self.path());
            let Ok(found) = found else { continue };
            let lease = found.unwrap_or_default();
            if lease["spec"]["holderIdentity"] != self.me {
                if !self.is_over.load(Ordering::SeqCst) {
                    self.is_lost.store(true, Ordering::SeqCst);
                }
                return;
            }
            let body = json!({
                "metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]},
                "spec": {"renewTime": self.spec()["renewTime"]},
            });
            // It counts from before it was asked for; one that fails is tried again until it is too late.
            if self.cluster.change(&self.path(), Change::Merge, &body).is_ok() {
                *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = begun;
            }
        }
    }
}
