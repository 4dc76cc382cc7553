//! `drover live DOMAIN --to URI`: a libvirt domain moves from one daemon to another.

use drover_live::{Loads, Route};
use drover_qemu::Virsh;
use drover_qemu::live::{DomainOptions, Ends, LiveError, Place, passage};

use super::Opened;
use super::memory::RDMA;
use super::over::{DOMAIN_FOLDER, Over, Sites};
use super::route::Direct;
use crate::cli::{DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};

/// Where a domain is looked for if nobody says.
const HERE: &str = "qemu:///system";
/// Where libvirt's own programs let it be said.
const DEFAULT: &str = "LIBVIRT_DEFAULT_URI";
/// What libvirt counts rates in.
pub(super) const RATE_BYTES_MIN: u64 = 1 << 20;

/// Two daemons, and what leads to a site.
pub fn open(args: &LiveArgs, daemon: &str, sites: &Sites) -> Result<Opened, Failure> {
    let (mut options, name) = (options(args)?, name(args)?.to_string());
    let ends = ends(args, daemon)?;
    let (over, route) = over(args, &ends, &name, sites, &mut options)?;
    Ok(Opened { place: Place::Domain { ends, name, options: Box::new(options) }, over, route })
}

/// What leads to a site, where the domain still needs it, and which way was chosen where it may go past that. The source's daemon is
/// asked whether it sees the sockets, and the site whether they may lead where they are to; nothing is changed at either daemon.
fn over(
    args: &LiveArgs,
    ends: &Ends,
    name: &str,
    sites: &Sites,
    options: &mut DomainOptions,
) -> Result<(Option<Over>, Option<Route>), Failure> {
    let here = |virsh: &Virsh| is_of_this_host(virsh.uri()).then(super::load_here).flatten();
    options.wanted.loads = Loads { source: here(&ends.source), target: here(&ends.target) };
    let Some(site) = &args.via else { return Ok((None, None)) };
    let passage = passage(ends, name)
        .map_err(|cause| super::failure(&LiveError::of_look(cause), super::allowed(args)))?;
    if !passage.is_needed {
        return Ok((None, None));
    }
    // While this is there, what leads to the site stays.
    let shared = sites.named(args, site)?;
    options.wanted.loads.target = shared.load();
    let route = match Direct::wanted(args)? {
        None => None,
        Some(direct) => {
            let route = match passage.waits {
                true if is_here(ends)? => sites.route(&shared, &direct),
                true => direct.known(
                    false,
                    "its source's daemon is on another host, from which nothing can be measured",
                ),
                // How it was begun libvirt does not tell.
                false if args.direct_plain => {
                    direct.known(true, "it is in post-copy: a line that has to be made anew is direct")
                }
                false => direct
                    .known(false, "it is in post-copy: a line that has to be made anew is over the link"),
            };
            if route.is_direct {
                (options.uri, options.disks_port) = (Some(memory_at(&direct.memory())), direct.disks_port());
                return Ok((None, Some(route)));
            }
            // The link encrypts.
            options.tls = None;
            Some(route)
        }
    };
    let over = Over::open_for_domain(args, site, sites, &passage)?;
    let is_seen = ends.source.sees(over.memory_here());
    if !is_seen.map_err(|error| Failure::new(Exit::Source, error.chain()))? {
        let what = format!(
            "the source's daemon ({}) does not see {}: its QEMU could not connect to the link",
            ends.source.uri(),
            over.memory_here().display()
        );
        return Err(Failure::new(Exit::Plan, what)
            .advise("run drover on the source's host, with that host's files: --via begins there"));
    }
    over.ask_if(passage.waits)?;
    options.wanted.carried = Some(over.carried());
    Ok((Some(over), route))
}

/// Whether the source's daemon has this host's files, so that what is measured from here is measured from there.
fn is_here(ends: &Ends) -> Result<bool, Failure> {
    // Where that cannot be written, drover could not make sockets for the link either, and says so then.
    let Ok(file) = tempfile::Builder::new().prefix("drover-look-").tempfile_in(DOMAIN_FOLDER) else {
        return Ok(false);
    };
    ends.source.sees(file.path()).map_err(|error| Failure::new(Exit::Source, error.chain()))
}

