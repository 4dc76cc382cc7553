//! What stands in the way of a plan in its cluster, all of it at once, before anything is touched.

use std::collections::BTreeMap;

use drover_engine::{ProviderError, chain};
use drover_kubevirt::objects::{self, Keys, Kind};
use drover_kubevirt::{Cluster, KubeError, KubeErrorKind, vm};
use drover_plan::{At, KubevirtNetwork, NetworkTarget, PlannedVm, Problem, Reach, Resolution};
use drover_types::Bytes;
use serde_json::{Value, json};

use super::upload::Way;
use super::{Claims, failed};

/// What drover does in a namespace: group, resource, subresource, and verbs.
const RIGHTS: &[(&str, &str, &str, &[&str])] = &[
    ("", "persistentvolumeclaims", "", &["get", "create", "delete"]),
    ("", "namespaces", "", &["get"]),
    ("", "pods", "", &["get", "create", "patch", "delete"]),
    ("", "resourcequotas", "", &["list"]),
    ("", "secrets", "", &["get", "create", "patch", "delete"]),
    ("kubevirt.io", "virtualmachines", "", &["get", "create", "patch", "delete"]),
    ("kubevirt.io", "virtualmachineinstances", "", &["get"]),
];
/// The same where disks are sent through CDI's upload proxy.
const UPLOAD_RIGHTS: &[(&str, &str, &str, &[&str])] = &[
    ("", "persistentvolumeclaims", "", &["get", "create", "delete"]),
    ("", "namespaces", "", &["get"]),
    ("", "resourcequotas", "", &["list"]),
    (drover_kubevirt::upload::GROUP, "uploadtokenrequests", "", &["create"]),
    ("kubevirt.io", "virtualmachines", "", &["get", "create", "patch", "delete"]),
    ("kubevirt.io", "virtualmachineinstances", "", &["get"]),
];
/// VMs whose objects the server judges; of the others only names are looked at. Each costs a request for each disk and two more.
const JUDGED_MAX: usize = 100;

/// So that nobody takes silence for a yes.
fn not_judged(vms: usize) -> Problem {
    let text = format!(
        "objects of the first {JUDGED_MAX} VMs were judged by the API server, those of {vms} more were not"
    );
    Problem::warning("vms", text)
        .advise("check plans of fewer VMs, or a wave alone, where VMs differ in what their namespace lets in")
}

impl Claims {
    /// Asks the cluster, and adds what stands in the way; touches nothing.
    pub fn survey(&self, resolution: &mut Resolution) {
        let problems = match self.cluster() {
            Ok(cluster) => self.survey_cluster(&cluster, &resolution.vms),
            Err(error) => vec![self.problem("target", &error)],
        };
        resolution.problems.extend(problems);
    }

    fn survey_cluster(&self, cluster: &Cluster, vms: &[PlannedVm]) -> Vec<Problem> {
        if let Err(error) = cluster.get("/version") {
            let (what, advice) = match error.kind {
                KubeErrorKind::Denied => (
                    "lets this user not in",
                    "renew the token or the certificate of the kubeconfig's user: it may have expired",
                ),
                _ => {
                    ("does not answer", "see `target.kubeconfig` and `target.context`, and whether it is up")
                }
            };
            let text = format!("the cluster at {} {what}: {}", cluster.server(), error.what);
            return vec![Problem::error("target", text).advise(advice)];
        }
        let mut problems = Vec::new();
        let namespace_is_there = self.namespace_problem(cluster, &mut problems);
        let version_problem = self.version_problem(cluster);
        let is_served = version_problem.is_none();
        problems.extend(version_problem);
        problems.extend(self.route_problem(cluster));
        let way = match self.way() {
            Ok(way) => way,
            Err(error) => {
                problems.push(told("target.reach", error));
                return problems;
            }
        };
        problems.extend(self.upload_problems(&way, vms));
        let lacking = if namespace_is_there { self.right_problems(cluster, &way) } else { Vec::new() };
        let may_all = lacking.is_empty();
        problems.extend(lacking);
        problems.extend(self.class_problems(cluster, vms));
        problems.extend(self.network_problems(cluster, vms));
        problems.extend(self.instance_type_problems(cluster));
        // What may not be asked for, or is not there, says nothing of the VMs.
        if !(namespace_is_there && is_served && may_all) {
            return problems;
        }
        problems.extend(self.quota_problems(cluster, vms));
        for vm in vms {
            if let Err(error) = self.look_ahead(vm) {
                problems.push(of_vm(vm, error));
            }
        }
        if !problems.iter().any(Problem::is_error) {
            problems.extend(vms.iter().take(JUDGED_MAX).filter_map(|vm| self.judged(cluster, vm)));
            problems.extend(vms.len().checked_sub(JUDGED_MAX + 1).map(|more| not_judged(more + 1)));
        }
        problems
    }

