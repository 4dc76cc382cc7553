//! A daemon on another host without an agent: disks go to storage that both hosts have at the same path.

use std::path::Path;

use drover_stage::debian::{debian, marked, put_marking_converter};
use drover_stage::landing::{EARLY_EDGES, Landing, edges};
use drover_stage::{MIB, disk_file, same_bytes, vm, with};
use serde_json::{Value, json};

fn plan(landing: &Landing, name: &str, uri: &str, edits: &[(&str, &str)]) -> String {
    let without = [("  via: site-b\n", ""), ("mode: cold", "mode: cold\nstart: true")];
    landing.far_plan(name, uri, &[&without, edits].concat())
}

fn one(folder: &Path) -> Vec<Value> {
    vec![with(vm("one", &[&disk_file(folder, "a", 2 * MIB)]), json!({"power": "on", "nics": []}))]
}

#[test]
fn killed_at_every_edge_a_plan_arrives_once_in_storage_of_both_hosts() {
    let Some(landing) = Landing::new(239, one) else { return };
    let (uri, _sshd) = landing.by_ssh("b");
    landing.somebodys("b", "theirs", None);
    std::fs::write(landing.image("b", "theirs.raw"), "somebody's").unwrap();
    let before = landing.all_of("b");
    let edges_plan = plan(&landing, "edges", &uri, &[]);
    let checked = landing.arrives(&["plan", "check", &edges_plan]);
    assert!(checked.out.contains("written from this host, without an agent, as a share"), "{}", checked.out);
    assert_eq!(landing.all_of("b"), before, "a check touches nothing");

    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan = plan(&landing, &name, &uri, &[]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        assert_ne!(landing.state("b", "one"), "running", "{edge:?}");
        landing.arrives(&["cancel", &name]);
        assert_eq!(landing.all_of("b"), before, "{edge:?}");
    }

    let mut args = vec!["migrate", edges_plan.as_str()];
    for edge in edges(false) {
        landing.killed_at(&args, edge);
        landing.runs_once("b", "one", edge);
        args = vec!["resume", "edges"];
    }
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("b", "one"), "running");
    assert_eq!(landing.state("a", "one"), "");
    assert!(same_bytes(&landing.image("b", "one-0.raw"), &landing.stage.path("a")));
    let source = format!("<source file='{}'", landing.image("b", "one-0.raw").display());
    assert!(landing.xml("b", "one").contains(&source), "{}", landing.xml("b", "one"));
    let listed = landing.hosts.virsh("b", &["vol-list", "images"]).unwrap();
    assert!(listed.contains("one-0.raw"), "{listed}");
    landing.arrives(&["migrate", &edges_plan]);
    landing.stays("b", "edges");
}

#[test]
fn a_folder_of_the_same_path_on_another_host_is_not_taken_for_a_share() {
    // That host has its own changes to /var.
    let apart = tempfile::Builder::new().prefix("drover-apart-").tempdir_in("/var/tmp").unwrap();
    let Some(landing) = Landing::new(240, one) else { return };
    let (uri, _sshd) = landing.by_ssh("b");
    let virsh = |words: &[&str]| landing.hosts.virsh("b", words).unwrap();
    virsh(&["pool-create-as", "apart", "dir", "--target", apart.path().to_str().unwrap()]);
    std::fs::create_dir(landing.hosts.run_folder("b").join("only-there")).unwrap();
    virsh(&["pool-create-as", "only", "dir", "--target", "/run/only-there"]);
    let in_pool =
        |name: &str, pool: &str| plan(&landing, name, &uri, &[("pool: images", &format!("pool: {pool}"))]);
    let refuses = |args: &[&str], words: &str| {
        let refused = landing.run(args);
        assert!(refused.code != Some(0) && refused.err.contains(words), "'{words}' in {}", refused.err);
        assert!(refused.err.contains("mount the same share at the same path"), "{}", refused.err);
    };
    refuses(&["plan", "check", &in_pool("only", "only")], "this host cannot write there either");
    let plan = in_pool("apart", "apart");
    landing.arrives(&["plan", "check", &plan]);
    refuses(&["migrate", &plan], "that host has another folder at this path");
    assert_eq!(virsh(&["vol-list", "apart"]), "", "what was made for nothing is gone");
    assert_eq!(std::fs::read_dir(apart.path()).unwrap().count(), 0);
    landing.arrives(&["cancel", "apart"]);
    virsh(&["vol-create-as", "apart", "theirs", "1MiB"]);
    refuses(&["plan", "check", &in_pool("seen", "apart")], "without any of its 1 volume");
    assert_eq!(std::fs::read_dir(apart.path()).unwrap().count(), 0);
}

#[test]
fn a_guest_in_storage_of_both_hosts_is_converted_here() {
    let Some(landing) = Landing::new(241, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let (uri, _sshd) = landing.by_ssh("b");
    put_marking_converter(&landing.stage.path("bin"), "");
    let plan = plan(&landing, "convert", &uri, &[("convert: never", "convert: auto")]);
    landing.arrives(&["migrate", &plan]);
    let wanted = marked(std::fs::read(landing.stage.path("one")).unwrap());
    assert!(std::fs::read(landing.image("b", "one-0.raw")).unwrap() == wanted);
}
