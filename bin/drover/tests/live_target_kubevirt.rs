//! Plans whose target is KubeVirt: VMs of the simulator go into volumes of a true Kubernetes whose pods run (`lab/cluster/up`), and their
//! machines past the true schemas of KubeVirt. Its controllers are played by the lab.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use drover_lab::cluster::Volume;
use drover_lab::{lab_folder, run_by};
use drover_stage::debian::{DISK_BYTES, debian, marked, put_marking_converter};
use drover_stage::kubernetes::{CLAIMS, Landing, MACHINES, PATIENCE, PODS, SECRETS, SERVICES, assert_holds};
use drover_stage::process::{EndsWithTest, wait_until};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::json;

#[test]
fn vms_become_machines_of_a_cluster_with_their_bytes_in_its_volumes() {
    let landing = Landing::new(141, true, |folder| {
        let (a, b, c) = (
            disk_file(folder, "a", 24 * MIB),
            disk_file(folder, "b", 5 * MIB + 512),
            disk_file(folder, "c", 12 * MIB),
        );
        vec![
            with(
                vm("Web_01", &[&a, &b]),
                json!({"power": "on", "cpus": 4, "cores_per_socket": 2, "firmware": "efi", "secure_boot": true}),
            ),
            vm("db01", &[&c]),
        ]
    });
    let Some(mut landing) = landing else { return };
    let a = landing.cluster.volume("v-a", Volume::Block, 24 * MIB).unwrap();
    let b = landing.cluster.volume("v-b", Volume::Block, 6 * MIB).unwrap();
    let c = landing.cluster.volume("v-c", Volume::Folder, 64 * MIB).unwrap();

    // One warm, started, in block devices.
    let only = |name: &str| if name == "db01" { "  - name: \"Web_01\"\n" } else { "  - name: \"db01\"\n" };
    let warm = landing.plan(
        "warm",
        &[
            (only("Web_01"), ""),
            ("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}\nstart: true"),
            ("\"*\": user", "\"*\": \"pod:masquerade\""),
        ],
    );
    let checked = landing.stage.run(&["plan", "check", &warm]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    assert!(landing.all().is_empty(), "a check makes nothing: {:?}", landing.all());
    landing.arrives(&["migrate", &warm]);
    assert_holds(&a, &landing.stage.path("a"));
    assert_holds(&b, &landing.stage.path("b"));
    let machine = landing.cluster.get(&format!("{MACHINES}/web-01")).unwrap().unwrap();
    assert_eq!(machine["spec"]["runStrategy"], "RerunOnFailure");
    let annotations = &machine["metadata"]["annotations"];
    assert_eq!(annotations["drover.dev/name"], "Web_01");
    assert!(
        annotations["drover.dev/root-0"].as_str().is_some_and(|root| root.len() == 64),
        "{annotations:#}"
    );
    let guest = &machine["spec"]["template"]["spec"];
    assert_eq!(guest["domain"]["firmware"]["bootloader"]["efi"]["secureBoot"], true);
    assert_eq!(guest["domain"]["devices"]["interfaces"][0]["macAddress"], "00:50:56:aa:00:01");
    assert_eq!(guest["volumes"][1]["persistentVolumeClaim"]["claimName"], "web-01-1");
    assert_eq!(landing.names(PODS), Vec::<String>::new(), "the worker is gone");
    assert_eq!(landing.names(SECRETS), Vec::<String>::new(), "and its secret");
    assert_eq!(landing.stage.sim.vm("Web_01").unwrap()["power"], "poweredOff");

    // A second run finds nothing to do, and another plan may not take what is there.
    landing.arrives(&["migrate", &warm]);
    let clash = landing.plan("clash", &[(only("Web_01"), "")]);
    let refused = landing.stage.run(&["plan", "check", &clash]);
    assert!(
        refused.code == Some(3) && refused.err.contains("VirtualMachine vms/web-01 is there already"),
        "{}",
        refused.err
    );

    // The other cold, in a file.
    let cold =
        landing.plan("cold", &[(only("db01"), ""), ("image_pull", "volume_mode: filesystem\n  image_pull")]);
    landing.arrives(&["migrate", &cold]);
    assert_holds(&c.join("disk.img"), &landing.stage.path("c"));
    assert_eq!(std::fs::metadata(c.join("disk.img")).unwrap().len(), 12 * MIB);
    let machine = landing.cluster.get(&format!("{MACHINES}/db01")).unwrap().unwrap();
    assert_eq!(machine["spec"]["runStrategy"], "Halted");
    let restricted = landing.stage.report("cold");
    assert_eq!(restricted["vms"][0]["disks"][0]["equal"], true, "{restricted:#}");

    // Forgotten, what has arrived is not taken by a plan of the same name.
    landing.arrives(&["clean", "cold", "--forget"]);
    let refused = landing.stage.run(&["plan", "check", &cold]);
    assert!(
        refused.code != Some(0)
            && refused.err.contains("db01-0 is there already: a plan of this name made it"),
        "{}",
        refused.err
    );
}

#[test]
fn a_copy_survives_its_pod_and_its_drover_and_a_cancel_leaves_nothing() {
    let landing = Landing::new(142, true, |folder| vec![vm("web01", &[&disk_file(folder, "a", 96 * MIB)])]);
    let Some(mut landing) = landing else { return };
    let a = landing.cluster.volume("v-a", Volume::Block, 96 * MIB).unwrap();
    let plan = landing.plan("slow", &[("image_pull", "rate_limit: [4MiB]\n  image_pull")]);
    let mut running = EndsWithTest(landing.stage.drover.command(&["migrate", &plan]).spawn().unwrap());
    let wait_for = |landing: &Landing, blocks: u64, running: &mut EndsWithTest| {
        wait_until("the copy records blocks", PATIENCE, || {
            assert!(running.0.try_wait().unwrap().is_none(), "it ended before: {}", landing.told());
            landing.recorded() > blocks
        });
    };
    wait_for(&landing, 0, &mut running);

    // The pod dies: the copy goes on in another.
    let before =
        landing.cluster.get(&format!("{PODS}/web01-drover")).unwrap().unwrap()["metadata"]["uid"].clone();
    landing.cluster.remove(&format!("{PODS}/web01-drover?gracePeriodSeconds=1")).unwrap();
    let seen = landing.recorded();
    wait_for(&landing, seen + 32, &mut running);
    let after =
        landing.cluster.get(&format!("{PODS}/web01-drover")).unwrap().unwrap()["metadata"]["uid"].clone();
    assert_ne!(before, after);

    // Drover dies: resumed, it goes on with the same pod, which is its own from then on.
    let pod = || landing.cluster.get(&format!("{PODS}/web01-drover")).unwrap().unwrap_or_default();
    let run = || pod()["metadata"]["annotations"]["drover.dev/run"].clone();
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let recorded = landing.recorded();
    let first = run();
    let resumed = landing.stage.drover.command(&["resume", "slow"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it takes the pod", PATIENCE, || run().is_string() && run() != first);
    assert_eq!(pod()["metadata"]["uid"], after);
    let resumed = resumed.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&resumed.stderr);
    assert!(resumed.status.success(), "{words}\n{}", landing.told());
    assert_holds(&a, &landing.stage.path("a"));
    let report = landing.stage.report("slow");
    let disk = &report["vms"][0]["disks"][0];
    assert!(disk["details"]["resumed_bytes"].as_u64().unwrap() >= recorded * 65536, "{disk:#}");

    // Another that is given up half-way.
    let plan = landing.plan(
        "given-up",
        &[
            ("image_pull", "rate_limit: [4MiB]\n  image_pull"),
            ("  - name: \"web01\"", "  - name: \"web01\"\n    target_name: other"),
        ],
    );
    landing.cluster.volume("v-b", Volume::Block, 96 * MIB).unwrap();
    let (held, before_record) = (landing.all(), landing.records());
    let mut running = EndsWithTest(landing.stage.drover.command(&["migrate", &plan]).spawn().unwrap());
    let seen = landing.recorded();
    wait_for(&landing, seen, &mut running);
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    // Asked of another cluster, nothing is said to be gone.
    let record = landing.record_of("given-up", &before_record);
    let known = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, "kube-system 00000000-0000-0000-0000-000000000000").unwrap();
    let refused = landing.stage.run(&["cancel", "given-up"]);
    assert!(
        refused.code != Some(0) && refused.err.contains("went to another cluster"),
        "{}{}",
        refused.out,
        refused.err
    );
    assert!(landing.names(CLAIMS).contains(&"other-0".to_string()), "{:?}", landing.names(CLAIMS));
    std::fs::write(&record, known).unwrap();
    let claim = landing.cluster.get(&format!("{CLAIMS}/other-0")).unwrap().unwrap();
    let owner = claim["metadata"]["annotations"]["drover.dev/owner"].as_str().unwrap().to_string();
    landing.arrives(&["cancel", "given-up"]);
    wait_until("pods go", PATIENCE, || landing.all() == held);
    // A claim of the same plan that another installation of drover made is somebody else's.
    let anothers = owner.replace("plan given-up of ", "plan given-up of f");
    assert_ne!(owner, anothers);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "other-0", "annotations": {"drover.dev/owner": anothers}},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "lab",
                 "resources": {"requests": {"storage": "96Mi"}}}});
    landing.cluster.make(CLAIMS, &claim).unwrap();
    let refused = landing.stage.run(&["plan", "check", &plan]);
    assert!(
        refused.code != Some(0) && refused.err.contains("it is of plan given-up of f"),
        "{}{}",
        refused.out,
        refused.err
    );
}

