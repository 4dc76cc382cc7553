//! Targets of the types libvirt and kubevirt.

use super::*;

const LOCAL: &str = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                     target: {type: libvirt, pool: images}\nvms: [{name: a}]\n";

#[test]
fn the_example_of_domains_says_everything_and_fits_the_schema() {
    let plan = Plan::parse(DOMAINS).unwrap();
    assert_eq!(plan.warnings, []);
    let libvirt = plan.target.libvirt().unwrap();
    assert_eq!((libvirt.pool.as_str(), libvirt.cpu.as_deref()), ("images", Some("host-model")));
    assert_eq!((libvirt.cache, libvirt.io), (Some(DiskCache::None), Some(DiskIo::Threads)));
    assert_eq!((libvirt.page_bytes, libvirt.numa_cpus), (Some(2 << 20), Some(16)));
    assert_eq!(libvirt.cpu_features, ["aes"]);
    let hosts: Vec<_> =
        libvirt.hosts.iter().map(|it| (it.name.as_str(), it.via.as_deref(), it.pool.as_deref())).collect();
    let wanted =
        [("kvm1", Some("site-1"), None), ("kvm2", Some("site-2"), Some("images-2")), ("here", None, None)];
    assert_eq!(hosts, wanted);
    assert_eq!((libvirt.memory_reserve_bytes, plan.limits.disks), (8 << 30, 8));
    let of_vms = keys::SELECTION
        .keys
        .iter()
        .filter(|key| ["uri", "target_host", "autostart", "volumes"].contains(&key.name));
    for key in keys::LIBVIRT.keys.iter().chain(keys::LIBVIRT_HOST.keys).chain(of_vms) {
        assert!(DOMAINS.contains(&format!("{}:", key.name)), "the example lacks '{}'", key.name);
    }
    let validator = jsonschema::validator_for(&crate::schema()).unwrap();
    let as_json = |text: &str| to_json(&crate::node::parse(text).unwrap());
    assert!(validator.is_valid(&as_json(DOMAINS)));
    assert!(!validator.is_valid(&as_json(&LOCAL.replace("pool: images", "folder: /images"))));
}

#[test]
fn every_key_of_a_daemon_is_read_its_kind_checked_and_its_default_true() {
    for key in keys::LIBVIRT.keys {
        let found = Plan::parse(&with(DOMAINS, &["target", key.name], serde_json::json!([[]]))).unwrap_err();
        let written = format!("target.{}", key.name);
        assert!(found.iter().any(|it| it.path.starts_with(&written)), "{written}: {found:#?}");
        if !key.default.is_empty() {
            let value = match key.kind {
                Kind::Flag => serde_json::from_str(key.default).unwrap(),
                _ => serde_json::Value::from(key.default),
            };
            let said = with(LOCAL, &["target", key.name], value);
            let silent = with(LOCAL, &["target"], to_json_without(&said, &["target"], key.name));
            assert_eq!(without_places(&said), without_places(&silent), "{}", key.name);
        }
    }
}

#[test]
fn a_rate_limit_holds_on_the_link_or_else_at_the_source() {
    for (text, limits_reads) in [
        (
            SMALL.replace(
                "type: qemu",
                "type: qemu, rate_limit: ['Mon-Fri 08:00-18:00 Europe/Berlin=200m', 2g]",
            ),
            true,
        ),
        (LOCAL.replace("pool: images", "pool: images, rate_limit: [500m, 2g]"), true),
        (
            LOCAL.replace(
                "pool: images",
                "pool: images, rate_limit: [500m, 2g], uri: qemu+ssh://b/system, via: site-b",
            ),
            false,
        ),
        (LOCAL.to_string(), false),
    ] {
        let target = Plan::parse(&text).unwrap().target;
        assert_eq!(target.limits_reads(), limits_reads, "{text}");
        let count = if text == LOCAL { 0 } else { 2 };
        assert_eq!(target.rate_limit.len(), count, "{text}");
    }
}

