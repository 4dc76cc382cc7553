//! `drover plan apply --kube`: a plan file as a Plan of the cluster, with the Provider that it names.

use drover_kubevirt::KubeErrorKind;
use drover_operator::apply;
use drover_plan::{Kubevirt, Source, Trust, VsphereSource, keys_json};
use drover_source::login::secret;
use serde_json::{Value, json};

use super::{Place, failure};
use crate::cli::{ClusterArgs, PlanApplyArgs};
use crate::exit::{Exit, Failure};
use crate::files::read_text;
use crate::plan_file::{PlanFile, has_problems, read};

/// Certificates of a CA; a larger file is the wrong one.
const CA_BYTES_MAX: u64 = 1 << 20;

/// Applies a plan.
pub fn run(args: &PlanApplyArgs) -> Result<Exit, Failure> {
    if !args.kube {
        return Err(Failure::new(Exit::Usage, "it is not said what carries the plan out").advise("--kube"));
    }
    let file = read(&args.plan)?;
    let refused = |why: String| Failure::new(Exit::Plan, format!("plan {}: {why}", args.plan.display()));
    let Source::Vsphere(source) = &file.plan.source else {
        return Err(refused("source.type: the operator moves VMs of `vsphere`".into()));
    };
    let Some(target) = file.plan.target.kubevirt() else {
        return Err(refused("target.type: the operator moves VMs to `kubevirt`".into()));
    };
    let place = Place::of(&with_target(&args.cluster, target))?;
    let name = &file.plan.name;
    let provider = args.provider.as_ref().unwrap_or(name);
    let keys = keys_json(&file.text).map_err(|problem| {
        crate::out::problems(&args.plan, &[problem]);
        has_problems(1)
    })?;
    let plan = apply::plan(name, &keys, provider, &place.namespace).map_err(refused)?;
    ensure_provider(&place, provider, source, &file)?;
    place.cluster.apply(&format!("{}/{name}", place.own("plans")), &plan, false).map_err(failure)?;
    crate::out::line(format_args!(
        "Plan {}/{name} is applied, with the Provider {provider}",
        place.namespace
    ));
    crate::out::say(format_args!("next: kubectl drover status --plan {name} -n {} --watch", place.namespace));
    Ok(Exit::Success)
}

/// What the options do not say, the plan's target does.
fn with_target(args: &ClusterArgs, target: &Kubevirt) -> ClusterArgs {
    let is_asked = args.kubeconfig.is_some() || args.context.is_some();
    ClusterArgs {
        namespace: args.namespace.clone().or_else(|| Some(target.namespace.clone())),
        kubeconfig: args.kubeconfig.clone().or_else(|| target.kubeconfig.clone()),
        // A context of another kubeconfig may be another cluster.
        context: args.context.clone().or_else(|| target.context.clone().filter(|_| !is_asked)),
    }
}

/// Makes a Provider of the plan's source if there is none of that name; one of another vCenter is refused.
fn ensure_provider(
    place: &Place,
    name: &str,
    source: &VsphereSource,
    file: &PlanFile,
) -> Result<(), Failure> {
    let endpoint = source.endpoint.to_string();
    let all = place.own("providers");
    let known = place.cluster.get(&format!("{all}/{name}")).map_err(failure)?;
    if let Some(known) = known {
        let there = known["spec"]["endpoint"].as_str().unwrap_or_default();
        if with_port(there) == with_port(&endpoint) {
            return Ok(());
        }
        let what = format!("the Provider {name} is of {there}, and the plan's source is {endpoint}");
        return Err(Failure::new(Exit::Plan, what).advise("name another with --provider"));
    }
    let password = secret(&source.login, &file.folder)?;
    let mut login = json!({"user": source.login.user, "password": password.reveal()});
    let mut spec = json!({"endpoint": endpoint, "secretName": name});
    match &source.trust {
        Trust::System => {}
        Trust::Thumbprint(text) => spec["thumbprint"] = json!(text),
        Trust::Insecure => spec["insecure"] = json!(true),
        Trust::CaFile(path) => {
            let path = file.folder.join(path);
            let text = read_text(&path, CA_BYTES_MAX).map_err(|error| {
                Failure::new(Exit::Plan, format!("source.ca_file: {}: {error}", path.display()))
            })?;
            (login["ca.crt"], spec["caFromSecret"]) = (json!(text), json!(true));
        }
    }
    let secrets = format!("/api/v1/namespaces/{}/secrets", place.namespace);
    let object =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": login});
    match place.cluster.create(&secrets, &object, false) {
        Ok(_) => {}
        Err(error) if error.kind == KubeErrorKind::Conflict => {
            let what = format!("there is a Secret {name} already, and no Provider of that name");
            return Err(
                Failure::new(Exit::Target, what).advise("name another with --provider, or remove the Secret")
            );
        }
        Err(error) => return Err(failure(error)),
    }
    let object: Value = json!({"apiVersion": drover_operator::API, "kind": "Provider", "metadata": {"name": name}, "spec": spec});
    place.cluster.create(&all, &object, false).map(drop).map_err(failure)
}

/// An endpoint with its port, which is 443 where none is named.
fn with_port(endpoint: &str) -> String {
    let has_port = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
        !port.is_empty()
            && port.bytes().all(|it| it.is_ascii_digit())
            && (!host.contains(':') || host.ends_with(']'))
    });
    if has_port { endpoint.to_string() } else { format!("{endpoint}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_the_same_with_the_usual_port_or_without() {
        assert_eq!(with_port("vc.example.org"), with_port("vc.example.org:443"));
        assert_eq!(with_port("[fe80::1]"), with_port("[fe80::1]:443"));
        assert_ne!(with_port("vc:8443"), with_port("vc"));
    }
}
