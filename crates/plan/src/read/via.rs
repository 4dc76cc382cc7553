//! What is read of a target at another site.

use drover_types::DayLimit;

use super::{Fields, Reader};
use crate::node::Entry;
use crate::problem::Problem;

/// A site's name is not longer.
const NAME_CHARS_MAX: usize = 64;

impl Reader {
    /// The site, and what does not go with one.
    pub(super) fn via(&mut self, fields: &Fields<'_>) -> Option<String> {
        let entry = fields.find("via")?;
        let name = self.text(fields, "via")?;
        self.check_site(fields, entry, &name);
        self.check_folder(fields);
        for key in ["uefi", "qcow2"] {
            if let Some(entry) = fields.find(key) {
                let (text, advice) = match key {
                    "uefi" => (
                        "firmware files cannot be named with `via`",
                        "leave it out: the site's agent finds its own",
                    ),
                    _ => ("an agent writes raw images", "leave it out"),
                };
                self.problems
                    .push(Problem::error(fields.path_of(key), text).at(entry.node.at).advise(advice));
            }
        }
        Some(name)
    }

    /// The site of a libvirt daemon's host.
    pub(super) fn daemons_site(&mut self, fields: &Fields<'_>) -> Option<String> {
        let entry = fields.find("via")?;
        let name = self.text(fields, "via")?;
        self.check_site(fields, entry, &name);
        Some(name)
    }

    pub(super) fn check_site(&mut self, fields: &Fields<'_>, entry: &Entry, name: &str) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || name.len() > NAME_CHARS_MAX || !name.chars().all(fits) {
            self.wrong(fields, entry, "is no name of a site: see `drover agent list`");
        }
    }

    /// The folder begins with a pool.
    fn check_folder(&mut self, fields: &Fields<'_>) {
        let Some(entry) = fields.find("folder") else { return };
        let Some(text) = self.text(fields, "folder") else { return };
        let is_sound = |part: &str| !part.is_empty() && !part.starts_with('.');
        if !text.trim_matches('/').split('/').all(is_sound) {
            self.wrong(fields, entry, "is not POOL or POOL/FOLDER of the site's agent");
        }
    }

    pub(super) fn rate_limit(&mut self, fields: &Fields<'_>) -> Vec<DayLimit> {
        let Some(entry) = fields.find("rate_limit") else { return Vec::new() };
        // Where there is a choice: workers of a cluster are always reached over a link.
        let has_hosts = fields.table.key("hosts").is_some() && fields.find("hosts").is_some();
        let stays_here = fields.table.key("via").is_some() && fields.find("via").is_none() && !has_hosts;
        if stays_here && self.is_appliance {
            let text =
                "it limits what comes or goes over the network, and an appliance is read where it lies";
            let problem = Problem::error(fields.path_of("rate_limit"), text);
            self.problems.push(problem.at(entry.at).advise("leave it out"));
        }
        let mut limits = Vec::new();
        for text in self.texts(fields, "rate_limit").unwrap_or_default() {
            match text.parse::<DayLimit>() {
                Ok(limit) => limits.push(limit),
                Err(why) => self.problems.push(
                    Problem::error(fields.path_of("rate_limit"), why)
                        .at(entry.node.at)
                        .advise("write a rate such as 500m, 08:00-18:00=200m (UTC) or Mon-Fri 08:00-18:00 Europe/Berlin=200m"),
                ),
            }
        }
        limits
    }
}