#[test]
fn what_does_not_go_with_the_type_of_target_is_refused() {
    let only = |text: String| {
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    };
    for (from, to, words) in [
        ("pool: images", "pool: ../etc", "no name of a storage pool"),
        ("pool: images", "pool: images, uri: xen:///system", "no address of a libvirt daemon"),
        ("pool: images", "pool: images, cpu: 'a b'", "not made of letters"),
        ("pool: images", "pool: images, cpu_features: [aes, \"a'b\"]", "not made of letters"),
        ("pool: images", "pool: images, uri: qemu+ssh://b/system, via: 'b b'", "no name of a site"),
        ("pool: images", "pool: images, apart: ['db*']", "VMs of one host cannot be apart"),
        (
            "pool: images",
            "pool: images, hosts: [{name: a, uri: 'qemu:///system'}, {name: a, uri: 'qemu:///system'}]",
            "is the name of another host, too",
        ),
        (
            "pool: images",
            "pool: images, via: b, hosts: [{name: a, uri: 'qemu:///system'}]",
            "it does not go with `hosts`",
        ),
        ("{name: a}", "{name: a, target_host: x}", "the target has no `hosts`"),
        ("{name: a}", "{name: a, target_folder: /vms}", "does not go with this type"),
        ("{name: a}", "{name: a, volumes: {Hard disk 1: '-x'}}", "is no name, path or key of a volume"),
        (
            "{name: a}",
            "{name: a, volumes: {Hard disk 1: ',overwrite'}}",
            "is no name, path or key of a volume",
        ),
        ("name: p", "name: p\nstorage: {ds1: /srv/fast}", "no name of a storage pool"),
        ("name: p", "name: p\nnetworks: {a: 'ovs:'}", "no name of a network device"),
    ] {
        let found = only(LOCAL.replace(from, to));
        assert!(found.contains(words), "{to}: {found}");
    }
    // Whether such a host's pools are shared with this one is found by asking it.
    for (from, to) in [
        ("pool: images", "pool: images, uri: qemu+ssh://b/system"),
        ("{name: a}", "{name: a, uri: qemu+tls://b/system}"),
        ("pool: images", "pool: images, hosts: [{name: a, uri: 'qemu://b/system'}]"),
    ] {
        Plan::parse(&LOCAL.replace(from, to)).unwrap();
    }
    for (from, to, words) in [
        ("name: p", "name: p\nnetworks: {a: 'ovs:br0'}", "only a target of the type libvirt"),
        ("{name: a}", "{name: a, networks: {a: 'direct:eth0'}}", "only a target of the type libvirt"),
        ("{name: a}", "{name: a, pool: fast}", "does not go with this type"),
        ("{name: a}", "{name: a, volumes: {Hard disk 1: 'unit:0:0:1'}}", "does not go with this type"),
        ("type: qemu", "type: libvrt", "is not one of: qemu, libvirt"),
    ] {
        let found = only(SMALL.replace(from, to));
        assert!(found.contains(words), "{to}: {found}");
    }
}

#[test]
fn the_example_of_a_cluster_says_everything_and_fits_the_schema() {
    let plan = Plan::parse(CLUSTER).unwrap();
    assert_eq!(plan.warnings, []);
    let kubevirt = plan.target.kubevirt().unwrap();
    assert_eq!((kubevirt.namespace.as_str(), kubevirt.size_unit_bytes), ("vms", 1 << 30));
    assert_eq!(kubevirt.site(), "kubevirt:prod/vms");
    for key in keys::KUBEVIRT.keys {
        assert!(CLUSTER.contains(&format!("{}:", key.name)), "the example lacks '{}'", key.name);
    }
    let validator = jsonschema::validator_for(&crate::schema()).unwrap();
    let as_json = |text: &str| to_json(&crate::node::parse(text).unwrap());
    assert!(validator.is_valid(&as_json(CLUSTER)));
    assert!(!validator.is_valid(&as_json(&CLUSTER.replace("namespace: vms", "folder: /vms"))));
}