    fn problem(&self, path: &str, error: &KubeError) -> Problem {
        let error = failed(error.clone());
        let problem = Problem::error(path, error.what);
        error.advice.into_iter().fold(problem, Problem::advise)
    }

    fn namespace_problem(&self, cluster: &Cluster, problems: &mut Vec<Problem>) -> bool {
        let namespace = &self.kubevirt.namespace;
        match cluster.get(&format!("/api/v1/namespaces/{namespace}")) {
            Ok(None) => {
                let text = format!("the cluster has no namespace {namespace}");
                problems.push(
                    Problem::error("target.namespace", text)
                        .advise(format!("kubectl create namespace {namespace}")),
                );
                false
            }
            // Who may look into a namespace may not always look at it.
            Ok(Some(_)) => true,
            Err(error) if error.kind == KubeErrorKind::Denied => true,
            Err(error) => {
                problems.push(self.problem("target.namespace", &error));
                false
            }
        }
    }

    fn version_problem(&self, cluster: &Cluster) -> Option<Problem> {
        let error = match cluster.get("/apis/kubevirt.io/v1") {
            Ok(Some(list)) => {
                let names = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
                let has = |name: &str| names.iter().any(|it| it["name"] == name);
                if has("virtualmachines") && has("virtualmachineinstances") {
                    return None;
                }
                "serves kubevirt.io/v1 without virtual machines".to_string()
            }
            Ok(None) => {
                "does not serve kubevirt.io/v1: KubeVirt is not installed, or is older than 0.36".to_string()
            }
            Err(error) if error.kind == KubeErrorKind::NotServed => {
                "does not serve kubevirt.io/v1: KubeVirt is not installed, or is older than 0.36".to_string()
            }
            Err(error) => error.what,
        };
        let text = format!("the cluster {error}");
        Some(Problem::error("target", text).advise("install KubeVirt, or name another context"))
    }

    fn route_problem(&self, cluster: &Cluster) -> Option<Problem> {
        if self.kubevirt.reach != Reach::Route {
            return None;
        }
        let text = match cluster.get(objects::ROUTES) {
            Ok(Some(_)) => return None,
            Err(error) if error.kind != KubeErrorKind::NotServed => error.what,
            Ok(None) | Err(_) => "the cluster has no routes: route.openshift.io/v1 is not served".to_string(),
        };
        Some(Problem::error("target.reach", text).advise("only OpenShift has them: choose another `reach`"))
    }