/// A rule of the packet filter in the network of the nodes.
fn rule(landing: &Landing, words: &str) {
    let there = landing.cluster.in_network().unwrap();
    let mut command = Command::new(&there[0]);
    let done = command.args(&there[1..]).arg("iptables").args(words.split_whitespace()).status().unwrap();
    assert!(done.success(), "iptables {words}");
}

/// What kube-proxy and the controller of a load balancer do for the next Service that there is, once.
fn play_service(landing: &Landing) {
    wait_until("a Service", PATIENCE, || landing.names(SERVICES).len() == 1);
    let path = format!("{SERVICES}/{}", landing.names(SERVICES)[0]);
    let service = landing.cluster.get(&path).unwrap().unwrap();
    let pod = landing.cluster.get(&format!("{PODS}/{}", landing.names(SERVICES)[0])).unwrap().unwrap();
    let pod = pod["status"]["podIP"].as_str().unwrap().to_string();
    let port = match service["spec"]["type"] == "LoadBalancer" {
        true => json!(7843),
        false => service["spec"]["ports"][0]["nodePort"].clone(),
    };
    rule(landing, &format!("-t nat -I OUTPUT -d {NODE} -p tcp --dport {port} -j DNAT --to {pod}:7843"));
    if service["spec"]["type"] == "LoadBalancer" {
        let given = json!({"status": {"loadBalancer": {"ingress": [{"ip": NODE}]}}});
        landing.cluster.merge(&format!("{path}/status"), &given).unwrap();
    }
}