#[test]
fn every_key_of_a_cluster_is_read_its_kind_checked_and_its_default_true() {
    let local = LOCAL.replace("type: libvirt, pool: images", "type: kubevirt, namespace: n, image: i");
    for key in keys::KUBEVIRT.keys {
        let value =
            if matches!(key.kind, Kind::TextList) { serde_json::json!(7) } else { serde_json::json!([[]]) };
        let found = Plan::parse(&with(CLUSTER, &["target", key.name], value)).unwrap_err();
        let written = format!("target.{}", key.name);
        assert!(found.iter().any(|it| it.path.starts_with(&written)), "{written}: {found:#?}");
        if !key.default.is_empty() {
            let said = with(&local, &["target", key.name], serde_json::Value::from(key.default));
            let silent = with(&local, &["target"], to_json_without(&said, &["target"], key.name));
            assert_eq!(without_places(&said), without_places(&silent), "{}", key.name);
        }
    }
}

#[test]
fn what_does_not_go_with_a_cluster_is_refused() {
    let local = LOCAL.replace("type: libvirt, pool: images", "type: kubevirt, namespace: n, image: i");
    for (from, to, words) in [
        ("namespace: n", "namespace: 'N n'", "no name in Kubernetes"),
        ("name: p", "name: p\nnetworks: {'*': br0}", "no bridge by its name"),
        ("{name: a}", "{name: a, networks: {'*': br0}}", "no bridge by its name"),
        ("{name: a}", "{name: a, pool: x}", "does not go with this type"),
        ("{name: a}", "{name: a, target_folder: /x}", "does not go with this type"),
    ] {
        let found = problems(&local.replace(from, to));
        assert!(found.iter().any(|it| it.contains(words)), "{to}: {found:#?}");
    }
    let found = problems(&LOCAL.replace("name: p", "name: p\nnetworks: {'*': 'pod:bridge'}"));
    assert!(found.iter().any(|it| it.contains("only a target of the type kubevirt")), "{found:#?}");
}

#[test]
fn a_vm_is_pinned_to_a_host_that_the_plan_has() {
    let hosts = "pool: images, hosts: [{name: a, uri: 'qemu:///system'}, {name: b, uri: 'qemu+ssh://b/system', via: b}]";
    let text = LOCAL.replace("pool: images", hosts);
    let pinned = Plan::parse(&text.replace("{name: a}]\n", "{name: a, target_host: b}]\n"));
    assert_eq!(pinned.unwrap().vms[0].overrides.target_host.as_deref(), Some("b"));
    for (over, words) in [
        ("target_host: c", "'c' is none of the target's hosts"),
        ("uri: 'qemu:///system'", "which have addresses of their own"),
    ] {
        let found = problems(&text.replace("{name: a}]\n", &format!("{{name: a, {over}}}]\n")));
        assert!(found.len() == 1 && found[0].contains(words), "{over}: {found:#?}");
    }
}

#[test]
fn ways_to_the_agents_of_a_cluster_are_read_also_by_an_old_name() {
    let local =
        LOCAL.replace("type: libvirt, pool: images", "type: kubevirt, namespace: n, image: i, reach: R");
    for (name, reach, service) in [
        ("auto", Reach::Auto, None),
        ("pod", Reach::Pod, None),
        ("port-forward", Reach::Forward, None),
        ("forward", Reach::Forward, None),
        ("node-port", Reach::NodePort, Some("NodePort")),
        ("load-balancer", Reach::LoadBalancer, Some("LoadBalancer")),
        ("route", Reach::Route, Some("ClusterIP")),
        ("upload", Reach::Upload, None),
    ] {
        let plan = Plan::parse(&local.replace("reach: R", &format!("reach: {name}"))).unwrap();
        let found = plan.target.kubevirt().unwrap().reach;
        assert_eq!((found, found.service()), (reach, service), "{name}");
    }
    let podless =
        local.replace("image: i, reach: R", "upload_url: 'https://cdi', upload_ca: /ca.pem, reach: upload");
    let plan = Plan::parse(&podless).unwrap();
    let kubevirt = plan.target.kubevirt().unwrap();
    assert_eq!(kubevirt.upload_url.as_deref(), Some("https://cdi"));
    assert_eq!(kubevirt.upload_ca.as_deref(), Some(std::path::Path::new("/ca.pem")));
    let found = problems(&podless.replace("reach: upload", "reach: auto"));
    assert!(found.len() == 1 && found[0].contains("'image' is missing"), "{found:#?}");
    let silent = Plan::parse(&local.replace(", reach: R", "")).unwrap();
    assert_eq!(silent.target.kubevirt().unwrap().reach, Reach::Auto);
}
