//! The API server of a cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::{Method, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::runtime::{Handle, Runtime};

use crate::access::{self, Access, Reached, shortened, words_of};

/// How long an answer may take. The API server itself gives up after a minute.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How large an answer may be: a list of all storage classes and quotas is far below.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// How long an exec plug-in of a kubeconfig may take with it: it may ask an identity provider.
const CONNECT_MAX: Duration = Duration::from_secs(90);
/// Threads that carry requests and forwarded bytes.
const THREADS: usize = 2;
/// Who the API server says owns the fields that drover sets.
const MANAGER: &str = "drover";
/// The namespace whose UID tells clusters apart: each has one, and it is never made anew.
const SYSTEM: &str = "kube-system";

/// Why a cluster did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct KubeError {
    /// To decide on.
    pub kind: KubeErrorKind,
    /// What was done, and the server's reason.
    pub what: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeErrorKind {
    /// The kubeconfig, or what it names, cannot be used.
    Config,
    /// Nobody answers, or not in time: it may have been done.
    Unreachable,
    /// Who asks may not (401, 403).
    Denied,
    /// Such objects are not served: their CRD is not installed.
    NotServed,
    /// It is not there.
    Missing,
    /// It is there already, or was changed meanwhile.
    Conflict,
    /// The object is refused (400, 422), or the quota.
    Refused,
    /// The server failed or is busy.
    Server,
    /// The answer is larger than what is read.
    TooLarge,
}

impl KubeError {
    pub(crate) fn new(kind: KubeErrorKind, what: impl Into<String>) -> KubeError {
        KubeError { kind, what: what.into() }
    }
}

/// How an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Fields are laid over it.
    Merge,
    /// A list of operations, all of them or none (RFC 6902).
    Operations,
}

/// A cluster, as its API server shows it. Requests are paths and JSON; each is bounded in time and in size.
pub struct Cluster {
    runtime: Option<Runtime>,
    handle: Handle,
    client: Client,
    server: String,
    namespace: String,
    plugin: Option<String>,
    is_inside: bool,
    /// When nothing is waited for any more.
    last: OnceLock<Instant>,
    /// How long an answer may take, where that is less than [`ANSWER_MAX`].
    patience: OnceLock<Duration>,
    /// Requests so far.
    requests: AtomicU64,
}

impl Cluster {
    /// Reads the configuration; nothing is asked of the server yet.
    ///
    /// # Errors
    /// When there is no configuration, or it cannot be used.
    pub fn connect(access: &Access) -> Result<Arc<Cluster>, KubeError> {
        Cluster::connect_within(access, CONNECT_MAX)
    }

