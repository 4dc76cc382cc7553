use drover_engine::PlanReport;

/// The report as one HTML page that needs nothing else.
pub fn report_html(report: &PlanReport) -> String {
    crate::report_text(report)
}
