//! Which VMs of a provider `drover inventory` shows and `drover plan new` takes.

use clap::{Args, ValueEnum};
use drover_plan::{Selector, Wanted};
use drover_types::inventory::PowerState;
use drover_types::shell_word;
use drover_view::clean;

/// Each but the last may be given more than once: a VM fits any value of one, and all of those that are given.
#[derive(Clone, Debug, Default, Args)]
pub struct SelectArgs {
    /// Only VMs of this name or pattern (web*); this and the like may be given more than once
    #[arg(long = "vm", value_name = "NAME")]
    pub vms: Vec<String>,
    /// Only VMs in this folder of the source, or below it
    #[arg(long = "folder", value_name = "FOLDER")]
    pub folders: Vec<String>,
    /// Only VMs on hosts of this cluster
    #[arg(long = "cluster", value_name = "NAME")]
    pub clusters: Vec<String>,
    /// Only VMs on this host
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Only VMs with a disk in this datastore
    #[arg(long = "datastore", value_name = "NAME")]
    pub datastores: Vec<String>,
    /// Only VMs with this tag or pattern (env:prod, app:*); of several, any will do
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Only VMs that run, or are off
    #[arg(long, value_name = "STATE")]
    pub power: Option<PowerWord>,
}

/// A power state that VMs are taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PowerWord {
    /// They run
    On,
    /// They are off
    Off,
}

impl SelectArgs {
    /// The same as plans know it.
    pub fn wanted(&self) -> Wanted {
        let power = self.power.map(|word| match word {
            PowerWord::On => PowerState::On,
            PowerWord::Off => PowerState::Off,
        });
        let folders: Vec<String> = self.folders.iter().map(|it| it.trim_matches('/').to_string()).collect();
        Wanted::of_power(power)
            .named(&self.vms)
            .with(&folders, |folder| Selector { folder, ..Selector::default() })
            .with(&self.clusters, |cluster| Selector { cluster, ..Selector::default() })
            .with(&self.hosts, |host| Selector { host, ..Selector::default() })
            .with(&self.datastores, |datastore| Selector { datastore, ..Selector::default() })
            .with(&self.tags, |tag| Selector { tag, ..Selector::default() })
    }

    /// The options that ask for the same, for a shell; each with a blank before it.
    pub fn options(&self) -> String {
        let lists = [
            ("--vm", &self.vms),
            ("--folder", &self.folders),
            ("--cluster", &self.clusters),
            ("--host", &self.hosts),
            ("--datastore", &self.datastores),
            ("--tag", &self.tags),
        ];
        let option = |name: &str, value: &str| format!(" {name}={}", shell_word(&clean(value)));
        let of = |(name, values): (&str, &Vec<String>)| {
            values.iter().map(|value| option(name, value)).collect::<String>()
        };
        let power = self.power.map(|word| match word {
            PowerWord::On => " --power on",
            PowerWord::Off => " --power off",
        });
        lists.into_iter().map(of).collect::<String>() + power.unwrap_or_default()
    }

    /// Its words, for the name of a plan.
    pub fn words(&self) -> Vec<&str> {
        let lists = [&self.vms, &self.folders, &self.clusters, &self.hosts, &self.datastores, &self.tags];
        lists.into_iter().flatten().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_ask_for_the_same_again() {
        let own = |list: &[&str]| list.iter().map(|it| it.to_string()).collect::<Vec<_>>();
        let select = SelectArgs {
            vms: own(&["web*", "bob's", "-old"]),
            folders: own(&["test/new ones"]),
            tags: own(&["app:shop", "tier:db"]),
            power: Some(PowerWord::Off),
            ..SelectArgs::default()
        };
        assert_eq!(
            select.options(),
            r" --vm='web*' --vm='bob'\''s' --vm=-old --folder='test/new ones' --tag=app:shop --tag=tier:db --power off"
        );
        assert_eq!(SelectArgs::default().options(), "");
    }
}