const NODE: &str = "10.99.0.1";
const ROUTES_PATH: &str = "/apis/route.openshift.io/v1/namespaces/vms/routes";

/// What this project knows of OpenShift's Routes, written by hand: the true schema cannot be had here, and has more.
const ROUTES: &str = "
required: [spec]
properties:
  spec:
    type: object
    required: [to]
    properties:
      host: {type: string}
      to: {type: object, required: [kind, name], properties: {kind: {type: string}, name: {type: string}}}
      port: {type: object, required: [targetPort], properties: {targetPort: {x-kubernetes-int-or-string: true}}}
      tls: {type: object, required: [termination], properties: {termination: {type: string, enum: [edge, passthrough, reencrypt]}}}
  status: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// What OpenShift's router does for the next Route that there is: it admits it by a name, and passes connections on to the pod.
fn play_router(landing: &Landing) -> EndsWithTest {
    wait_until("a Route", PATIENCE, || landing.names(ROUTES_PATH).len() == 1);
    let name = landing.names(ROUTES_PATH).remove(0);
    let pod = landing.cluster.get(&format!("{PODS}/{name}")).unwrap().unwrap();
    let pod = format!("tcp:{}:7843", pod["status"]["podIP"].as_str().unwrap());
    let there = landing.cluster.in_network().unwrap();
    let mut router = Command::new(&there[0]);
    router.args(&there[1..]).arg(lab_folder().join("cluster/cluster"));
    let router = router.args(["forward", "tcp:127.0.0.1:443", &pod]).spawn().unwrap();
    let admitted = json!([{"type": "Admitted", "status": "True"}]);
    let given = json!({"status": {"ingress": [{"host": "localhost", "conditions": admitted}]}});
    landing.cluster.merge(&format!("{ROUTES_PATH}/{name}/status"), &given).unwrap();
    EndsWithTest(router)
}