fn ends(args: &LiveArgs, daemon: &str) -> Result<Ends, Failure> {
    let ends = Ends { source: Virsh::new(source(args)), target: Virsh::new(daemon) };
    for (virsh, exit) in [(&ends.source, Exit::Source), (&ends.target, Exit::Target)] {
        virsh.reach().map_err(|error| {
            let advice = error.advice().unwrap_or_else(|| {
                format!("try `virsh -c {} list`: it must work without asking for anything", virsh.uri())
            });
            Failure::new(exit, error.chain()).advise(advice)
        })?;
    }
    Ok(ends)
}

/// Address of the daemon that has it.
pub(super) fn source(args: &LiveArgs) -> String {
    let default = || std::env::var(DEFAULT).ok().filter(|uri| !uri.is_empty());
    args.connect.clone().or_else(default).unwrap_or_else(|| HERE.to_string())
}

fn name(args: &LiveArgs) -> Result<&str, Failure> {
    let name = args.source.to_str().filter(|name| !name.is_empty() && !name.contains('/'));
    name.ok_or_else(|| {
        let what = format!(
            "{} is no name of a domain: where --to is a libvirt daemon, what moves is a domain of libvirt",
            args.source.display()
        );
        Failure::new(Exit::Usage, what).advise("libvirt would not know of a guest that came from elsewhere")
    })
}

fn options(args: &LiveArgs) -> Result<DomainOptions, Failure> {
    let by_rdma = args.uri.as_ref().is_some_and(|uri| uri.starts_with(RDMA));
    let unfit = [
        (args.nbd.is_some() && args.via.is_none(), "--nbd"),
        (args.assume_shared, "--assume-shared"),
        (by_rdma, "--uri rdma:"),
        (args.memory.given().is_some(), args.memory.given().unwrap_or_default()),
    ];
    if let Some((_, option)) = unfit.iter().find(|(is_given, _)| *is_given) {
        let what = format!("{option} is not for domains of libvirt (--to is a libvirt daemon)");
        return Err(Failure::new(Exit::Usage, what));
    }
    if args.rate_max.is_some_and(|rate| rate.bits_per_s() / 8 < RATE_BYTES_MIN) {
        return Err(Failure::new(
            Exit::Usage,
            "--rate-max: libvirt counts in MiB a second, 8.4m is the least",
        ));
    }
    let tls = args.memory.tls.by_libvirt.then(|| args.memory.tls.tls_hostname.clone().unwrap_or_default());
    Direct::wanted(args)?;
    if args.via.is_some() && args.or_direct.is_none() && tls.as_deref() == Some("") {
        let what = "--tls: over a link the source's QEMU connects to a socket here, which is no name in a certificate";
        return Err(Failure::new(Exit::Usage, what).advise(
            "--tls-hostname NAME, as in the target's certificate; or leave --tls out: the link encrypts",
        ));
    }
    Ok(DomainOptions {
        wanted: super::wanted(args),
        looked: None,
        copies_disks: args.disks == DisksArg::Mirror,
        uri: args.uri.as_deref().map(memory_at),
        disks_port: None,
        p2p: args.p2p,
        tls,
    })
}

/// Whether a daemon's address names no host: `qemu:///system`, `qemu+unix:///system?socket=...`.
fn is_of_this_host(uri: &str) -> bool {
    uri.split_once("://").is_some_and(|(_, rest)| rest.starts_with('/'))
}

/// In libvirt's form, which wants two slashes, and no port where it is to choose one.
fn memory_at(uri: &str) -> String {
    match (uri.strip_prefix("tcp:"), uri.strip_prefix("unix:")) {
        (Some(place), _) => format!("tcp://{}", place.strip_suffix(":0").unwrap_or(place)),
        (None, Some(path)) => format!("unix://{path}"),
        (None, None) => uri.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::memory_at;

    #[test]
    fn places_for_memory_in_the_form_of_libvirt() {
        assert_eq!(memory_at("tcp:10.0.0.2:0"), "tcp://10.0.0.2");
        assert_eq!(memory_at("tcp:[::1]:4444"), "tcp://[::1]:4444");
        assert_eq!(memory_at("unix:/run/x.sock"), "unix:///run/x.sock");
    }
}
