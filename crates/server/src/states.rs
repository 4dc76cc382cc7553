//! The states of VMs, from one list for the API and the page.

/// The same words as a constant of the API and as a module of the page.
macro_rules! states {
    ($($word:literal),+) => {
        /// In which VMs are, as the API names them, from the begin of a migration to its ends.
        pub const VM_STATES: &[&str] = &[$($word),+];

        /// The module of the page that has them.
        pub(crate) const PAGE_MODULE: &str = concat!("export const STATES = [", $("'", $word, "', ",)+ "];\n");
    };
}

states!["queued", "running", "done", "not_cleaned_up", "failed", "stopped", "skipped", "cancelled"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_description_have_the_states_of_the_api() {
        let list = VM_STATES.iter().map(|word| format!("'{word}', ")).collect::<String>();
        assert_eq!(PAGE_MODULE, format!("export const STATES = [{list}];\n"));
        let description: serde_json::Value = serde_json::from_str(crate::OPENAPI).unwrap();
        let parameters =
            description["paths"]["/v1/plans/{plan}/vms"]["get"]["parameters"].as_array().unwrap();
        let state = parameters.iter().find(|it| it["name"] == "state").unwrap();
        assert_eq!(state["schema"]["enum"], serde_json::json!(VM_STATES));
    }
}
