//! What hosts have: CPUs and huge pages.

use serde_json::json;

use drover_stage::domain_xml::differences;
use drover_stage::landing::Landing;
use drover_stage::{MIB, disk_file, vm, with};

/// So many more huge pages of 2 MiB than this machine has, for as long as this lives; nothing, after a printed line, where they cannot be had.
struct HugePages(u64);

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl HugePages {
    fn more(count: u64) -> Option<HugePages> {
        let has = || std::fs::read_to_string(PAGES).ok()?.trim().parse::<u64>().ok();
        let pages = HugePages(has()?);
        let is_set = std::fs::write(PAGES, (pages.0 + count).to_string()).is_ok();
        if !is_set || has()? < pages.0 + count {
            println!("skipped: no huge pages can be had");
            return None;
        }
        Some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(PAGES, self.0.to_string());
    }
}

#[test]
fn a_guest_gets_what_all_hosts_have_of_a_cpu_nodes_and_huge_pages() {
    let Some(landing) = Landing::new(165, |folder| {
        let told = json!({"nics": [], "cpus": 4, "memory_mib": 64});
        vec![with(vm("one", &[&disk_file(folder, "a", MIB)]), told)]
    }) else {
        return;
    };
    landing.overhear();
    let hosts = |a: &str, b: &str| {
        format!(
            "hosts:\n    - {{name: kvm-a, uri: \"{a}\"}}\n    - {{name: kvm-b, uri: \"{b}\"}}\n  memory_reserve: 0B\n  cpu: common\n  pool"
        )
    };
    let (a, b) = (landing.hosts.uri("a"), landing.hosts.uri("b"));
    let single = format!("uri: {a}\n  pool");
    let plan = |name: &str, hosts: &str, more: &str| {
        let more = format!("{more}  accel");
        landing.plan(name, &[(&single, hosts), ("mode: cold", "mode: cold\nstart: true"), ("  accel", &more)])
    };
    let refused = |name: &str, hosts: &str, more: &str, words: &str| {
        let checked = landing.run(&["plan", "check", &plan(name, hosts, more)]);
        assert!(checked.code != Some(0) && checked.err.contains(words), "{words} in {checked:?}");
    };
    let both = hosts(&a, &b);
    refused(
        "away",
        &hosts(&a, &b.replace("socket=", "socket=/no")),
        "",
        "the CPU that all hosts have is not known",
    );
    let features = "  cpu_features: [avx512f]\n";
    refused("features", &both, features, "kvm-b: it has no CPU with avx512f");
    refused("pages", &both, "  hugepages: 2MiB\n", "kvm-b: 0 B of huge pages free, and it needs 64 MiB");
    assert_eq!((landing.all_of("a"), landing.all_of("b")), (Vec::new(), Vec::new()));

    let Some(pages) = HugePages::more(40) else { return };
    let free = || {
        let told = landing.hosts.virsh("a", &["freepages", "--cellno", "0", "--pagesize", "2048"]).unwrap();
        told.trim().trim_start_matches("2048KiB:").trim().parse::<u64>().unwrap()
    };
    let before = free();
    let more = "  hugepages: 2MiB\n  numa_cpus: 2\n  cpu_features: [sse2]\n";
    landing.arrives(&["migrate", &plan("common", &both, more)]);
    let host = landing.stage.report("common")["vms"][0]["target_host"]["name"].clone();
    let host = if host == "kvm-a" { "a" } else { "b" };
    assert_eq!(landing.state(host, "one"), "running");
    let (asked, xml) = (landing.asked("one"), landing.xml(host, "one"));
    assert_eq!(differences(&asked, &xml), Vec::<String>::new());
    assert_eq!(before - free(), 32, "its memory is in huge pages");
    for cell in [
        "<topology sockets='4' dies='1' clusters='1' cores='1' threads='1'/>",
        "<cell id='0' cpus='0-1' memory='32768' unit='KiB'/>",
        "<cell id='1' cpus='2-3' memory='32768' unit='KiB'/>",
    ] {
        assert!(xml.contains(cell), "{cell} in {xml}");
    }
    // What libvirt computes of both.
    let offers = ["a", "b"].map(|host| {
        landing.hosts.virsh(host, &["domcapabilities", "--virttype", "qemu", "--machine", "q35"]).unwrap()
    });
    let file = landing.folder.path().join("offers.xml");
    std::fs::write(&file, offers.concat()).unwrap();
    let words = ["hypervisor-cpu-baseline", "--virttype", "qemu", "--machine", "q35", file.to_str().unwrap()];
    let common = landing.hosts.virsh("b", &words).unwrap();
    for line in common
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("<model") || line.starts_with("<feature"))
    {
        assert!(asked.contains(line), "{line} in {asked}");
    }
    assert!(common.contains("<model"), "{common}");
    drop(pages);
}

#[test]
fn a_host_of_less_takes_from_the_cpu_of_all_and_one_of_another_maker_has_none_with_them() {
    let Some(landing) = Landing::new(166, |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", MIB)]), json!({"nics": []}))]
    }) else {
        return;
    };
    let (a, b) = (landing.hosts.uri("a"), landing.hosts.uri("b"));
    let offers =
        landing.hosts.virsh("b", &["domcapabilities", "--virttype", "qemu", "--machine", "q35"]).unwrap();
    let (_, host_model) = offers.split_once("<mode name='host-model'").unwrap();
    let (host_model, _) = host_model.split_once("</mode>").unwrap();
    let feature = host_model.lines().find(|line| line.contains("policy='require'")).unwrap().trim();
    let vendor = host_model.lines().find(|line| line.contains("<vendor>")).unwrap().trim();
    let other = if vendor.contains("AMD") { "<vendor>Intel</vendor>" } else { "<vendor>AMD</vendor>" };
    let bin = landing.stage.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    // The second host is one without a feature, or of another maker, by what its daemon says.
    let is = |edit: &str| {
        let script = format!(
            "PATH=${{PATH#*:}}\ncase \"$*\" in *domcapabilities*/b/run/*|*/b/run/*domcapabilities*) virsh \"$@\" | sed \"{edit}\" ;;\n\
             *) case \"$*\" in *' define '*) for file; do :; done; cp \"$file\" '{0}/one.xml' ;; esac; exec virsh \"$@\" ;; esac",
            bin.display()
        );
        drover_lab::put_script(&bin.join("virsh"), &script).unwrap();
    };
    let single = format!("uri: {a}\n  pool");
    let hosts = format!(
        "hosts:\n    - {{name: kvm-a, uri: \"{a}\"}}\n    - {{name: kvm-b, uri: \"{b}\"}}\n  memory_reserve: 0B\n  cpu: common\n  pool"
    );
    let plan = landing
        .plan("common", &[(&single, &hosts), ("- name: \"one\"", "- name: \"one\"\n    target_host: kvm-a")]);
    is(&format!("s|{vendor}|{other}|"));
    let refused = landing.run(&["plan", "check", &plan]);
    assert!(refused.code != Some(0) && refused.err.contains("differs from vendor"), "{refused:?}");
    is(&format!("s|{feature}||"));
    landing.arrives(&["migrate", &plan]);
    let asked = landing.asked("one");
    let said = |policy: &str| feature.replace("require", policy);
    assert!(asked.contains("<model") && !asked.contains(&said("require")), "{feature} in {asked}");
    assert_eq!(differences(&asked, &landing.xml("a", "one")), Vec::<String>::new());
}
