//! Who may do what.

use serde_json::json;

use crate::fake::Stage;

#[test]
fn roles_and_projects_decide_who_may_look_and_order() {
    let stage = Stage::new();
    let pause = json!({ "order": "pause" });
    let order = |who: &str, plan: &str| stage.post(who, &format!("/v1/plans/{plan}/orders"), &pause).status;
    assert_eq!([order("viewer", "one"), order("operator", "one"), order("admin", "one")], [403, 200, 200]);
    assert_eq!([order("web", "one"), order("web", "two")], [200, 404], "another project's plan is not there");
    let names = |who: &str| {
        let plans = stage.get(who, "/v1/plans").json();
        plans["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|plan| plan["name"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("viewer"), ["one", "two", "three"]);
    assert_eq!(names("web"), ["one", "three"]);
    assert_eq!(stage.get("web", "/v1/plans/two/vms").status, 404);
    assert_eq!(stage.get("web", "/v1/events?plan=two").status, 404);
    assert_eq!(stage.get("web", "/v1/live").json()["plans"].as_array().unwrap().len(), 1);
    assert_eq!(
        [stage.get("operator", "/v1/audit").status, stage.get("admin", "/v1/audit").status],
        [403, 200]
    );
    let other = json!({ "text": "plan", "project": "db" });
    assert_eq!(stage.post("web", "/v1/plans", &other).status, 403);
    assert_eq!(stage.done.lock().unwrap().orders.len(), 3);
}

#[test]
fn the_page_is_for_everybody_and_what_it_shows_is_not() {
    let closed = Stage::new();
    let page = closed.get("", "/");
    assert_eq!((page.status, page.content_type()), (200, "text/html"));
    for policy in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(page.head.contains(policy), "{}", page.head);
    }
    assert!(page.head.contains("x-content-type-options: nosniff"), "{}", page.head);
    assert_eq!(closed.get("", "/v1/plans").status, 401);
    assert!(closed.get("", "/v1/plans").head.contains("www-authenticate: bearer"));
    assert_eq!(closed.get("", "/metrics").status, 401);
    let open = Stage::with(|options| (options.anonymous_view, options.open_metrics) = (true, true), 1);
    assert_eq!(open.get("", "/v1/plans").status, 200);
    assert_eq!(open.get("", "/v1/about").json()["caller"]["role"], "viewer");
    assert_eq!(open.post("", "/v1/plans/one/orders", &json!({ "order": "pause" })).status, 401);
    assert_eq!(open.get("", "/v1/audit").status, 401);
    assert!(open.get("", "/metrics").body.contains("drover_plans{state=\"running\"} 2"));
}

#[test]
fn metrics_tell_rates_phases_and_what_is_waited_for() {
    let stage = Stage::new();
    let text = stage.get("viewer", "/metrics").body;
    for line in [
        "drover_vms_in_phase{plan=\"one\",phase=\"copy\"} 1",
        "drover_read_rate_bytes_per_second{plan=\"one\"} 1.5",
        "drover_disks_waiting{plan=\"two\",resource=\"source\"} 1",
        "drover_retries{plan=\"one\"} 0",
        "drover_host_vms{host=\"esx1.lab\"} 20",
        "drover_host_disks_max{host=\"esx1.lab\"} 7",
        "drover_disks_copied_max 200",
        "drover_vms_waiting{for=\"host_vms\"} 60",
        "drover_foreseen_end_timestamp_seconds{plan=\"one\",quantile=\"0.5\"} 1760000900",
        "drover_first_foreseen_end_timestamp_seconds{plan=\"one\",quantile=\"0.1\"} 1760000500",
        "drover_forecast_error_ratio{plan=\"one\"} -0.25\n",
        "drover_forecast_inside{plan=\"one\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert!(!text.contains("drover_forecast_inside{plan=\"two\"}"), "it is not done: {text}");
    let own = stage.get("web", "/metrics").body;
    assert!(own.contains("plan=\"one\"") && own.contains("drover_plans{state=\"running\"} 1"), "{own}");
    assert!(!own.contains("two"), "another project's plan is not there: {own}");
    assert!(!own.contains("esx1.lab") && !text.contains("host_disks_max{host=\"esx2.lab\"}"), "{own}");
    assert_eq!(
        [stage.get("web", "/v1/resources").status, stage.get("viewer", "/v1/resources").status],
        [403, 200]
    );
}

#[test]
fn tokens_that_cannot_be_read_are_told_with_their_cause_and_once_to_who_runs_the_daemon() {
    use std::os::unix::fs::PermissionsExt;
    let stage = Stage::new();
    let file = stage.folder.path().join("serve/tokens.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for _ in 0..2 {
        let answer = stage.get("viewer", "/v1/plans");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("chmod 600"), "{answer:?}");
    }
    assert_eq!(stage.done.lock().unwrap().warnings.len(), 1);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(stage.get("viewer", "/v1/plans").status, 200, "once it is mended");
}