#[test]
fn an_agent_is_reached_by_the_way_that_the_plan_says_and_by_auto_where_it_answers() {
    let landing = Landing::new(186, true, |folder| vec![vm("web01", &[&disk_file(folder, "a", 2 * MIB)])]);
    let Some(mut landing) = landing else { return };
    let outside = landing.cluster.let_out(landing.stage.sim.port).unwrap();
    let port = landing.stage.sim.port;
    let (hosts, own) =
        (format!("    from: hosts\n    port: {port}\n"), format!("endpoint: 127.0.0.1:{port}"));
    let there = format!("endpoint: {outside}");
    let (here, inner) = (landing.cluster.kubeconfig(), landing.cluster.inner_kubeconfig());
    let (here, inner) = (here.display().to_string(), inner.display().to_string());
    let ways = [
        ("auto", false, "at its address 10.98.0."),
        ("auto", true, "through the API server"),
        ("pod", false, "at its address 10.98.0."),
        ("port-forward", false, "through the API server"),
        ("node-port", false, "by a Service of type NodePort, at 10.99.0.1:"),
        ("load-balancer", false, "by a Service of type LoadBalancer, at 10.99.0.1:7843"),
        ("route", false, "by a Route, at localhost:443"),
    ];
    landing.cluster.install_known("routes.route.openshift.io", "Route", ROUTES).unwrap();
    for (number, (reach, is_cut, words)) in ways.into_iter().enumerate() {
        let volume = landing.cluster.volume(&format!("v-{number}"), Volume::Block, 2 * MIB).unwrap();
        let (reach, target) = (format!("reach: {reach}"), format!("web{number}"));
        let renamed = format!("  - name: \"web01\"\n    target_name: {target}");
        let edits = [
            (hosts.as_str(), "    from: provider\n"),
            (own.as_str(), there.as_str()),
            (here.as_str(), inner.as_str()),
            ("reach: port-forward", reach.as_str()),
            ("  - name: \"web01\"", renamed.as_str()),
        ];
        let plan = landing.plan(&target, &edits);
        if is_cut {
            rule(&landing, "-I OUTPUT -p tcp --dport 7843 -j REJECT");
        }
        let network = landing.cluster.in_network().unwrap();
        let mut command = run_by(&network, &landing.stage.drover.command(&["migrate", &plan]));
        let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if ["node-port", "load-balancer"].iter().any(|it| reach.ends_with(it)) {
            play_service(&landing);
        }
        let _router = reach.ends_with("route").then(|| play_router(&landing));
        let done = running.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{reach}: {told}\n{}", landing.told());
        assert!(
            told.contains(&format!("worker pod vms/{target}-drover is reached {words}")),
            "{reach}: {told}"
        );
        assert_holds(&volume, &landing.stage.path("a"));
        if is_cut {
            rule(&landing, "-D OUTPUT -p tcp --dport 7843 -j REJECT");
        }
        wait_until("pod, Service and Route go", PATIENCE, || {
            [PODS, SERVICES, ROUTES_PATH].iter().all(|path| landing.names(path).is_empty())
        });
    }
}