    fn connect_within(access: &Access, within: Duration) -> Result<Arc<Cluster>, KubeError> {
        let failed = |error: std::io::Error| {
            KubeError::new(KubeErrorKind::Config, format!("starting threads: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("kube")
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (sender, receiver) = mpsc::sync_channel(1);
        let (asked, on) = (access.clone(), handle.clone());
        // Plug-ins block: one that does not end keeps this thread, and nobody else.
        let thread = std::thread::Builder::new().name("kube-connect".into());
        let begun = thread.spawn(move || {
            let _ = sender.send(access::reach(&asked, &on));
        });
        let reached = begun.map_err(failed).and_then(|_| match receiver.recv_timeout(within) {
            Ok(reached) => reached,
            Err(_) => {
                let what = format!(
                    "the exec plug-in of the kubeconfig's user did not answer within {} s; it is not asked anything on a terminal",
                    within.as_secs_f32()
                );
                Err(KubeError::new(KubeErrorKind::Config, what))
            }
        });
        match reached {
            Ok(Reached { client, server, namespace, plugin, is_inside }) => {
                let (last, patience) = (OnceLock::new(), OnceLock::new());
                Ok(Arc::new(Cluster {
                    runtime: Some(runtime),
                    handle,
                    client,
                    server,
                    namespace,
                    plugin,
                    is_inside,
                    last,
                    patience,
                    requests: AtomicU64::new(0),
                }))
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The namespace of the context, or the pod's own; `default` where none is named.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether drover runs in a pod of it, by that pod's own configuration.
    pub fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// How many requests were made so far; streams of changes count none.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// From now on no answer is waited for longer than until then.
    pub fn finish_by(&self, last: Instant) {
        let _ = self.last.set(last);
    }

    /// From now on no answer is waited for longer than that.
    pub fn wait_at_most(&self, patience: Duration) {
        let _ = self.patience.set(patience);
    }

    /// What tells this cluster from another: a namespace that all of them have, or this one where that may not be read, and its UID.
    ///
    /// # Errors
    /// As all requests; `Denied` if neither may be read.
    pub fn identity(&self, namespace: &str) -> Result<(String, String), KubeError> {
        match self.uid_of(SYSTEM) {
            Err(error) if error.kind == KubeErrorKind::Denied => {
                self.uid_of(namespace).map(|uid| (namespace.to_string(), uid))
            }
            uid => uid.map(|uid| (SYSTEM.to_string(), uid)),
        }
    }

    /// The UID of a namespace.
    ///
    /// # Errors
    /// As all requests; `Missing` if it is not there.
    pub fn uid_of(&self, namespace: &str) -> Result<String, KubeError> {
        let path = format!("/api/v1/namespaces/{namespace}");
        let found = self.ask(Method::GET, &path, None, "")?;
        let uid = found["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty());
        uid.map(str::to_string).ok_or_else(|| {
            KubeError::new(KubeErrorKind::Server, format!("GET {path}: the answer has no UID"))
        })
    }

    /// Reads an object or a list; nothing if it is not there.
    ///
    /// # Errors
    /// As all requests; `NotServed` if there seem to be no such objects at all.
    pub fn get(&self, path: &str) -> Result<Option<Value>, KubeError> {
        match self.ask(Method::GET, path, None, "") {
            Err(error) if error.kind == KubeErrorKind::Missing => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Reads an object of a group that need not be served: where the server's own list of groups is without it, there is none.
    ///
    /// # Errors
    /// As all requests; also if the group is served and the object's kind is not, which proves nothing.
    pub fn find(&self, path: &str, group: &str) -> Result<Option<Value>, KubeError> {
        match self.get(path) {
            Err(error) if error.kind == KubeErrorKind::NotServed => match self.lacks(group)? {
                true => Ok(None),
                false => Err(KubeError { kind: KubeErrorKind::Server, ..error }),
            },
            found => found,
        }
    }

    fn lacks(&self, group: &str) -> Result<bool, KubeError> {
        let list = self.ask(Method::GET, "/apis", None, "")?;
        let groups = list["groups"].as_array().filter(|_| list["kind"] == "APIGroupList");
        Ok(groups.is_some_and(|groups| groups.iter().all(|it| it["name"] != group)))
    }

    /// Makes an object; with `dry` the server only judges it.
    ///
    /// # Errors
    /// As all requests; `Conflict` if it is there.
    pub fn create(&self, path: &str, object: &Value, dry: bool) -> Result<Value, KubeError> {
        let dry = if dry { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={MANAGER}&fieldValidation=Strict{dry}");
        self.ask(Method::POST, &path, Some(object), JSON)
    }

    /// Makes an object or gives it these fields (server-side apply); with `dry` the server only judges it.
    ///
    /// # Errors
    /// As all requests; `Conflict` if somebody else set one of the fields.
    pub fn apply(&self, path: &str, object: &Value, dry: bool) -> Result<Value, KubeError> {
        let dry = if dry { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={MANAGER}&fieldValidation=Strict{dry}");
        // YAML has JSON in it.
        self.ask(Method::PATCH, &path, Some(object), "application/apply-patch+yaml")
    }

    /// Changes an object.
    ///
    /// # Errors
    /// As all requests; `Refused` if an operation finds something else than it wants.
    pub fn change(&self, path: &str, change: Change, body: &Value) -> Result<Value, KubeError> {
        let kind = match change {
            Change::Merge => "application/merge-patch+json",
            Change::Operations => "application/json-patch+json",
        };
        self.ask(Method::PATCH, &format!("{path}?fieldManager={MANAGER}"), Some(body), kind)
    }

    /// Asks for the end of an object, if it is the one with this UID. One that is gone is fine, and so is another of its name.
    ///
    /// # Errors
    /// As all requests.
    pub fn delete(&self, path: &str, uid: &str) -> Result<(), KubeError> {
        self.remove(path, &serde_json::json!({"uid": uid}), "Background")
    }

    /// As [`Cluster::delete`], with all the preconditions that the server is to hold it against (`uid`, `resourceVersion`), and how what
    /// it owns goes with it: `Foreground` keeps it until all of that is gone.
    ///
    /// # Errors
    /// As all requests.
    pub fn remove(&self, path: &str, preconditions: &Value, propagation: &str) -> Result<(), KubeError> {
        let body = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation, "preconditions": preconditions,
        });
        match self.ask(Method::DELETE, path, Some(&body), JSON) {
            Err(error) if matches!(error.kind, KubeErrorKind::Missing | KubeErrorKind::Conflict) => Ok(()),
            answer => answer.map(drop),
        }
    }

    pub(crate) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        kind: &str,
    ) -> Result<Value, KubeError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let about = format!("{method} {}", path.split('?').next().unwrap_or_default());
        let told = |(kind, what): Told| KubeError::new(kind, format!("{about}: {what}"));
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(http::header::CONTENT_TYPE, kind);
        }
        let request =
            request.body(bytes).map_err(|error| told((KubeErrorKind::Refused, error.to_string())))?;
        let patience = self.patience.get().map_or(ANSWER_MAX, |patience| ANSWER_MAX.min(*patience));
        let within = match self.last.get() {
            Some(last) => patience.min(last.saturating_duration_since(Instant::now())),
            None => patience,
        };
        let (client, plugin) = (self.client.clone(), self.plugin.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        // Not on this thread: an exec plug-in that gives a token anew blocks the thread that asks.
        let task = self.handle.spawn(async move {
            let _ = sender.send(carried(&client, request, plugin.as_deref()).await);
        });
        match receiver.recv_timeout(within) {
            Ok(carried) => carried.and_then(|(code, body)| answered(code, &body)).map_err(told),
            Err(error) => {
                task.abort();
                let what = match error {
                    RecvTimeoutError::Timeout => format!("no answer within {} s", within.as_secs()),
                    RecvTimeoutError::Disconnected => "the request was given up".to_string(),
                };
                Err(told((KubeErrorKind::Unreachable, what)))
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A plug-in that does not end is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

const JSON: &str = "application/json";

/// Kind and words of an error, without the request.
pub(crate) type Told = (KubeErrorKind, String);

async fn carried(
    client: &Client,
    request: Request<Vec<u8>>,
    plugin: Option<&str>,
) -> Result<(u16, Vec<u8>), Told> {
    let unreachable =
        |error: &(dyn std::error::Error + 'static)| match access::credential_words(error, plugin) {
            Some(words) => (KubeErrorKind::Config, words),
            None => (KubeErrorKind::Unreachable, words_of(error)),
        };
    let response = client.send(request.map(Body::from)).await.map_err(|error| unreachable(&error))?;
    let code = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => {
            (KubeErrorKind::TooLarge, format!("the answer is larger than {} MiB", ANSWER_BYTES_MAX >> 20))
        }
        false => unreachable(error.as_ref()),
    })?;
    Ok((code, body.to_bytes().to_vec()))
}

/// What an answer says. Only an API server's own words tell that something is not there: a proxy's page tells nothing.
pub(crate) fn answered(code: u16, body: &[u8]) -> Result<Value, Told> {
    let parsed: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
    if (200..300).contains(&code) {
        return parsed.ok_or_else(|| (KubeErrorKind::Server, NO_API_SERVER.to_string()));
    }
    let Some(status) = parsed.filter(|it| it["kind"] == "Status") else {
        let text = shortened(String::from_utf8_lossy(body).trim());
        return Err(match code {
            401 | 403 => (KubeErrorKind::Denied, text),
            404 if text == "404 page not found" => {
                (KubeErrorKind::NotServed, "the server does not know such objects".to_string())
            }
            _ => (KubeErrorKind::Server, format!("{code}: {NO_API_SERVER}: {text}")),
        });
    };
    let message = status["message"].as_str().unwrap_or_default();
    let is_named = status["details"]["name"].as_str().is_some_and(|name| !name.is_empty());
    let kind = match code {
        401 | 403 if !message.contains("exceeded quota") => KubeErrorKind::Denied,
        404 if status["reason"] == "NotFound" && is_named => KubeErrorKind::Missing,
        404 => KubeErrorKind::NotServed,
        409 => KubeErrorKind::Conflict,
        400 | 403 | 405 | 413 | 415 | 422 => KubeErrorKind::Refused,
        _ => KubeErrorKind::Server,
    };
    let text = if code == 401 { format!("{NOT_KNOWN}: {message}") } else { message.to_string() };
    Err((kind, shortened(&text)))
}

/// How messages begin of an API server that does not know who asks: a token or certificate that is wrong, or has expired.
pub const NOT_KNOWN: &str = "who asks is not known";
const NO_API_SERVER: &str = "what answers is not the API server of a Kubernetes";

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each request by its path.
    fn served(answers: Vec<(&'static str, u16, String)>) -> (tempfile::TempDir, Arc<Cluster>) {
        let server = drover_lab::served::serve(move |asked| {
            let found = answers.iter().find(|(of, ..)| *of == asked.path);
            found.map_or((500, String::new()), |(_, code, body)| (*code, body.clone()))
        });
        let server = server.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = kubeconfig(folder.path(), &server, "{}");
        let cluster = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).unwrap();
        (folder, cluster)
    }

    fn kubeconfig(folder: &std::path::Path, server: &str, user: &str) -> std::path::PathBuf {
        let path = folder.join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n\
             users: [{{name: a, user: {user}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\ncurrent-context: a\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/n/virtualmachines/a";

    fn groups(name: &str) -> String {
        serde_json::json!({"kind": "APIGroupList", "groups": [{"name": name}]}).to_string()
    }

    fn status(reason: &str, details: Value) -> String {
        serde_json::json!({"kind": "Status", "reason": reason, "message": reason, "details": details})
            .to_string()
    }

    #[test]
    fn only_an_api_servers_own_words_say_that_something_is_not_there() {
        let found = |page: &str, apis: (u16, String)| {
            let (_folder, cluster) = served(vec![(MACHINE, 404, page.into()), ("/apis", apis.0, apis.1)]);
            cluster.find(MACHINE, "kubevirt.io").map_err(|error| error.kind)
        };
        let plain = "404 page not found\n";
        assert_eq!(found(plain, (200, groups("apps"))), Ok(None), "it serves no such group");
        assert_eq!(found(plain, (200, groups("kubevirt.io"))), Err(KubeErrorKind::Server));
        assert_eq!(found(plain, (404, plain.into())), Err(KubeErrorKind::NotServed), "no API server at all");
        assert_eq!(found(plain, (200, "<html>".into())), Err(KubeErrorKind::Server));
        let html = "<html><h1>404 page not found</h1></html>";
        assert_eq!(found(html, (200, groups("apps"))), Err(KubeErrorKind::Server), "a proxy's page");
        let named = status("NotFound", serde_json::json!({"name": "a"}));
        assert_eq!(found(&named, (500, String::new())), Ok(None));
        let unnamed = status("NotFound", Value::Null);
        assert_eq!(found(&unnamed, (200, groups("kubevirt.io"))), Err(KubeErrorKind::Server));
    }

    #[test]
    fn a_cluster_is_told_from_another_by_what_may_be_read() {
        let denied = |name: &'static str| (name, 403, status("Forbidden", Value::Null));
        let uid = |name: &'static str, uid: &str| {
            (name, 200, serde_json::json!({"metadata": {"uid": uid}}).to_string())
        };
        let (system, own) = ("/api/v1/namespaces/kube-system", "/api/v1/namespaces/n");
        let of = |answers| served(answers).1.identity("n").map_err(|error| error.kind);
        assert_eq!(of(vec![uid(system, "1"), uid(own, "2")]), Ok(("kube-system".into(), "1".into())));
        assert_eq!(of(vec![denied(system), uid(own, "2")]), Ok(("n".into(), "2".into())));
        assert_eq!(of(vec![denied(system), denied(own)]), Err(KubeErrorKind::Denied));
        assert_eq!(of(vec![uid(system, ""), uid(own, "2")]), Err(KubeErrorKind::Server));
    }

    #[test]
    fn a_kubeconfigs_proxy_is_asked_for_its_server() {
        let (folder, proxy) =
            served(vec![("cluster.example:80", 200, String::new()), ("/version", 200, "{}".into())]);
        let path = kubeconfig(folder.path(), "http://cluster.example:80", "{}");
        let text = std::fs::read_to_string(&path).unwrap();
        let own = format!("server: 'http://cluster.example:80', proxy-url: '{}'", proxy.server());
        std::fs::write(&path, text.replace("server: 'http://cluster.example:80'", &own)).unwrap();
        let cluster = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).unwrap();
        assert_eq!(cluster.get("/version"), Ok(Some(serde_json::json!({}))));
        assert_eq!(cluster.server(), "http://cluster.example:80/");
    }

    #[test]
    fn an_answer_that_is_too_large_is_refused() {
        let (_folder, cluster) = served(vec![("/version", 200, " ".repeat(ANSWER_BYTES_MAX + 1))]);
        let error = cluster.get("/version").unwrap_err();
        assert!(error.kind == KubeErrorKind::TooLarge && error.what.contains("32 MiB"), "{error}");
    }

    #[test]
    fn a_list_with_large_objects_comes_in_smaller_pages() {
        let page = |names: &[&str], next: &str| {
            let items: Vec<Value> =
                names.iter().map(|name| serde_json::json!({"metadata": {"name": name}})).collect();
            serde_json::json!({"items": items, "metadata": {"continue": next, "resourceVersion": "7"}})
                .to_string()
        };
        let large = || " ".repeat(ANSWER_BYTES_MAX + 1);
        let (_folder, cluster) = served(vec![
            ("/things?limit=500&", 200, page(&["a"], "1")),
            ("/things?limit=500&&continue=1", 200, large()),
            ("/things?limit=250&&continue=1", 200, large()),
            ("/things?limit=125&&continue=1", 200, page(&["b"], "2")),
            ("/things?limit=125&&continue=2", 200, page(&["c"], "")),
        ]);
        let names = cluster.all("/things").unwrap();
        let names: Vec<&str> = names.iter().filter_map(|it| it["metadata"]["name"].as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_plugin_that_fails_is_named_and_what_it_knows_is_not_told() {
        let folder = tempfile::tempdir().unwrap();
        let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['-c', 'echo tok3n; echo tok3n >&2; exit 7', argpass],\
                     env: [{name: PASS, value: envpass}]}}";
        let path = kubeconfig(folder.path(), "http://127.0.0.1:9", user);
        let error = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).err().unwrap();
        assert_eq!(error.kind, KubeErrorKind::Config);
        assert!(error.what.contains("plug-in sh") && error.what.contains('7'), "{error}");
        for secret in ["tok3n", "envpass", "argpass"] {
            assert!(!error.what.contains(secret), "{error}");
        }
        let broken = folder.path().join("broken");
        std::fs::write(&broken, "users: [{name: a, user: {token: tok3n, password: [}}]\n").unwrap();
        let error = Cluster::connect(&Access { kubeconfig: Some(broken), context: None }).err().unwrap();
        assert!(error.kind == KubeErrorKind::Config && !error.what.contains("tok3n"), "{error}");
    }

    #[test]
    fn a_plugin_that_does_not_end_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        // It ends with the folder.
        let script = format!("while [ -d {} ]; do sleep 0.1; done", folder.path().display());
        let user = format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['-c', '{script}'], interactiveMode: Always}}}}"
        );
        let path = kubeconfig(folder.path(), "http://127.0.0.1:9", &user);
        let access = Access { kubeconfig: Some(path), context: None };
        let error = Cluster::connect_within(&access, Duration::from_millis(300)).err().unwrap();
        assert!(error.kind == KubeErrorKind::Config && error.what.contains("did not answer"), "{error}");
    }

    #[test]
    fn a_kubeconfig_that_is_not_there_or_names_no_such_context_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let access = Access { kubeconfig: Some(path.clone()), context: Some("prod".into()) };
        let refused = |access: &Access| Cluster::connect(access).err().unwrap();
        assert_eq!(refused(&access).kind, KubeErrorKind::Config);
        std::fs::write(&path, "apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\n")
            .unwrap();
        let error = refused(&access);
        assert!(error.what.contains("prod"), "{error}");
    }

    #[test]
    fn a_server_that_is_not_there_is_unreachable() {
        let folder = tempfile::tempdir().unwrap();
        let path = kubeconfig(folder.path(), "http://127.0.0.1:9", "{}");
        let cluster = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).unwrap();
        let error = cluster.get("/version").unwrap_err();
        assert_eq!(error.kind, KubeErrorKind::Unreachable, "{error}");
    }
}
