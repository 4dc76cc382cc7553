//! How a cluster is reached: kubeconfigs, their plug-ins, and what may be told of either when they fail.

use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kube::client::AuthError;
use kube::config::{ExecInteractiveMode, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::runtime::Handle;

use crate::cluster::{KubeError, KubeErrorKind};

/// How a cluster is reached.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The kubeconfig; absent: `KUBECONFIG`, `~/.kube/config`, or the pod's own.
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts; absent: its current one.
    pub context: Option<String>,
}

/// A client, the server's address, the namespace of its context, and the exec plug-in that gives it its credentials.
pub(crate) struct Reached {
    pub client: Client,
    pub server: String,
    pub namespace: String,
    pub plugin: Option<String>,
    /// Whether this is a pod of the cluster.
    pub is_inside: bool,
}

/// Reads the configuration. Blocks for as long as a plug-in takes.
pub(crate) fn reach(access: &Access, handle: &Handle) -> Result<Reached, KubeError> {
    let (config, is_inside) = handle.block_on(config_of(access))?;
    let (server, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
    let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
    let _entered = handle.enter();
    let client = Client::try_from(config).map_err(|error| {
        let words = credential_words(&error, plugin.as_deref()).unwrap_or_else(|| words_of(&error));
        KubeError::new(KubeErrorKind::Config, words)
    })?;
    Ok(Reached { client, server, namespace, plugin, is_inside })
}

async fn config_of(access: &Access) -> Result<(Config, bool), KubeError> {
    let failed = |words: String| KubeError::new(KubeErrorKind::Config, words);
    let is_asked = access.kubeconfig.is_some() || access.context.is_some();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_there = has_kubeconfig(std::env::var_os("KUBECONFIG").as_deref(), home.as_deref());
    // Nobody has one: drover may run in a pod of the cluster. One that is broken is no reason to ask another cluster.
    if !is_asked && !is_there && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster().map(|config| (config, true)).map_err(|error| failed(words_of(&error)));
    }
    let options = KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    let read = async {
        let mut kubeconfig = match &access.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        }?;
        for user in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
            if let Some(exec) = &mut user.exec {
                let hidden = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                exec.drop_env = Some(hidden.filter(|name| !is_for_plugins(name)).collect());
                // It would take the terminal, and wait there for somebody.
                exec.interactive_mode = Some(ExecInteractiveMode::Never);
            }
        }
        Config::from_custom_kubeconfig(kubeconfig, &options).await
    };
    read.await.map(|config| (config, false)).map_err(|error| match &error {
        // The parser shows the line, and what is in it may be a password.
        KubeconfigError::Parse(_) => {
            let place = access.kubeconfig.as_ref().map(|path| format!(" {}", path.display()));
            failed(format!("the kubeconfig{} is not the YAML of one", place.unwrap_or_default()))
        }
        _ => failed(words_of(&error)),
    })
}

/// Whether a kubeconfig is named by the environment, or lies where one is looked for.
fn has_kubeconfig(variable: Option<&OsStr>, home: Option<&Path>) -> bool {
    let is_named = |names: &OsStr| std::env::split_paths(names).any(|path| !path.as_os_str().is_empty());
    variable.is_some_and(is_named)
        || home.is_some_and(|home| home.join(".kube/config").try_exists().unwrap_or(true))
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

/// In words of our own what is wrong with credentials, if that is what an error is about: its own would show the plug-in's arguments,
/// environment and output.
pub(crate) fn credential_words(error: &(dyn Error + 'static), plugin: Option<&str>) -> Option<String> {
    let mut next = Some(error);
    let found = loop {
        let error = next?;
        if let Some(found) = error.downcast_ref::<AuthError>() {
            break found;
        }
        next = error.source();
    };
    let plugin = format!("the exec plug-in {}", plugin.unwrap_or("of the kubeconfig"));
    Some(shortened(&match found {
        AuthError::AuthExecRun { out, .. } => {
            format!("{plugin} failed: {}; run it by hand to see why", out.status)
        }
        AuthError::AuthExecStart(error) => format!("{plugin} cannot be run: {error}"),
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => format!("{plugin} gave no credentials"),
        AuthError::ReadTokenFile(error, path) => {
            format!("the token in {} cannot be read: {error}", path.display())
        }
        _ => "the credentials of the kubeconfig's user cannot be used".to_string(),
    }))
}

/// An error with all that caused it, each said once.
pub(crate) fn words_of(error: &dyn Error) -> String {
    let (mut words, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        let more = cause.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        next = cause.source();
    }
    shortened(&words)
}

/// What a server says is not longer.
const WORDS_CHARS_MAX: usize = 1000;

pub(crate) fn shortened(text: &str) -> String {
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
    fn a_kubeconfig_that_is_there_is_not_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let has = |variable: Option<&str>| has_kubeconfig(variable.map(OsStr::new), Some(home.path()));
        assert!(!has(None) && !has(Some("")) && !has(Some(":")));
        assert!(has(Some("/nowhere")), "named, though it is not there");
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), "broken: [").unwrap();
        assert!(has(None) && has(Some("")), "broken, and there");
        assert!(!has_kubeconfig(None, None));
    }
}
