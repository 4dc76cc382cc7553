//! What runs of drover do to a pod that more than one of them has or had, against an API server that keeps objects.

use std::collections::BTreeMap;

use drover_kubevirt::Access;
use drover_lab::served::serve;
use drover_plan::Plan;
use drover_types::inventory::{About, DiskBus, Inventory, PowerState, Vm, VmDisk};
use tempfile::TempDir;

use super::*;

/// Objects by their paths, with versions that grow.
#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// What is done to an object before the next change or removal of it.
    meanwhile: Option<fn(&mut Value)>,
}

impl Store {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_string(), object.clone());
        object
    }

    fn status(code: u16, reason: &str) -> (u16, Value) {
        (code, json!({"kind": "Status", "reason": reason, "message": reason, "details": {"name": "a"}}))
    }

    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        if method == "POST" {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if self.objects.contains_key(&path) {
                return Store::status(409, "AlreadyExists");
            }
            let mut object = body;
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
            if object["spec"]["type"] == "NodePort" {
                object["spec"]["ports"][0]["nodePort"] = json!(30001);
            }
            return (201, self.put(&path, object));
        }
        if let Some(meanwhile) = self.meanwhile.take_if(|_| method != "GET")
            && let Some(mut object) = self.objects.get(path).cloned()
        {
            meanwhile(&mut object);
            self.put(path, object);
        }
        let Some(object) = self.objects.get(path).cloned() else { return Store::status(404, "NotFound") };
        match method {
            "GET" => (200, object),
            "PATCH" => match changed(object, &body) {
                Some(object) => (200, self.put(path, object)),
                None => Store::status(422, "Invalid"),
            },
            _ => {
                let wanted = body["preconditions"].as_object().unwrap();
                if wanted.iter().any(|(key, value)| object["metadata"][key] != *value) {
                    return Store::status(409, "Conflict");
                }
                self.objects.remove(path);
                (200, json!({}))
            }
        }
    }
}

/// An object after a merge of metadata, or after operations of which none fails.
fn changed(mut object: Value, body: &Value) -> Option<Value> {
    let Some(operations) = body.as_array() else {
        for (key, value) in body["metadata"].as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        return Some(object);
    };
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        match operation["op"].as_str().unwrap() {
            "test" => drop((object.pointer(path)? == &operation["value"]).then_some(())?),
            _ => {
                let (parent, key) = path.rsplit_once('/').unwrap();
                object.pointer_mut(parent)?[key.replace("~1", "/")] = operation["value"].clone();
            }
        }
    }
    Some(object)
}

/// An API server that keeps objects, and a kubeconfig for it.
struct Api {
    store: Arc<Mutex<Store>>,
    cluster: Arc<Cluster>,
    folder: TempDir,
}

