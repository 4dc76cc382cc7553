//! `drover tune`: what this host's kernel lacks for long, fast lines. Changes nothing.

use drover_link::host::{Setting, has_bbr, settings};
use serde_json::json;

use crate::cli::HostTuneArgs;
use crate::exit::{Exit, Failure};
use crate::out::line;

/// Runs `drover tune`.
pub fn run(args: &HostTuneArgs) -> Result<Exit, Failure> {
    let fill = args.rate.zip(args.rtt).map(|(rate, rtt)| (rate.bits_per_s() / 8, rtt));
    let all = settings(fill);
    let bbr = has_bbr();
    if args.json {
        crate::out::json(format_args!("{:#}", document(&all, bbr)));
    } else {
        text(&all, bbr);
    }
    Ok(Exit::Success)
}

fn document(all: &[Setting], bbr: bool) -> serde_json::Value {
    let setting = |it: &Setting| {
        json!({
            "name": it.name,
            "value": it.value,
            "wanted": it.wanted,
            "lacking": it.is_lacking(),
            "why": it.why,
        })
    };
    json!({ "bbr_loaded": bbr, "settings": all.iter().map(setting).collect::<Vec<_>>() })
}

fn text(all: &[Setting], bbr: bool) {
    let lacking: Vec<&Setting> = all.iter().filter(|it| it.is_lacking()).collect();
    if !bbr {
        line(
            "# BBR is not loaded: `modprobe tcp_bbr`, and the line tcp_bbr in /etc/modules-load.d/drover.conf",
        );
    }
    if lacking.is_empty() {
        return line("# nothing is lacking");
    }
    line("# /etc/sysctl.d/90-drover.conf; then: sysctl --system");
    for it in lacking {
        let value = if it.value.is_empty() { "not told by this kernel" } else { &it.value };
        line(format!("# {} (now: {value})", it.why));
        line(format!("{} = {}", it.name, it.wanted));
    }
}
