//! VMs that read disks of others.

use super::{Fields, Reader};
use crate::model::{PathChoice, Proxy};
use crate::problem::Problem;

impl Reader {
    pub(super) fn proxies(&mut self, data: &Fields<'_>, path: PathChoice) -> Vec<Proxy> {
        let proxies = self.list(data, "proxies", |reader, fields| {
            let site = reader.text(fields, "site");
            if let (Some(entry), Some(name)) = (fields.find("site"), &site) {
                reader.check_site(fields, entry, name);
            }
            Proxy {
                vm: reader.text(fields, "vm").unwrap_or_default().trim_matches('/').to_string(),
                site: site.unwrap_or_default(),
                hosts: reader.texts(fields, "hosts").unwrap_or_default(),
                at: fields.at,
                path: fields.path.clone(),
            }
        });
        let at = data.find("path").or_else(|| data.find("proxies")).map_or(data.at, |entry| entry.at);
        match path {
            PathChoice::HotAdd if proxies.is_empty() => {
                let problem =
                    Problem::error(data.path_of("path"), "hotadd reads by proxies, and there is none");
                self.problems
                    .push(problem.at(at).advise("name them with `proxies`; see docs/how-to/hot-add.md"));
            }
            PathChoice::Nfc | PathChoice::Https | PathChoice::Vddk if !proxies.is_empty() => {
                let problem = Problem::warning(data.path_of("proxies"), "with this `path` they are not used");
                self.problems.push(problem.at(at).advise("write `path: auto` or `path: hotadd`"));
            }
            _ => {}
        }
        proxies
    }
}