impl Api {
    fn new() -> Api {
        let store = Arc::new(Mutex::new(Store::default()));
        let kept = store.clone();
        let server = serve(move |asked| {
            let body = serde_json::from_slice(&asked.body).unwrap_or_default();
            let path = asked.path.split('?').next().unwrap();
            let (code, answer) = kept.lock().unwrap().answer(&asked.method, path, body);
            (code, answer.to_string())
        });
        let server = server.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: '{server}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\ncurrent-context: a\n"
        );
        std::fs::write(&path, text).unwrap();
        let cluster = Cluster::connect(&Access { kubeconfig: Some(path), context: None }).unwrap();
        Api { store, cluster, folder }
    }

    /// A run of drover that moves the VM.
    fn run(&self, run: &str, keys: &str) -> Worker {
        let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
             target: {type: kubevirt, namespace: vms, image: drover, worker_timeout: 10s, KEYS}\nvms: [{name: web01}]\n";
        let plan = Plan::parse(&text.replace("KEYS", keys)).unwrap();
        let disk = VmDisk {
            key: 2000,
            capacity_bytes: 1 << 20,
            datastore: "ds1".into(),
            bus: DiskBus::Scsi,
            ..VmDisk::default()
        };
        let vm = Vm {
            id: "vm-1".into(),
            name: "web01".into(),
            instance_uuid: "50110000-1111-2222-3333-444455556666".into(),
            power: PowerState::Off,
            cpus: 1,
            memory_mib: 32,
            disks: vec![disk],
            ..Vm::default()
        };
        // A successor has the state of the one before, and so its key.
        let state = self.folder.path().join("state");
        let about = About { is_vcenter: true, ..About::default() };
        let inventory = Inventory { about, vms: vec![vm], ..Inventory::default() };
        Worker {
            cluster: self.cluster.clone(),
            kubevirt: plan.target.kubevirt().unwrap().clone(),
            vm: drover_plan::resolve(&plan, &inventory).vms.remove(0),
            plan: "p of here".into(),
            identity: sites::ThisHost { state, say: |_| {} }.identity().unwrap(),
            stop: StopSignal::default(),
            say: |_| {},
            run: run.into(),
            had: Arc::default(),
            is_apart: Arc::default(),
            way: Mutex::default(),
            forward: Mutex::default(),
            turn: Mutex::default(),
            dialled: Mutex::default(),
            limit: Arc::new(RateLimit::new(None)),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.store.lock().unwrap());
    }

    fn object(&self, path: &str) -> Option<Value> {
        self.store.lock().unwrap().objects.get(path).cloned()
    }

    fn runs(&self, is_running: bool) {
        self.change(|store| {
            let mut pod = store.objects[POD].clone();
            let state = if is_running { "running" } else { "waiting" };
            pod["status"] = json!({"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [{"name": "agent", "state": {state: {}}}]});
            store.put(POD, pod);
        });
    }
}

const POD: &str = "/api/v1/namespaces/vms/pods/web01-drover";
const SECRET: &str = "/api/v1/namespaces/vms/secrets/web01-drover";

fn holder(object: &Value) -> &str {
    objects::annotation(object, RUN).unwrap()
}

#[test]
fn one_that_ends_leaves_the_pod_that_another_took_from_it() {
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    api.runs(true);
    first.ensure().unwrap();
    let successor = api.run("2", "reach: pod");
    let (pod, _) = successor.ensure().unwrap();
    assert_eq!(objects::uid(&pod), objects::uid(&api.object(POD).unwrap()), "what its agent knows stays");
    assert_eq!((holder(&pod), holder(&api.object(SECRET).unwrap())), ("2", "2"));

    // The first one comes to its end, or dials again.
    first.dismiss().unwrap();
    assert!(api.object(POD).is_some() && api.object(SECRET).is_some());
    for refused in [first.ensure().map(drop), first.remove()] {
        let error = refused.unwrap_err();
        assert!(error.kind == KubeErrorKind::Conflict && error.what.contains("took the place"), "{error}");
    }
    assert_eq!(holder(&api.object(POD).unwrap()), "2", "it is not taken back");

    successor.dismiss().unwrap();
    assert!(api.object(POD).is_none() && api.object(SECRET).is_none());
}

#[test]
fn a_pod_that_is_taken_while_it_is_being_dismissed_stays() {
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    api.runs(true);
    first.ensure().unwrap();
    // Between its look and its removal.
    api.change(|store| store.meanwhile = Some(|pod| pod["metadata"]["annotations"][RUN] = json!("2")));
    first.dismiss().unwrap();
    assert_eq!(holder(&api.object(POD).unwrap()), "2");
    // What has only come to run since goes.
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    api.change(|store| store.meanwhile = Some(|pod| pod["status"]["phase"] = json!("Running")));
    first.dismiss().unwrap();
    assert!(api.object(POD).is_none() && api.object(SECRET).is_none());
}

#[test]
fn what_an_earlier_run_left_is_removed_by_who_is_to_remove_it_and_by_nobody_else() {
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    let later = api.run("2", "reach: pod");
    later.dismiss().unwrap();
    assert!(api.object(POD).is_some(), "it never had it");
    later.remove().unwrap();
    assert!(api.object(POD).is_none() && api.object(SECRET).is_none());
    // One of before runs were told apart.
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    api.change(|store| {
        let mut pod = store.objects[POD].clone();
        pod["metadata"]["annotations"].as_object_mut().unwrap().remove(RUN);
        store.put(POD, pod);
    });
    api.runs(true);
    let later = api.run("2", "reach: pod");
    assert_eq!(holder(&later.ensure().unwrap().0), "2");
}

#[test]
fn the_pod_of_a_node_that_is_cut_off_is_waited_for_and_none_is_made_beside_it() {
    let api = Api::new();
    let first = api.run("1", "reach: pod");
    first.make().unwrap();
    api.runs(true);
    let (pod, _) = first.ensure().unwrap();
    let uid = objects::uid(&pod).to_string();
    *first.dialled.lock().unwrap() = Some(uid.clone());
    assert!(!first.has_ended(), "its line may be cut for a while");
    // The cluster wants it gone, and nobody at its node hears that.
    api.change(|store| {
        let mut pod = store.objects[POD].clone();
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["spec"]["nodeName"] = json!("n2");
        store.put(POD, pod);
    });
    assert!(first.has_ended(), "its session comes to an end");
    let mut successor = api.run("2", "reach: pod");
    successor.kubevirt.worker_timeout_s = 1;
    for worker in [&Worker { kubevirt: successor.kubevirt.clone(), ..first }, &successor] {
        let error = worker.ensure().unwrap_err();
        assert!(error.kind == KubeErrorKind::Server && error.what.contains("node n2"), "{error}");
        assert_eq!(objects::uid(&api.object(POD).unwrap()), uid, "it may still write");
    }
    // The node is back.
    api.change(|store| drop(store.objects.remove(POD)));
    successor.make().unwrap();
    api.runs(true);
    assert_ne!(objects::uid(&successor.ensure().unwrap().0), uid);
}

const SERVICE: &str = "/api/v1/namespaces/vms/services/web01-drover";

#[test]
fn a_service_of_a_type_is_made_for_the_pod_and_goes_with_it() {
    let api = Api::new();
    let first = api.run("1", "reach: node-port");
    first.make().unwrap();
    let pod = |api: &Api| {
        let mut pod = api.object(POD).unwrap();
        pod["status"] = json!({"hostIP": "192.0.2.1"});
        pod
    };
    assert_eq!(first.service_of(&pod(&api)).unwrap(), ["192.0.2.1:30001"]);
    let service = api.object(SERVICE).unwrap();
    assert_eq!(service["spec"]["selector"], api.object(POD).unwrap()["metadata"]["labels"]);
    assert!(objects::is_owned_by(&service, &pod(&api)));
    // Of the same pod it is used again, of another it is made anew.
    first.service_of(&pod(&api)).unwrap();
    assert_eq!(objects::uid(&api.object(SERVICE).unwrap()), objects::uid(&service));
    let mut other = pod(&api);
    other["metadata"]["uid"] = json!("another");
    first.service_of(&other).unwrap();
    assert!(objects::is_owned_by(&api.object(SERVICE).unwrap(), &other));

    // Another type, for which somebody has to give it an address.
    let balanced = api.run("2", "reach: load-balancer");
    balanced.stop.stop();
    for _ in 0..2 {
        let error = balanced.service_of(&pod(&api)).unwrap_err();
        assert!(error.what.contains("has no address by its Service of type LoadBalancer"), "{error}");
    }
    api.change(|store| {
        let mut service = store.objects[SERVICE].clone();
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}});
        store.put(SERVICE, service);
    });
    assert_eq!(balanced.service_of(&pod(&api)).unwrap(), ["203.0.113.7:7843"]);
    balanced.remove().unwrap();
    assert!(api.object(SERVICE).is_none());
    // Somebody's.
    api.change(|store| drop(store.put(SERVICE, json!({"metadata": {"name": "web01-drover"}}))));
    let error = balanced.service_of(&pod_of_nobody()).unwrap_err();
    assert!(
        error.kind == KubeErrorKind::Conflict && error.what.contains("a Service vms/web01-drover"),
        "{error}"
    );
    balanced.remove().unwrap();
    assert!(api.object(SERVICE).is_some(), "it stays");
}

