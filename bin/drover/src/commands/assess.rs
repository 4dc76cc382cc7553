//! `drover assess`.

use crate::cli::AssessArgs;
use crate::commands::inventory::{all_concerns, ask};
use crate::exit::{Exit, Failure};

/// Sums up what a provider has; changes nothing there.
pub fn run(args: &AssessArgs) -> Result<Exit, Failure> {
    let (inventory, warnings) = ask(&args.provider)?;
    warnings.iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let assessment = drover_forecast::assess(&inventory, &all_concerns(&inventory));
    if let Some(path) = &args.html {
        crate::out::page(path, &drover_view::assess_html(&assessment))?;
    } else if args.json {
        crate::out::json(format_args!("{:#}", drover_view::assess_json(&assessment)));
    } else {
        crate::out::print(&drover_view::assess_text(&assessment));
    }
    Ok(Exit::Success)
}