#[test]
fn a_guest_is_converted_in_its_volume_once() {
    let landing = Landing::new(184, true, |folder| {
        vec![with(vm("vmware", &[&debian(folder, "vmware", &[])]), json!({"nics": []}))]
    });
    let Some(mut landing) = landing else { return };
    let volume = landing.cluster.volume("v-a", Volume::Block, DISK_BYTES).unwrap();
    let tools = landing.stage.path("tools");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let source = std::fs::read(landing.stage.path("vmware")).unwrap();
    let plan = landing.plan("convert", &[("convert: never", "convert: auto")]);
    let runs = || std::fs::read_to_string(tools.join("runs")).unwrap_or_default().lines().count();
    put_marking_converter(&tools, ": >begun\nexec sleep 600");
    let mut command = landing.stage.drover.command(&["migrate", &plan]);
    let mut running = EndsWithTest(command.env("PATH", &path).spawn().unwrap());
    wait_until("the conversion", PATIENCE, || {
        assert!(running.0.try_wait().unwrap().is_none(), "it ended before: {}", landing.told());
        tools.join("begun").exists()
    });
    // Neither drover nor the pod comes to its end.
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    landing.cluster.remove(&format!("{PODS}/vmware-drover?gracePeriodSeconds=1")).unwrap();
    assert!(std::fs::read(&volume).unwrap()[..source.len()] == source, "not converted in part");
    put_marking_converter(&tools, "");
    for words in [["resume", "convert"], ["migrate", plan.as_str()]] {
        let output = landing.stage.drover.command(&words).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stderr), landing.told());
    }
    assert!(
        std::fs::read(&volume).unwrap()[..source.len()] == marked(source),
        "by the mark, and nothing else"
    );
    assert_eq!(runs(), 2);
    assert!(landing.stage.report("convert").to_string().contains("converted; log in"));
    assert_eq!(landing.names(PODS), Vec::<String>::new(), "the worker is gone");
}

