use drover_engine::PlanReport;
use serde_json::Value;

/// The report as text.
pub fn report_text(report: &PlanReport) -> String {
    format!("plan {}\n", report.plan.name)
}

/// The report as JSON.
pub fn report_json(report: &PlanReport) -> Value {
    serde_json::to_value(report).unwrap_or_default()
}
