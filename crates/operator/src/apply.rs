//! A plan file as a Plan of the cluster: what `drover plan apply --kube` makes of it. The other way goes [`crate::model::plan_text`].

use serde_json::{Value, json};

use crate::API;
use crate::model::{NOT_IN_A_PLAN, data_of};

/// The Plan that carries out the keys of a plan file in a namespace, by a Provider there.
///
/// # Errors
/// Keys that the operator does not carry out, in words for people.
pub fn plan(name: &str, keys: &Value, provider: &str, namespace: &str) -> Result<Value, String> {
    let mut keys = keys.as_object().cloned().ok_or("the plan is no map")?;
    // These are said by the Plan itself.
    ["version", "name"].iter().for_each(|key| drop(keys.remove(*key)));
    if let Some((key, why)) = NOT_IN_A_PLAN.iter().find(|(key, _)| keys.contains_key(*key)) {
        return Err(format!("{key}: {why}"));
    }
    let mut source = keys.remove("source").unwrap_or_default();
    let data = data_of(&mut source).map_err(|key| {
        format!("source.data.{key}: the operator takes from, port, network, path and nfc; leave it out")
    })?;
    if !data.is_null() {
        keys.insert("source".into(), json!({"data": data}));
    }
    let target = keys.entry("target").or_insert(Value::Null);
    if target["type"] != "kubevirt" {
        return Err("target.type: the operator moves VMs to `kubevirt`".into());
    }
    if let Some(target) = target.as_object_mut() {
        // How this host reaches the cluster is nothing to those in it.
        ["kubeconfig", "context", "namespace"].iter().for_each(|key| drop(target.remove(*key)));
    }
    Ok(json!({
        "apiVersion": API, "kind": "Plan", "metadata": {"name": name, "namespace": namespace},
        "spec": {"provider": provider, "plan": keys},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Place, ProviderSpec, plan_text};

    fn file(more: Value) -> Value {
        let mut keys = json!({
            "version": 1, "name": "web",
            "source": {"type": "vsphere", "endpoint": "vc", "user": "u", "password_file": "p", "data": {"path": "https"}},
            "target": {"type": "kubevirt", "kubeconfig": "/home/me/.kube/config", "context": "prod", "namespace": "vms"},
            "vms": [{"name": "web01"}],
        });
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        keys
    }

    #[test]
    fn a_plan_file_becomes_what_the_operator_takes() {
        let plan = plan("web", &file(json!({})), "vcenter", "vms").unwrap();
        assert_eq!(
            plan["spec"],
            json!({"provider": "vcenter", "plan": {
            "source": {"data": {"path": "https"}}, "target": {"type": "kubevirt"}, "vms": [{"name": "web01"}]}})
        );
        let place = Place { namespace: "vms", folder: "/provider", images: &["i".to_string()] };
        let text = plan_text("web", &plan["spec"]["plan"], &ProviderSpec::default(), "u", &place).unwrap();
        assert!(text.contains("\"path\":\"https\"") && text.contains("\"namespace\":\"vms\""), "{text}");
    }

    #[test]
    fn what_is_not_carried_out_is_refused_at_once() {
        let why = |more: Value| plan("web", &file(more), "vcenter", "vms").unwrap_err();
        assert!(why(json!({"groups": {}})).contains("groups: "));
        assert!(why(json!({"target": {"type": "qemu"}})).contains("target.type"));
        let vddk = json!({"source": {"data": {"path": "vddk", "vddk": {"folder": "/opt"}}}});
        assert!(why(vddk).contains("source.data.vddk"));
    }
}
