//! The API server of a cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;

/// How long an answer may take. The API server itself gives up after a minute.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long an exec plug-in of a kubeconfig may take with it: it may ask an identity provider.
const CONNECT_MAX: Duration = Duration::from_secs(90);
/// Threads that carry requests and forwarded bytes.
const THREADS: usize = 2;
/// Who the API server says owns the fields that drover sets.
const MANAGER: &str = "drover";

/// How a cluster is reached.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The kubeconfig; absent: `KUBECONFIG`, `~/.kube/config`, or the pod's own.
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts; absent: its current one.
    pub context: Option<String>,
}

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
}

impl KubeError {
    fn new(kind: KubeErrorKind, what: impl Into<String>) -> KubeError {
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

/// A cluster, as its API server shows it. Requests are paths and JSON; each is bounded in time.
pub struct Cluster {
    runtime: Runtime,
    client: Client,
    server: String,
}

impl Cluster {
    /// Reads the configuration; nothing is asked of the server yet.
    ///
    /// # Errors
    /// When there is no configuration, or it cannot be used.
    pub fn connect(access: &Access) -> Result<Arc<Cluster>, KubeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("kube")
            .enable_all()
            .build()
            .map_err(|error| KubeError::new(KubeErrorKind::Config, format!("starting threads: {error}")))?;
        let (client, server) = runtime.block_on(async {
            let config = config_of(access).await?;
            let server = config.cluster_url.to_string();
            let client = Client::try_from(config)
                .map_err(|error| KubeError::new(KubeErrorKind::Config, words_of(&error)))?;
            Ok::<_, KubeError>((client, server))
        })?;
        Ok(Arc::new(Cluster { runtime, client, server }))
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Reads an object or a list; nothing if it is not there.
    ///
    /// # Errors
    /// As all requests; `NotServed` if there are no such objects at all.
    pub fn get(&self, path: &str) -> Result<Option<Value>, KubeError> {
        match self.ask(Method::GET, path, None, "") {
            Err(error) if error.kind == KubeErrorKind::Missing => Ok(None),
            answer => answer.map(Some),
        }
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
        let body = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid},
        });
        match self.ask(Method::DELETE, path, Some(&body), JSON) {
            Err(error) if matches!(error.kind, KubeErrorKind::Missing | KubeErrorKind::Conflict) => Ok(()),
            answer => answer.map(drop),
        }
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>, kind: &str) -> Result<Value, KubeError> {
        let about = format!("{method} {}", path.split('?').next().unwrap_or_default());
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(http::header::CONTENT_TYPE, kind);
        }
        let request = request
            .body(bytes)
            .map_err(|error| KubeError::new(KubeErrorKind::Refused, format!("{about}: {error}")))?;
        let answer = self.runtime.block_on(async {
            tokio::time::timeout(ANSWER_MAX, self.client.request::<Value>(request)).await
        });
        match answer {
            Err(_) => {
                let what = format!("{about}: no answer within {} s", ANSWER_MAX.as_secs());
                Err(KubeError::new(KubeErrorKind::Unreachable, what))
            }
            Ok(answer) => answer.map_err(|error| refusal(&about, &error)),
        }
    }
}

const JSON: &str = "application/json";

async fn config_of(access: &Access) -> Result<Config, KubeError> {
    let options = KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    let read = async {
        let kubeconfig = match &access.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let mut kubeconfig = kubeconfig?;
        for user in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
            if let Some(exec) = &mut user.exec {
                let hidden = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                exec.drop_env = Some(hidden.filter(|name| !is_for_plugins(name)).collect());
            }
        }
        Config::from_custom_kubeconfig(kubeconfig, &options).await
    };
    let timed_out = || KubeError::new(KubeErrorKind::Config, "the kubeconfig's plug-in did not answer");
    match tokio::time::timeout(CONNECT_MAX, read).await.map_err(|_| timed_out())? {
        Ok(config) => Ok(config),
        // Nobody named one: drover may run in a pod of the cluster.
        Err(_) if access.kubeconfig.is_none() && access.context.is_none() && is_in_cluster() => {
            Config::incluster().map_err(|error| KubeError::new(KubeErrorKind::Config, words_of(&error)))
        }
        Err(error) => Err(KubeError::new(KubeErrorKind::Config, words_of(&error))),
    }
}

fn is_in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// What an exec plug-in may need of the environment, which may hold passwords of drover's.
fn is_for_plugins(name: &str) -> bool {
    let whole = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TZ",
        "TMPDIR",
        "KUBECONFIG",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    let begins = ["AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "OS_", "XDG_", "LC_"];
    let proxies = ["http_proxy", "https_proxy", "no_proxy", "all_proxy"];
    whole.contains(&name)
        || begins.iter().any(|begin| name.starts_with(begin))
        || proxies.contains(&name.to_ascii_lowercase().as_str())
}

/// An error with all that caused it, each said once.
fn words_of(error: &dyn std::error::Error) -> String {
    let (mut words, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        let more = cause.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        next = cause.source();
    }
    words
}

fn refusal(about: &str, error: &kube::Error) -> KubeError {
    let kube::Error::Api(status) = error else {
        return KubeError::new(KubeErrorKind::Unreachable, format!("{about}: {}", words_of(error)));
    };
    // "404 page not found", in place of a status: no such kind of object is served.
    let is_page =
        status.code == 404 && (status.message.contains("page not found") || status.reason.contains("parse"));
    let kind = match status.code {
        401 | 403 if !status.message.contains("exceeded quota") => KubeErrorKind::Denied,
        404 if is_page => KubeErrorKind::NotServed,
        404 => KubeErrorKind::Missing,
        409 => KubeErrorKind::Conflict,
        400 | 403 | 405 | 413 | 415 | 422 => KubeErrorKind::Refused,
        _ => KubeErrorKind::Server,
    };
    let text = match (is_page, status.code) {
        (true, _) => "the server does not know such objects".to_string(),
        (_, 401) => format!("who asks is not known: {}", status.message),
        _ => status.message.clone(),
    };
    KubeError::new(kind, format!("{about}: {}", shortened(&text)))
}

/// What a server says is not longer.
const WORDS_CHARS_MAX: usize = 1000;

fn shortened(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(WORDS_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_plugins_get_no_secret_of_drovers() {
        for name in ["PATH", "AWS_PROFILE", "HTTPS_PROXY", "https_proxy"] {
            assert!(is_for_plugins(name), "{name}");
        }
        for name in ["VCENTER_PASSWORD", "DROVER_PAIRING_TOKEN", "LD_PRELOAD"] {
            assert!(!is_for_plugins(name), "{name}");
        }
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
        let path = folder.path().join("config");
        let text = "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n\
                    users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n";
        std::fs::write(&path, text).unwrap();
        let cluster = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).unwrap();
        let error = cluster.get("/version").unwrap_err();
        assert_eq!(error.kind, KubeErrorKind::Unreachable, "{error}");
    }
}
