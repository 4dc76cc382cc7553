//! Plans whose disks go through CDI's upload proxy, because no pod of drover's may run in the namespace: a true API server with the true
//! schemas of KubeVirt and CDI, and a stand-in for CDI (`crates/stage/src/cdi.rs`).
#![allow(clippy::unwrap_used)]

use drover_lab::Output;
use drover_stage::cdi::{Cdi, Fault};
use drover_stage::kubernetes::{CLAIMS, Landing, MACHINES, PATIENCE, assert_holds};
use drover_stage::process::{EndsWithTest, wait_until};
use drover_stage::{MIB, disk_file, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// What docs/how-to/kubevirt-upload.md says a user needs, without any right to pods.
const ROLE: &str = "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: drover-upload}
rules:
  - {apiGroups: [\"\"], resources: [persistentvolumeclaims], verbs: [get, create, delete]}
  - {apiGroups: [\"\"], resources: [namespaces], verbs: [get]}
  - {apiGroups: [\"\"], resources: [resourcequotas], verbs: [list]}
  - {apiGroups: [upload.cdi.kubevirt.io], resources: [uploadtokenrequests], verbs: [create]}
  - {apiGroups: [kubevirt.io], resources: [virtualmachines], verbs: [get, create, patch, delete]}
  - {apiGroups: [kubevirt.io], resources: [virtualmachineinstances], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: drover-upload}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: drover-upload}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: nobody}]
";

/// Reading where the proxy is.
const SETTINGS: &str = "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cdi-settings}
rules:
  - {apiGroups: [cdi.kubevirt.io], resources: [cdiconfigs], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cdi-settings}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cdi-settings}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: nobody}]
";

struct Scene {
    cdi: Cdi,
    landing: Landing,
}

impl Scene {
    fn new(number: u8, vms: impl FnOnce(&std::path::Path) -> Vec<Value>) -> Option<Scene> {
        let mut landing = Landing::without_nodes(number, vms)?;
        let folder = landing.stage.path("uploads");
        std::fs::create_dir(&folder).unwrap();
        landing.cluster.apply(ROLE, "vms").unwrap();
        let cdi = Cdi::install(&mut landing.cluster, &folder)?;
        Some(Scene { cdi, landing })
    }

    /// A plan of a user who may make no pods.
    fn plan(&self, name: &str, reach: &str, edits: &[(&str, &str)]) -> String {
        let mut all = vec![
            ("  namespace: vms\n", "  context: nobody\n  namespace: vms\n"),
            ("  reach: port-forward\n", reach),
        ];
        all.extend(edits);
        self.landing.plan(name, &all)
    }

    /// As the plan says itself where the proxy is.
    fn told(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let reach = format!(
            "  reach: upload\n  upload_url: {}\n  upload_ca: {}\n",
            self.cdi.url(),
            self.cdi.authority.display()
        );
        self.plan(name, &reach, edits)
    }

    fn run(&self, args: &[&str]) -> Output {
        self.landing.stage.run(args)
    }

    fn notes(&self, plan: &str) -> String {
        let report = self.landing.stage.report(plan);
        let events = report["events"].as_array().unwrap().clone();
        events.iter().filter_map(|event| event["text"].as_str()).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn where_no_pod_may_run_disks_go_through_the_upload_proxy_and_are_never_called_equal() {
    let scene = Scene::new(191, |folder| {
        let (a, b) = (disk_file(folder, "a", 24 * MIB), disk_file(folder, "b", 5 * MIB + 512));
        vec![with(vm("Web_01", &[&a, &b]), json!({"power": "on"}))]
    });
    let Some(scene) = scene else { return };
    // Without an address there is no such way, and what is missing is told.
    let plan = scene.plan("web", "  reach: auto\n", &[("mode: cold", "mode: cold\nstart: true")]);
    let lacking = scene.run(&["plan", "check", &plan]);
    assert!(lacking.code == Some(3) && lacking.err.contains("create pods"), "{}", lacking.err);

    scene.cdi.tell(&scene.landing.cluster);
    scene.landing.cluster.apply(SETTINGS, "vms").unwrap();
    let checked = scene.run(&["plan", "check", &plan]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    let said = format!("{}{}", checked.out, checked.err);
    for words in
        ["CDI's upload proxy at 127.0.0.1:", "nothing is read back", "no warm passes and no conversion"]
    {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert!(scene.landing.all().is_empty(), "a check makes nothing: {:?}", scene.landing.all());

    scene.landing.arrives(&["migrate", &plan]);
    for (claim, source) in [("web-01-0", "a"), ("web-01-1", "b")] {
        assert_holds(&scene.cdi.volume(claim), &scene.landing.stage.path(source));
        let bytes = std::fs::metadata(scene.landing.stage.path(source)).unwrap().len();
        assert_eq!(std::fs::metadata(scene.cdi.volume(claim)).unwrap().len(), bytes, "as long as the disk");
    }
    let machine = scene.landing.cluster.get(&format!("{MACHINES}/web-01")).unwrap().unwrap();
    assert_eq!(machine["spec"]["runStrategy"], "RerunOnFailure");
    let report = scene.landing.stage.report("web");
    let disk = &report["vms"][0]["disks"][0];
    let root = disk["details"]["root"].as_str().unwrap();
    assert_eq!(machine["metadata"]["annotations"]["drover.dev/root-0"], root);
    assert!(disk["equal"].is_null() && disk["details"]["target_root"].is_null(), "{disk:#}");
    assert_eq!(report["summary"]["equal"], "not_checked", "{:#}", report["summary"]);
    assert!(disk["details"]["note"].as_str().unwrap().contains("nothing was read back"), "{disk:#}");
    let copied = scene.run(&["hash", scene.landing.stage.path("a").to_str().unwrap()]);
    assert!(copied.out.contains(root), "{root} is not the root of the source: {}{}", copied.out, copied.err);
    assert!(scene.notes("web").contains("NOT VERIFIED"), "{}", scene.notes("web"));
    let text = scene.run(&["report", &plan]).out;
    assert!(!text.contains("equal on both sides"), "{text}");
    // Another run finds nothing to do.
    let came = scene.cdi.came();
    scene.landing.arrives(&["migrate", &plan]);
    assert_eq!(scene.cdi.came(), came);
}

#[test]
fn what_an_upload_cannot_do_is_refused_before_anything_is_touched() {
    let scene = Scene::new(192, |folder| vec![vm("web01", &[&disk_file(folder, "a", 4 * MIB)])]);
    let Some(scene) = scene else { return };
    let refused = |plan: &str, words: &str| {
        let output = scene.run(&["plan", "check", plan]);
        assert!(
            output.code != Some(0) && output.err.contains(words),
            "{words}: {:?} {}",
            output.code,
            output.err
        );
        assert!(scene.landing.all().is_empty(), "{:?}", scene.landing.all());
    };
    let warm = ("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}");
    refused(&scene.told("warm", &[warm]), "cannot move warm");
    refused(&scene.told("converted", &[("convert: never", "convert: always")]), "is to be converted");
    refused(&scene.plan("nowhere", "  reach: upload\n", &[]), "tells no address of its upload proxy");
    let url = format!("  reach: upload\n  upload_url: {}\n", scene.cdi.url());
    refused(&scene.plan("unsigned", &url, &[]), "certificate");
    refused(&scene.plan("plain", "  reach: upload\n  upload_url: 'http://127.0.0.1:9'\n", &[]), "https only");
    let absent = format!(
        "  reach: upload\n  upload_url: 'https://127.0.0.1:9'\n  upload_ca: {}\n",
        scene.cdi.authority.display()
    );
    refused(&scene.plan("absent", &absent, &[]), "connection refused");
    let right = "uploadtokenrequests";
    let role = ROLE.lines().filter(|line| !line.contains(right)).collect::<Vec<_>>().join("\n");
    scene.landing.cluster.apply(&role, "vms").unwrap();
    refused(&scene.told("rightless", &[]), "create uploadtokenrequests");
}

#[test]
fn an_upload_that_breaks_begins_again_and_the_proxys_words_are_quoted() {
    let scene = Scene::new(193, |folder| vec![vm("web01", &[&disk_file(folder, "a", 12 * MIB)])]);
    let Some(scene) = scene else { return };
    let plan = scene.told("web", &[("  worker_timeout: 180s\n", "  worker_timeout: 20s\n")]);
    let fails = |words: &str| {
        let output = scene.run(&["migrate", &plan]);
        assert!(
            output.code != Some(0) && output.err.contains(words),
            "{words}: {:?} {}",
            output.code,
            output.err
        );
        assert!(scene.landing.names(MACHINES).is_empty(), "no machine of half a disk");
        output
    };
    // A token that is too old by the time it comes.
    scene.cdi.expire_tokens(true);
    fails("401");
    scene.cdi.expire_tokens(false);
    // CDI refuses it in the middle.
    scene.cdi.fail(&[Fault::Answer(
        3 * MIB,
        500,
        "Saving stream failed: unable to write to file: disk quota exceeded",
    )]);
    fails("disk quota exceeded");
    // CDI's controllers do not make the claim ready.
    let claim = scene.landing.cluster.get(&format!("{CLAIMS}/web01-0")).unwrap().unwrap();
    scene.cdi.stand_still(true);
    scene.landing.arrives(&["cancel", "web"]);
    fails("was not made ready for an upload by CDI within 20 s");
    scene.cdi.stand_still(false);
    assert!(
        scene.landing.cluster.get(&format!("{CLAIMS}/web01-0")).unwrap().unwrap()["metadata"]["uid"]
            != claim["metadata"]["uid"]
    );

    // Busy at first, cut twice, and then whole although nobody answers: all in one run.
    let before = scene.cdi.came().len();
    scene.cdi.give_no_tokens(2);
    scene.cdi.fail(&[
        Fault::HangUp,
        Fault::Refuse(503, "upload pod is not ready"),
        Fault::Cut(4 * MIB),
        Fault::Cut(9 * MIB),
        Fault::Mute,
    ]);
    scene.landing.arrives(&["migrate", &plan]);
    assert_holds(&scene.cdi.volume("web01-0"), &scene.landing.stage.path("a"));
    assert_eq!(scene.cdi.came().len() - before, 3, "each from its first byte");
    let notes = scene.notes("web");
    assert!(notes.matches("it is sent again, from its first byte").count() == 2, "{notes}");
}

/// The last disk was sent, and the machine could not be made: by the time that is mended the proxy is gone.
#[test]
fn disks_that_cdi_has_need_its_proxy_no_more() {
    let scene = Scene::new(195, |folder| vec![vm("web01", &[&disk_file(folder, "a", 3 * MIB)])]);
    let Some(scene) = scene else { return };
    let plan = scene.told("web", &[]);
    let cluster = &scene.landing.cluster;
    let of = |kind: &str| format!("/apis/admissionregistration.k8s.io/v1/{kind}");
    let (policies, bindings) = (of("validatingadmissionpolicies"), of("validatingadmissionpolicybindings"));
    let machines = json!([{"apiGroups": ["kubevirt.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["virtualmachines"]}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "tonight"},
        "spec": {
            "matchConstraints": {"resourceRules": machines},
            "validations": [{"expression": "request.dryRun", "message": "no machines tonight"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "tonight"},
        "spec": {"policyName": "tonight", "validationActions": ["Deny"]},
    });
    cluster.make(&policies, &policy).unwrap();
    cluster.make(&bindings, &binding).unwrap();
    // It takes the API server a moment.
    let probe = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "probe"},
        "spec": {"template": {"spec": {"domain": {"devices": {}}}}}});
    wait_until("it is refused", PATIENCE, || match cluster.make(MACHINES, &probe) {
        Ok(_) => cluster.remove(&format!("{MACHINES}/probe")).is_err(),
        Err(error) => format!("{error:#}").contains("no machines tonight"),
    });
    let failed = scene.run(&["migrate", &plan]);
    assert!(failed.code == Some(7) && failed.err.contains("no machines tonight"), "{failed:?}");
    let came = scene.cdi.came();
    assert_eq!(came, [3 * MIB]);
    cluster.remove(&format!("{bindings}/tonight")).unwrap();
    wait_until("it is let in", PATIENCE, || cluster.make(MACHINES, &probe).is_ok());
    cluster.remove(&format!("{MACHINES}/probe")).unwrap();
    scene.cdi.go_away(true);
    scene.landing.arrives(&["resume", "web"]);
    assert_holds(&scene.cdi.volume("web01-0"), &scene.landing.stage.path("a"));
    assert_eq!(scene.cdi.came(), came, "nothing is sent again");
}

#[test]
fn what_is_on_the_way_may_give_up_before_cdi_is_done() {
    let scene = Scene::new(198, |folder| vec![vm("web01", &[&disk_file(folder, "a", 6 * MIB)])]);
    let Some(scene) = scene else { return };
    scene.cdi.fail(&[Fault::Late(504)]);
    scene.landing.arrives(&["migrate", &scene.told("web", &[])]);
    assert_holds(&scene.cdi.volume("web01-0"), &scene.landing.stage.path("a"));
    assert_eq!(scene.cdi.came().len(), 1, "it is not sent again");
}

#[test]
fn an_upload_that_was_stopped_is_not_taken_for_a_whole_one_and_a_cancel_leaves_nothing() {
    let scene = Scene::new(194, |folder| vec![vm("web01", &[&disk_file(folder, "a", 40 * MIB)])]);
    let Some(scene) = scene else { return };
    let slowly = [("  worker_timeout", "  rate_limit: [4MiB]\n  worker_timeout")];
    let plan = scene.told("web", &slowly);
    let mut running = EndsWithTest(scene.landing.stage.drover.command(&["migrate", &plan]).spawn().unwrap());
    wait_until("it is under way", PATIENCE, || scene.cdi.came().last().is_some_and(|came| *came >= MIB));
    kill_process(Pid::from_child(&running.0), Signal::INT).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(130), "interrupted");
    let came = scene.cdi.came();
    assert!(came.len() == 1 && came[0] < 30 * MIB, "{came:?}");
    // Killed when CDI has all of it, of which drover did not hear: the claim takes no other upload, so it is made anew.
    let claim = || scene.landing.cluster.get(&format!("{CLAIMS}/web01-0")).unwrap().unwrap();
    let first = claim()["metadata"]["uid"].clone();
    scene.cdi.stand_still(true);
    let mut running = EndsWithTest(scene.landing.stage.drover.command(&["resume", "web"]).spawn().unwrap());
    wait_until("all of it is sent", PATIENCE, || scene.cdi.came().last() == Some(&(40 * MIB)));
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    scene.cdi.stand_still(false);
    wait_until("CDI says so", PATIENCE, || {
        claim()["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"] == "Succeeded"
    });
    scene.landing.arrives(&["resume", "web"]);
    assert_holds(&scene.cdi.volume("web01-0"), &scene.landing.stage.path("a"));
    assert_ne!(claim()["metadata"]["uid"], first);
    let came = scene.cdi.came();
    assert_eq!(came[1..], [40 * MIB, 40 * MIB], "twice from its first byte");

    let other = scene
        .told("other", &[("  - name: \"web01\"", "  - name: \"web01\"\n    target_name: other"), slowly[0]]);
    let held = scene.landing.all();
    let mut running = EndsWithTest(scene.landing.stage.drover.command(&["migrate", &other]).spawn().unwrap());
    wait_until("it is under way", PATIENCE, || scene.cdi.came().len() > came.len());
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    scene.landing.arrives(&["cancel", "other"]);
    assert_eq!(scene.landing.all(), held);
}
