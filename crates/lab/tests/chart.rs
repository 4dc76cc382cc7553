//! The Helm chart makes what the plain manifests make.
#![allow(clippy::unwrap_used)]

use drover_lab::Cluster;
use drover_lab::chart::{render, render_where, values};
use drover_lab::workspace;

const MONITORING: &str = "monitoring.coreos.com/v1";

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace().join("deploy").join(path)).unwrap()
}

#[test]
fn the_operator_of_the_chart_is_that_of_the_plain_manifest() {
    let plain = read("operator.yaml");
    let (_, plain) = plain.split_once("\napiVersion").unwrap();
    let rendered = render("operator.yaml", &values().unwrap(), "vms").unwrap();
    assert_eq!(rendered, format!("apiVersion{plain}"));
}

#[test]
fn each_value_is_rendered() {
    let mut base = values().unwrap();
    // Without it the other values of the converter count for nothing.
    base.insert("converterImage".into(), "converter:1".into());
    for name in base.clone().into_keys() {
        let mut changed = base.clone();
        changed.insert(name.clone(), "something-else".into());
        let all = ["operator.yaml", "servicemonitor.yaml"];
        let of = |values| all.map(|it| render_where(it, values, "vms", &[MONITORING]).unwrap());
        assert_ne!(of(&changed), of(&base), "{name}");
    }
}

#[test]
fn figures_are_followed_where_the_prometheus_operator_is_or_that_is_asked_for() {
    let mut values = values().unwrap();
    let template = "servicemonitor.yaml";
    assert_eq!(render(template, &values, "vms").unwrap().trim(), "", "a cluster without it would refuse it");
    let found = render_where(template, &values, "vms", &[MONITORING]).unwrap();
    values.insert("serviceMonitor".into(), "false".into());
    assert_eq!(render_where(template, &values, "vms", &[MONITORING]).unwrap().trim(), "");
    values.insert("serviceMonitor".into(), "true".into());
    assert_eq!(render(template, &values, "vms").unwrap(), found);
    let plain = read("servicemonitor.yaml");
    let (_, plain) = plain.split_once("\napiVersion").unwrap();
    let rendered = render("servicemonitor.yaml", &values, "vms").unwrap();
    assert_eq!(rendered.trim(), format!("apiVersion{plain}").trim());
    // It finds the Service, which finds the pods.
    let operator = read("operator.yaml");
    let label = "app.kubernetes.io/name: drover-operator";
    assert!(rendered.contains(&format!("matchLabels: {{{label}}}")));
    assert!(operator.contains(&format!("  name: drover-operator-metrics\n  labels: {{{label}}}\n")));
    assert!(operator.contains(&format!("  selector: {{{label}}}\n")));
}

#[test]
fn the_bindings_are_of_roles_and_accounts_that_there_are() {
    let rendered = render("vmlocks.yaml", &values().unwrap(), "my-vms").unwrap();
    for part in ["operator", "worker"] {
        assert!(rendered.contains(&format!("metadata: {{name: drover-{part}-my-vms}}")), "{rendered}");
        let account = format!("name: drover-{part}, namespace: my-vms}}]");
        assert!(rendered.contains(&account), "{rendered}");
        let role = format!("name: drover-{part}-vmlocks}}");
        assert!(rendered.contains(&role) && read("crds.yaml").contains(&format!("{{{role}")), "{role}");
        assert!(
            read("operator.yaml")
                .contains(&format!("kind: ServiceAccount\nmetadata: {{name: drover-{part}}}"))
        );
        // The plain way says the same by a command.
        let page = std::fs::read_to_string(workspace().join("docs/how-to/operator.md")).unwrap();
        let command = format!(
            "kubectl create clusterrolebinding drover-{part}-vms --clusterrole=drover-{part}-vmlocks --serviceaccount=vms:drover-{part}"
        );
        assert!(page.contains(&command), "{command}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = read("chart/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    for key in ["version", "appVersion"] {
        assert!(chart.contains(&format!("\n{key}: {version}\n")), "{key} is not {version}");
    }
    assert!(values().unwrap()["image"].ends_with(&format!(":{version}")));
}

#[test]
fn the_image_with_a_converter_has_the_packages_of_the_labs() {
    let words = |text: &str, begin: &str, end: &str| -> Vec<String> {
        let (_, rest) = text.split_once(begin).unwrap();
        let list = rest.split_once(end).unwrap().0;
        list.split([',', ' ']).filter(|it| !it.is_empty()).map(str::to_string).collect()
    };
    let lab = std::fs::read_to_string(workspace().join("scripts/get-v2v")).unwrap();
    let image = read("Containerfile.convert");
    assert_eq!(
        words(&image, "apt-get install -y --no-install-recommends ", " &&"),
        words(&lab, "--include=", " \\\n")
    );
    assert!(image.contains(&format!("drover:{}", env!("CARGO_PKG_VERSION"))));
}

/// What this project knows of the CRD of the Prometheus operator, written by hand: the true one cannot be had here, and has more.
const SERVICE_MONITORS: &str = "
required: [spec]
properties:
  spec:
    type: object
    required: [endpoints, selector]
    properties:
      selector:
        type: object
        properties:
          matchLabels: {type: object, additionalProperties: {type: string}}
          matchExpressions:
            type: array
            items:
              type: object
              required: [key, operator]
              properties: {key: {type: string}, operator: {type: string}, values: {type: array, items: {type: string}}}
      endpoints:
        type: array
        items:
          type: object
          properties: {port: {type: string}, path: {type: string}, scheme: {type: string}, interval: {type: string}}
";

#[test]
fn an_api_server_takes_the_service_monitor_by_a_schema_of_what_is_known_of_it() {
    let folder = tempfile::Builder::new().prefix("sm-").tempdir().unwrap();
    let Some(cluster) = Cluster::start_api(folder.path()).unwrap() else { return };
    cluster
        .install_known("servicemonitors.monitoring.coreos.com", "ServiceMonitor", SERVICE_MONITORS)
        .unwrap();
    let monitor = render_where("servicemonitor.yaml", &values().unwrap(), "default", &[MONITORING]).unwrap();
    cluster.apply(monitor.trim(), "default").unwrap();
    let there = "/apis/monitoring.coreos.com/v1/namespaces/default/servicemonitors/drover-operator";
    let made = cluster.get(there).unwrap().unwrap();
    assert_eq!(made["spec"]["endpoints"][0]["port"], "metrics", "{made:#}");
    let wrong = monitor.replace("port: metrics", "prot: metrics");
    assert!(cluster.apply(wrong.trim(), "default").is_err(), "it takes what it does not know");
}
