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
    for key in keys::LIBVIRT.keys.iter().chain(keys::SELECTION.keys.iter().filter(|key| key.name == "uri")) {
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
        (
            "pool: images",
            "pool: images, uri: qemu+ssh://b/system",
            "disks are written to pools of this one only",
        ),
        ("{name: a}", "{name: a, uri: qemu+tls://b/system}", "is on another host"),
        ("{name: a}", "{name: a, target_folder: /vms}", "does not go with this type"),
        ("name: p", "name: p\nstorage: {ds1: /srv/fast}", "no name of a storage pool"),
        ("name: p", "name: p\nnetworks: {a: 'ovs:'}", "no name of a network device"),
    ] {
        let found = only(LOCAL.replace(from, to));
        assert!(found.contains(words), "{to}: {found}");
    }
    for (from, to, words) in [
        ("name: p", "name: p\nnetworks: {a: 'ovs:br0'}", "only a target of the type libvirt"),
        ("{name: a}", "{name: a, networks: {a: 'direct:eth0'}}", "only a target of the type libvirt"),
        ("{name: a}", "{name: a, pool: fast}", "does not go with this type"),
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
