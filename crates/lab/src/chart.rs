//! The Helm chart in `deploy/chart`. Helm cannot be had here, so its templates say nothing but what [`render`] knows.

use std::collections::BTreeMap;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::cluster::{CLASS, Cluster, IMAGE};
use crate::program::workspace;

const PATIENCE: Duration = Duration::from_secs(180);

/// Values by name, as JSON or plain words.
pub type Values = BTreeMap<String, String>;

/// The values that the chart comes with.
///
/// # Errors
/// If they cannot be read.
pub fn values() -> Result<Values> {
    let text = std::fs::read_to_string(workspace().join("deploy/chart/values.yaml"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let value = |line: &str| {
        let (name, value) = line.split_once(": ").with_context(|| format!("values.yaml: {line}"))?;
        Ok((name.to_string(), value.trim_matches('"').to_string()))
    };
    lines.map(value).collect()
}

/// A template of the chart, as Helm renders it in a namespace.
///
/// # Errors
/// If it asks for what is not a value, the namespace, a value as JSON, or a part that is there if a value says so.
pub fn render(template: &str, values: &Values, namespace: &str) -> Result<String> {
    render_where(template, values, namespace, &[])
}

/// The same in a cluster that serves these APIs (`GROUP/VERSION`), too.
///
/// # Errors
/// The same.
pub fn render_where(template: &str, values: &Values, namespace: &str, apis: &[&str]) -> Result<String> {
    let text = std::fs::read_to_string(workspace().join("deploy/chart/templates").join(template))?;
    rendered(&text, values, namespace, apis).with_context(|| template.to_string())
}

/// Whether a part is there that begins with this condition: a value, or one that says `true`, or `auto` where an API is served.
fn is_there(condition: &str, values: &Values, apis: &[&str]) -> Result<bool> {
    let value_of = |name: &str| values.get(name).with_context(|| format!("no value {name}"));
    if let Some(name) = condition.strip_prefix(".Values.") {
        return Ok(!["false", ""].contains(&value_of(name)?.as_str()));
    }
    let (name, api) = condition
        .strip_prefix("or (eq (toString .Values.")
        .and_then(|rest| rest.split_once(") \"true\") (and (eq (toString .Values."))
        .and_then(|(name, rest)| Some((name, rest.strip_prefix(name)?)))
        .and_then(|(name, rest)| {
            Some((name, rest.strip_prefix(") \"auto\") (.Capabilities.APIVersions.Has \"")?))
        })
        .and_then(|(name, rest)| Some((name, rest.strip_suffix("\"))")?)))
        .with_context(|| format!("{{{{ if {condition} }}}} is not known here"))?;
    Ok(match value_of(name)?.as_str() {
        "true" => true,
        "auto" => apis.contains(&api),
        _ => false,
    })
}

fn rendered(text: &str, values: &Values, namespace: &str, apis: &[&str]) -> Result<String> {
    let (mut whole, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let (action, after) = after.split_once("}}").context("an action without an end")?;
        let action = action.trim();
        whole.push_str(before);
        if let Some(condition) = action.strip_prefix("if ") {
            let (part, after) = after.split_once("{{ end }}").context("a part without an end")?;
            rest = after;
            if is_there(condition, values, apis)? {
                whole.push_str(&rendered(part, values, namespace, apis)?);
            }
            continue;
        }
        let value = action.strip_prefix("toJson ").unwrap_or(action).strip_prefix(".Values.");
        let value = match (action, value) {
            (".Release.Namespace", _) => namespace,
            (_, Some(name)) => values.get(name).with_context(|| format!("no value {name}"))?,
            _ => bail!("{{{{ {action} }}}} is not known here"),
        };
        whole.push_str(value);
        rest = after;
    }
    Ok(whole + rest)
}

/// Makes the resources of the operator known to a cluster.
///
/// # Errors
/// If they are not served.
pub fn install_resources(cluster: &Cluster, namespace: &str) -> Result<()> {
    let text = std::fs::read_to_string(workspace().join("deploy/crds.yaml"))?;
    cluster.apply(&text, namespace)?;
    let until = Instant::now() + PATIENCE;
    for kind in ["providers", "plans", "migrations", "vmlocks"] {
        while cluster.get(&format!("/apis/drover.dev/v1alpha1/{kind}")).ok().flatten().is_none() {
            ensure!(Instant::now() < until, "{kind} are not served");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Installs the chart in a namespace, with the image of the cluster's lab, and states of that size.
///
/// # Errors
/// If the server refuses something.
pub fn install(cluster: &Cluster, namespace: &str, state_size: &str) -> Result<()> {
    install_with(cluster, namespace, state_size, &[])
}

/// The value `options` of the lab, with more of them.
pub fn options(state_size: &str, more: &[&str]) -> String {
    let own = ["--state-class", CLASS, "--state-size", state_size];
    json!(own.iter().chain(more).collect::<Vec<_>>()).to_string()
}

/// The same with more values.
///
/// # Errors
/// As of [`install`].
pub fn install_with(
    cluster: &Cluster,
    namespace: &str,
    state_size: &str,
    more: &[(&str, &str)],
) -> Result<()> {
    let options = options(state_size, &[]);
    let mut values = values()?;
    let own = [("image", IMAGE), ("imagePull", "Never"), ("options", &options)];
    for (name, value) in own.iter().chain(more) {
        values.insert(name.to_string(), value.to_string());
    }
    for template in ["operator.yaml", "vmlocks.yaml"] {
        cluster.apply(&render(template, &values, namespace)?, namespace)?;
    }
    Ok(())
}