#[test]
fn what_is_missing_is_named_at_once_and_nothing_is_touched() {
    let landing = Landing::new(143, false, |folder| vec![vm("web01", &[&disk_file(folder, "a", 2 * MIB)])]);
    let Some(landing) = landing else { return };
    let check = |edits: &[(&str, &str)], words: &[&str]| {
        let output = landing.stage.run(&["plan", "check", &landing.plan("bad", edits)]);
        assert_eq!(output.code, Some(3), "{edits:?}: {}{}", output.out, output.err);
        words.iter().for_each(|words| assert!(output.err.contains(words), "{words}: {}", output.err));
    };
    check(
        &[("storage_class: lab", "storage_class: fast"), ("\"*\": user", "\"*\": \"nad:prod/vlan7\"")],
        &["KubeVirt is not installed", "no storage class fast", "it has: lab", "wants Multus"],
    );
    if !landing.cluster.install_kubevirt().unwrap() {
        return;
    }
    check(&[("namespace: vms", "namespace: nowhere")], &["no namespace nowhere"]);
    // A token that counts no more.
    let kubeconfig = landing.cluster.kubeconfig();
    let expired = landing.stage.path("expired");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    assert!(text.contains("token: lab-admin"), "{text}");
    std::fs::write(&expired, text.replace("token: lab-admin", "token: expired")).unwrap();
    let own = format!("kubeconfig: {}", kubeconfig.display());
    let other = format!("kubeconfig: {}", expired.display());
    check(&[(own.as_str(), other.as_str())], &["lets this user not in", "it may have expired"]);
    // A KubeVirt of before v1: what it serves now is not what is asked for.
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualmachines.kubevirt.io";
    let versions = landing.cluster.get(crd).unwrap().unwrap()["spec"]["versions"].clone();
    let serve = |is_served: bool| {
        let mut versions = versions.clone();
        let v1 = versions.as_array_mut().unwrap().iter_mut().find(|it| it["name"] == "v1").unwrap();
        v1["served"] = json!(is_served);
        landing.cluster.merge(crd, &json!({"spec": {"versions": versions}})).unwrap();
        wait_until("that counts", PATIENCE, || {
            let list = landing.cluster.get("/apis/kubevirt.io/v1").unwrap().unwrap_or_default();
            let names = list["resources"].as_array().cloned().unwrap_or_default();
            names.iter().any(|it| it["name"] == "virtualmachines") == is_served
        });
    };
    serve(false);
    check(&[], &["serves kubevirt.io/v1 without virtual machines"]);
    serve(true);
    check(
        &[("  namespace: vms", "  context: nobody\n  namespace: vms")],
        &[
            "may not in namespace vms",
            "create persistentvolumeclaims",
            "get pods/portforward",
            "create pods/portforward",
            "patch pods",
            "list resourcequotas",
            "get namespaces",
            "patch virtualmachines",
        ],
    );
    check(
        &[
            ("  namespace: vms", "  context: nobody\n  namespace: vms"),
            ("reach: port-forward", "reach: node-port"),
        ],
        &["get services, create services, delete services"],
    );
    check(&[("  namespace: vms", "  context: nothing\n  namespace: vms")], &["nothing"]);
    check(&[("\"*\": user", "\"*\": br0")], &["attaches NICs to no bridge"]);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"requests.storage": "1Mi"}}});
    landing.cluster.make("/api/v1/namespaces/vms/resourcequotas", &quota).unwrap();
    wait_until("the quota counts", PATIENCE, || {
        let list = landing.cluster.get("/api/v1/namespaces/vms/resourcequotas/small").unwrap().unwrap();
        list["status"]["hard"].is_object()
    });
    check(&[], &["quota small has", "of requests.storage left"]);
    landing.cluster.remove("/api/v1/namespaces/vms/resourcequotas/small").unwrap();
    // Somebody's claim of the same name.
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "web01-0"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "lab",
                 "resources": {"requests": {"storage": "1Mi"}}}});
    landing.cluster.make(CLAIMS, &claim).unwrap();
    check(&[], &["persistent volume claim vms/web01-0 is there already: drover did not make it"]);
    check(
        &[("storage_class: lab", "storage_class: nothing")],
        &["no storage class nothing", "web01-0 is there already"],
    );
    landing.cluster.remove(&format!("{CLAIMS}/web01-0")).unwrap();
    wait_until("the claim goes", PATIENCE, || landing.names(CLAIMS).is_empty());
    // A namespace that takes no pod of root's: block devices want one, files do not.
    let strict = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    landing.cluster.merge("/api/v1/namespaces/vms", &strict).unwrap();
    check(&[], &["violates PodSecurity"]);
    let fine = landing.plan("fine", &[("image_pull", "volume_mode: filesystem\n  image_pull")]);
    let output = landing.stage.run(&["plan", "check", &fine]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    for user in ["certificate", "program"] {
        let context = format!("  context: {user}\n  namespace: vms");
        let edits = [("image_pull", "volume_mode: filesystem\n  image_pull"), ("  namespace: vms", &context)];
        let output = landing.stage.run(&["plan", "check", &landing.plan(user, &edits)]);
        assert_eq!(output.code, Some(0), "{user}: {}{}", output.out, output.err);
    }
    assert!(landing.all().is_empty());
    // A volume that is not there ends the wait for the pod.
    let soft = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": null}}});
    landing.cluster.merge("/api/v1/namespaces/vms", &soft).unwrap();
    let unbound = landing.plan("unbound", &[("worker_timeout: 180s", "worker_timeout: 2s")]);
    let output = landing.stage.run(&["migrate", &unbound]);
    assert!(
        output.code != Some(0) && output.err.contains("did not come to run within 2 s"),
        "{}",
        output.err
    );
    // The claim is made again by somebody, too small.
    let path = format!("{CLAIMS}/web01-0");
    let mut claim = landing.cluster.get(&path).unwrap().unwrap();
    landing.cluster.remove(&path).unwrap();
    wait_until("the claim goes", PATIENCE, || landing.names(CLAIMS).is_empty());
    claim["metadata"] = json!({"name": "web01-0", "annotations": {
        "drover.dev/owner": claim["metadata"]["annotations"]["drover.dev/owner"]}});
    claim["spec"]["resources"]["requests"]["storage"] = json!("1Mi");
    claim.as_object_mut().unwrap().remove("status");
    landing.cluster.make(CLAIMS, &claim).unwrap();
    let output = landing.stage.run(&["resume", "unbound"]);
    assert!(
        output.code == Some(7) && output.err.contains("and the disk wants 2097152 bytes"),
        "{}",
        output.err
    );
    landing.arrives(&["cancel", "unbound"]);
    wait_until("all goes", PATIENCE, || landing.all().is_empty());
    // A class that makes no volumes: the claim's own events tell it.
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gone"},
        "provisioner": "kubernetes.io/no-provisioner"});
    landing.cluster.make(classes, &class).unwrap();
    // CDI says who may have its volumes at a time.
    assert!(landing.cluster.install_schema("storageprofiles.cdi.kubevirt.io", "v1beta1").unwrap());
    let profiles = "/apis/cdi.kubevirt.io/v1beta1/storageprofiles";
    let profile = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": "gone"}, "spec": {}});
    landing.cluster.make(profiles, &profile).unwrap();
    let sets =
        json!({"status": {"claimPropertySets": [{"volumeMode": "Block", "accessModes": ["ReadWriteMany"]}]}});
    landing.cluster.merge(&format!("{profiles}/gone/status"), &sets).unwrap();
    check(
        &[("image_pull", "instance_type: u1.medium\n  image_pull")],
        &["does not serve instancetype.kubevirt.io/v1"],
    );
    let gone = landing.plan(
        "gone",
        &[("storage_class: lab", "storage_class: gone"), ("worker_timeout: 180s", "worker_timeout: 5s")],
    );
    let output = landing.stage.run(&["migrate", &gone]);
    assert!(output.err.contains("claim web01-0 has no volume"), "{}", output.err);
    let claim = landing.cluster.get(&format!("{CLAIMS}/web01-0")).unwrap().unwrap();
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteMany"]));
    landing.cluster.remove(&format!("{classes}/gone")).unwrap();
    landing.arrives(&["cancel", "gone"]);
    wait_until("all goes", PATIENCE, || landing.all().is_empty());
}