const ROUTE: &str = "/apis/route.openshift.io/v1/namespaces/vms/routes/web01-drover";

#[test]
fn a_route_leads_to_a_service_of_the_pod_and_both_go_with_it() {
    let api = Api::new();
    let first = api.run("1", "reach: route");
    first.make().unwrap();
    first.stop.stop();
    let pod = api.object(POD).unwrap();
    for _ in 0..2 {
        let error = first.route_of(&pod).unwrap_err();
        assert!(
            error.what.contains("has no address by its Route") && error.what.contains("admitted"),
            "{error}"
        );
    }
    let (route, service) = (api.object(ROUTE).unwrap(), api.object(SERVICE).unwrap());
    assert_eq!(
        (&service["spec"]["type"], &route["spec"]["tls"]["termination"]),
        (&json!("ClusterIP"), &json!("passthrough"))
    );
    assert_eq!(route["spec"]["to"]["name"], service["metadata"]["name"]);
    assert_eq!(route["spec"]["port"]["targetPort"], service["spec"]["ports"][0]["name"]);
    assert!(objects::is_owned_by(&route, &pod) && objects::is_owned_by(&service, &pod));
    api.change(|store| {
        let mut route = store.objects[ROUTE].clone();
        let admitted = json!([{"type": "Admitted", "status": "True"}]);
        route["status"] = json!({"ingress": [{"host": "web01.apps.example.org", "conditions": admitted}]});
        store.put(ROUTE, route);
    });
    assert_eq!(first.route_of(&pod).unwrap(), "web01.apps.example.org");
    first.remove().unwrap();
    assert!(api.object(ROUTE).is_none() && api.object(SERVICE).is_none());
}

fn pod_of_nobody() -> Value {
    json!({"metadata": {"uid": "u"}})
}