    fn right_problems(&self, cluster: &Cluster, way: &Way) -> Vec<Problem> {
        let is_upload = matches!(way, Way::Proxy(_));
        let mut rights: Vec<_> = if is_upload { UPLOAD_RIGHTS } else { RIGHTS }.to_vec();
        match self.kubevirt.reach {
            _ if is_upload => {}
            // In a pod of the cluster the addresses of pods answer, as a rule.
            Reach::Auto if cluster.is_inside() => {}
            Reach::Auto | Reach::Forward => rights.push(("", "pods", "portforward", &["get", "create"])),
            Reach::NodePort | Reach::LoadBalancer => {
                rights.push(("", "services", "", &["get", "create", "delete"]));
            }
            Reach::Route => {
                rights.push(("", "services", "", &["get", "create", "delete"]));
                rights.push(("route.openshift.io", "routes", "", &["get", "create", "delete"]));
            }
            Reach::Pod | Reach::Upload => {}
        }
        let mut lacking = Vec::new();
        for (group, resource, part, verbs) in rights {
            for verb in verbs {
                let review = json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": {
                        "namespace": self.kubevirt.namespace, "group": group, "resource": resource, "subresource": part, "verb": verb,
                    }},
                });
                let answer =
                    cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review, false);
                match answer {
                    Ok(answer) if answer["status"]["allowed"] == true => {}
                    Ok(_) => {
                        let part = if part.is_empty() { String::new() } else { format!("/{part}") };
                        lacking.push(format!("{verb} {resource}{part}"));
                    }
                    Err(error) => return vec![self.problem("target", &error)],
                }
            }
        }
        if lacking.is_empty() {
            return Vec::new();
        }
        let text =
            format!("this user may not in namespace {}: {}", self.kubevirt.namespace, lacking.join(", "));
        vec![
            Problem::error("target.namespace", text)
                .advise("give it a Role with them (docs/how-to/kubevirt.md)"),
        ]
    }

    fn class_problems(&self, cluster: &Cluster, vms: &[PlannedVm]) -> Vec<Problem> {
        let disks = || vms.iter().flat_map(|vm| &vm.disks);
        let mut names: Vec<Option<&str>> = disks().map(|disk| disk.pool.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        let all = "/apis/storage.k8s.io/v1/storageclasses";
        let list = match cluster.get(all) {
            Ok(list) => list.unwrap_or_default(),
            // Not everybody may look at them; the server judges the claims.
            Err(error) if error.kind == KubeErrorKind::Denied => return Vec::new(),
            Err(error) => return vec![self.problem("target.storage_class", &error)],
        };
        let classes = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let known: Vec<&str> =
            classes.iter().filter_map(|class| class["metadata"]["name"].as_str()).collect();
        let is_default = |class: &Value| objects::annotation(class, DEFAULT_CLASS) == Some("true");
        let advice = match known.as_slice() {
            [] => "it has none: install a CSI driver".to_string(),
            known => format!("it has: {}", known.join(", ")),
        };
        let missing = names.into_iter().filter(|name| match name {
            Some(name) => !known.contains(name),
            None => !classes.iter().any(is_default),
        });
        let problem = |name: Option<&str>| {
            let text = match name {
                Some(name) => format!("the cluster has no storage class {name}"),
                None => "the plan names no storage class, and the cluster has no default".to_string(),
            };
            Problem::error("target.storage_class", text).advise(advice.clone())
        };
        missing.map(problem).collect()
    }

    /// Instance type and preference, where they may be read.
    fn instance_type_problems(&self, cluster: &Cluster) -> Vec<Problem> {
        let wanted = [
            ("instance_type", "virtualmachineclusterinstancetypes", &self.kubevirt.instance_type),
            ("preference", "virtualmachineclusterpreferences", &self.kubevirt.preference),
        ];
        let problem = |(key, plural, name): (&str, &str, &Option<String>)| {
            let name = name.as_ref()?;
            // Which version it serves depends on its age.
            let asked = INSTANCE_TYPES.iter().map(|api| cluster.get(&format!("/apis/{api}/{plural}/{name}")));
            let is_served = |found: &Result<_, KubeError>| !matches!(found, Err(error) if error.kind == KubeErrorKind::NotServed);
            let text = match asked.into_iter().find(is_served) {
                Some(Ok(Some(_))) => return None,
                Some(Err(error)) if error.kind == KubeErrorKind::Denied => return None,
                Some(Ok(None)) => format!("the cluster has no {plural} called {name}"),
                Some(Err(error)) => error.what,
                None => format!("the cluster does not serve {}", INSTANCE_TYPES.join(" or ")),
            };
            Some(Problem::error(format!("target.{key}"), text).advise(format!("see `kubectl get {plural}`")))
        };
        wanted.into_iter().filter_map(problem).collect()
    }

    fn network_problems(&self, cluster: &Cluster, vms: &[PlannedVm]) -> Vec<Problem> {
        let mut problems = Vec::new();
        for vm in vms.iter().filter(|vm| vm::on_pod_network(vm) > 1) {
            let text = format!(
                "{} has {} NICs on the pod network, and KubeVirt takes one",
                vm.vm.name,
                vm::on_pod_network(vm)
            );
            let problem = Problem::error("networks", text).at(At { line: vm.line, column: 1 });
            problems.push(problem.advise("map the others to nad:NAMESPACE/NAME, or to none"));
        }
        let mut names: Vec<&str> = vms.iter().flat_map(|vm| &vm.nics).filter_map(nad_of).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (namespace, short) = name.split_once('/').unwrap_or((&self.kubevirt.namespace, name));
            let path = format!(
                "/apis/k8s.cni.cncf.io/v1/namespaces/{namespace}/network-attachment-definitions/{short}"
            );
            let (text, advice) = match cluster.get(&path) {
                Ok(Some(_)) => continue,
                Ok(None) => (
                    format!("there is no NetworkAttachmentDefinition {namespace}/{short}"),
                    format!("see `kubectl get net-attach-def -n {namespace}`"),
                ),
                Err(error) if error.kind == KubeErrorKind::NotServed => (
                    format!("nad:{name} wants Multus, which the cluster has not"),
                    "install Multus".to_string(),
                ),
                // Not everybody may look at them.
                Err(error) if error.kind == KubeErrorKind::Denied => continue,
                Err(error) => (error.what, "see the API server".to_string()),
            };
            problems.push(Problem::error("networks", text).advise(advice));
        }
        problems
    }

    /// Quotas of the namespace that what is still to be made does not fit into.
    fn quota_problems(&self, cluster: &Cluster, vms: &[PlannedVm]) -> Vec<Problem> {
        let list = match cluster.get(&objects::path(&self.kubevirt, Kind::Quota, "")) {
            Ok(list) => list.unwrap_or_default(),
            // Not everybody may look at them; the server judges each claim alone.
            Err(error) if error.kind == KubeErrorKind::Denied => return Vec::new(),
            Err(error) => return vec![self.problem("target.namespace", &error)],
        };
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        for (vm, disk) in vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
            // One that is there is in the quota's sums.
            if matches!(self.claim_of(disk, vm), Ok(Some(_))) {
                continue;
            }
            let bytes = objects::claim_bytes(disk.disk.capacity_bytes, &self.kubevirt);
            let mut add = |name: String, amount: u64| {
                let sum = wanted.entry(name).or_default();
                *sum = sum.saturating_add(amount);
            };
            add("requests.storage".into(), bytes);
            add("persistentvolumeclaims".into(), 1);
            if let Some(class) = &disk.pool {
                add(format!("{class}.storageclass.storage.k8s.io/requests.storage"), bytes);
                add(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), 1);
            }
        }
        let mut problems = Vec::new();
        for quota in list["items"].as_array().map(Vec::as_slice).unwrap_or_default() {
            for (name, amount) in &wanted {
                let of = |part: &str| quota["status"][part][name].as_str().and_then(objects::quantity);
                let Some(hard) = of("hard") else { continue };
                let left = hard.saturating_sub(of("used").unwrap_or_default());
                if *amount > left {
                    let shown = |amount: u64| {
                        if name.ends_with("storage") { Bytes(amount).to_string() } else { amount.to_string() }
                    };
                    let quota = quota["metadata"]["name"].as_str().unwrap_or_default();
                    let text = format!(
                        "quota {quota} has {} of {name} left, and the plan wants {}",
                        shown(left),
                        shown(*amount)
                    );
                    problems
                        .push(Problem::error("target.namespace", text).advise("raise it, or move fewer VMs"));
                }
            }
        }
        problems
    }

    fn upload_problems(&self, way: &Way, vms: &[PlannedVm]) -> Vec<Problem> {
        let Way::Proxy(proxy) = way else { return Vec::new() };
        let limits = format!(
            "disks go through CDI's upload proxy at {}: a disk that is cut short is sent again from its first byte, nothing is read \
             back (the report has the root of what was sent, and no comparison), and there are no warm passes and no conversion",
            proxy.url()
        );
        let warning = Problem::warning("target.reach", limits).advise(
            "let drover make pods in the namespace, if that may be; then disks are resumed and proven equal",
        );
        // What is wrong with a claim is told of its VM.
        let is_needed = vms.iter().any(|vm| !self.has_taken_all(vm).unwrap_or(false));
        let probed = if is_needed { proxy.probe().err() } else { None };
        let unreachable = probed.map(|error| told("target.upload_url", error));
        [Some(warning), unreachable].into_iter().flatten().collect()
    }

    /// What the server says of a VM's objects without making them: admission, quotas, pod security, schemas.
    fn judged(&self, cluster: &Cluster, vm: &PlannedVm) -> Option<Problem> {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(error) => return Some(of_vm(vm, error)),
        };
        let is_uploaded = match self.is_uploaded(vm) {
            Ok(is_uploaded) => is_uploaded,
            Err(error) => return Some(of_vm(vm, error)),
        };
        let judge = || -> Result<(), KubeError> {
            for disk in &vm.disks {
                if matches!(self.claim_of(disk, vm), Ok(None)) {
                    let mut claim = self.fresh_claim(cluster, vm, disk, &plan)?;
                    if is_uploaded {
                        drover_kubevirt::upload::for_upload(&mut claim);
                    }
                    cluster.create(&objects::path(&self.kubevirt, Kind::Claim, ""), &claim, true)?;
                }
            }
            let pod = objects::path(&self.kubevirt, Kind::Pod, &objects::worker_name(vm));
            if !is_uploaded && cluster.get(&pod)?.is_none() {
                let pod = objects::worker(vm, &self.kubevirt, &plan, &Keys::default());
                cluster.create(&objects::path(&self.kubevirt, Kind::Pod, ""), &pod, true)?;
            }
            let name = objects::worker_name(vm);
            if let Some(kind) = self.kubevirt.reach.service().filter(|_| !is_uploaded)
                && cluster.get(&objects::path(&self.kubevirt, Kind::Service, &name))?.is_none()
            {
                let service = objects::service(vm, &self.kubevirt, &plan, "", kind, None);
                cluster.create(&objects::path(&self.kubevirt, Kind::Service, ""), &service, true)?;
            }
            if self.kubevirt.reach == Reach::Route
                && !is_uploaded
                && cluster.get(&objects::path(&self.kubevirt, Kind::Route, &name))?.is_none()
            {
                let route = objects::route(vm, &self.kubevirt, &plan, "", None);
                cluster.create(&objects::path(&self.kubevirt, Kind::Route, ""), &route, true)?;
            }
            let path = objects::path(&self.kubevirt, Kind::Machine, &objects::vm_name(vm));
            match cluster.get(&path)? {
                Some(_) => Ok(()),
                None => cluster.apply(&path, &self.object(vm, &plan), true).map(drop),
            }
        };
        judge().err().map(|error| of_vm(vm, failed(error)))
    }
}

fn nad_of(nic: &drover_plan::PlannedNic) -> Option<&str> {
    match &nic.target {
        NetworkTarget::Kubevirt(KubevirtNetwork::Nad(name)) => Some(name),
        _ => None,
    }
}

/// What an upload is not, for whoever reads the plan's check.
fn told(path: &str, error: ProviderError) -> Problem {
    let problem = Problem::error(path, chain(&error));
    error.advice.into_iter().fold(problem, Problem::advise)
}

pub(super) fn of_vm(vm: &PlannedVm, error: ProviderError) -> Problem {
    let problem = Problem::error("target", format!("{}: {}", vm.vm.name, chain(&error)));
    let problem = problem.at(At { line: vm.line, column: 1 });
    error.advice.into_iter().fold(problem, Problem::advise)
}

/// Where instance types and preferences are.
const INSTANCE_TYPES: [&str; 2] = ["instancetype.kubevirt.io/v1", "instancetype.kubevirt.io/v1beta1"];
/// Source: Kubernetes' documentation of default storage classes.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