#[test]
fn a_guest_that_its_node_pauses_after_its_start_goes_back_to_its_source_with_the_reason() {
    let landing = Landing::new(185, true, |folder| {
        vec![with(vm("web01", &[&disk_file(folder, "a", 2 * MIB)]), json!({"power": "on"}))]
    });
    let Some(mut landing) = landing else { return };
    landing.cluster.volume("v-a", Volume::Block, 2 * MIB).unwrap();
    let plan = landing.plan("pauses", &[("mode: cold", "mode: cold\nstart: true")]);
    let mut command = landing.stage.drover.command(&["migrate", &plan]);
    let running = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let path = "/apis/kubevirt.io/v1/namespaces/vms/virtualmachineinstances/web01";
    let phase = || landing.cluster.get(path).unwrap().unwrap_or_default()["status"]["phase"].clone();
    wait_until("its guest runs", PATIENCE, || phase() == "Running");
    let paused = json!({"type": "Paused", "status": "True", "reason": "PausedIOError", "message": "low-level IO error"});
    let status = json!({"status": {"conditions": [paused]}});
    let merged = landing.cluster.merge(&format!("{path}/status"), &status);
    merged.or_else(|_| landing.cluster.merge(path, &status)).unwrap();
    let failed = running.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success(), "{words}");
    assert!(words.contains("its guest is paused (PausedIOError: low-level IO error)"), "{words}");
    assert_eq!(landing.stage.sim.vm("web01").unwrap()["power"], "poweredOn");
}
