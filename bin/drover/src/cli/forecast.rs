//! Arguments of `assess`, `forecast`, `plan waves` and `simulate`.

use std::path::PathBuf;

use clap::Args;
use drover_types::Window;

use super::ProviderArgs;

#[derive(Debug, Args)]
pub struct AssessArgs {
    #[command(flatten)]
    pub provider: ProviderArgs,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    #[command(flatten)]
    pub form: FormArgs,
}

#[derive(Debug, Args)]
pub struct ForecastArgs {
    /// Plan files, run at the same time
    #[arg(required = true)]
    pub plans: Vec<PathBuf>,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    #[command(flatten)]
    pub form: FormArgs,
}

/// In which form a document is given; text if nothing is said.
#[derive(Debug, Args)]
pub struct FormArgs {
    /// Write one self-contained HTML page, with its charts, to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl FormArgs {
    /// Whether it is for people, on the terminal.
    pub fn is_text(&self) -> bool {
        self.html.is_none() && !self.json
    }
}

#[derive(Debug, Args)]
pub struct PlanWavesArgs {
    /// Plan file
    pub plan: PathBuf,
    /// Chance that each wave fits its window, in percent
    #[arg(long, default_value_t = 90, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(50..=99))]
    pub chance: u8,
    /// Keep VMs together that have the same tag of this category; without it, and where there is none, those of a folder
    #[arg(long, value_name = "CATEGORY")]
    pub tag: Option<String>,
    /// The first window is not before this moment: 2026-12-01T00:00:00Z [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub first: Option<i64>,
    /// Write the waves to this file, as keys of a plan
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long, requires = "output")]
    pub force: bool,
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn moment(text: &str) -> Result<i64, &'static str> {
    drover_plan::parse_moment(text).ok_or("it is no moment such as 2026-12-01T00:00:00Z")
}

/// What to take instead of what is planned, measured or assumed.
#[derive(Clone, Debug, Default, Args)]
pub struct WhatIfArgs {
    /// Spread the VMs over so many hosts, whichever they are on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub hosts: Option<u32>,
    /// Rate of the line to the target: 10g, 500m (bits a second), 100MiB
    #[arg(long, value_name = "RATE", value_parser = drover_types::units::byte_rate)]
    pub link: Option<u64>,
    /// VMs of one host at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub in_flight: Option<u32>,
    /// Share of the data that changes: 2%/h, 10%/d
    #[arg(long, value_name = "SHARE", value_parser = drover_forecast::churn_of)]
    pub churn: Option<f64>,
    /// VMs begin in this window only, whatever those of their waves: 22:00-06:00 (UTC), "Sat 22:00-06:00 Europe/Berlin"; may be given several times
    #[arg(long)]
    pub window: Vec<Window>,
    /// For the draws: the same number gives the same forecast of the same fleet
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Folder of drover's state, whose earlier runs tell rates [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
