//! `drover serve`: the daemon, its tokens and its audit log.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_engine::{Store, chain};
use drover_landing::PlanPolicy;
use drover_mover::{MemoryBudget, TransferOptions};
use drover_plan::settings;
use drover_schedule::Budgets;
use drover_server::{
    Bounds, EventHub, KeyPair, OidcOptions, Role, Server, ServerOptions, TokenFile, TokenFileError,
};
use drover_source::SharedReads;
use drover_types::{Bytes, DayLimit};
use drover_view::{Align, Table, local_time};
use serde_json::json;

use crate::cli::{
    AuditArgs, RoleArg, ServeArgs, ServeCommand, TokenAddArgs, TokenCommand, TokenListArgs, TokenNamedArgs,
};
use crate::exit::{Exit, Failure};
use crate::files::read_text;
use crate::own::DaemonLock;
use crate::serve::{Daemon, OidcSettings};
use crate::signals::stop_on_signals;
use crate::state::state_folder;

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8420);
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The most that a setting of `limits` may be.
const LIMIT_MAX: u32 = 10_000;
/// As little as a plan may have.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// How often to look whether it is time to end.
const LOOK: Duration = Duration::from_millis(50);

/// Serves until it is told to stop, or does what its subcommands say.
pub fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    match &args.command {
        None => serve(args),
        Some(ServeCommand::Token { command: TokenCommand::Add(args) }) => add(args),
        Some(ServeCommand::Token { command: TokenCommand::List(args) }) => list(args),
        Some(ServeCommand::Token { command: TokenCommand::Remove(args) }) => remove(args),
        Some(ServeCommand::Audit(args)) => audit(args),
    }
}

fn serve(args: &ServeArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let config = args.config.as_deref().map_or(Ok(Config::default()), Config::read)?;
    let folder = std::path::absolute(state_folder(args.state.as_deref()))
        .map_err(|error| Failure::new(Exit::Internal, format!("the state folder: {error}")))?;
    let lock = DaemonLock::take(&folder)?;
    let bounds = Bounds::default();
    let hub = EventHub::new(bounds.event_queue);
    let memory = config.memory.map_or_else(|| TransferOptions::default().memory, MemoryBudget::new);
    let limits: Vec<DayLimit> = args.rate_limit.iter().map(|limit| limit.0.clone()).collect();
    let reads = (!limits.is_empty()).then(|| SharedReads::new(limits, |words| crate::out::say(words)));
    let daemon = Daemon::open(&folder, config.policy, (config.budgets, memory, reads), hub.clone())?;
    let options = ServerOptions {
        listen: args.listen.or(config.listen).unwrap_or(LISTEN),
        tls: config.tls,
        tokens: TokenFile::of(&folder),
        oidc: config.oidc,
        anonymous_view: config.anonymous_view,
        open_metrics: config.open_metrics,
        bounds,
    };
    let names = options.tokens.read().map_err(|error| token_failure(&error))?.len();
    // Orders wait until the plans of the last daemon are at work.
    let orders = daemon.orders();
    let server = Server::start(&options, hub, Arc::new(daemon.clone())).map_err(|error| {
        Failure::new(Exit::Connection, chain(&error)).advise("choose another address with --listen")
    })?;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", server.address());
    lock.tell(&url)?;
    let went_on = daemon.go_on(&orders)?;
    drop(orders);
    tell(args, &options, &url, names, &went_on);
    while !stop.is_set() {
        std::thread::sleep(LOOK);
    }
    crate::out::say("stopping: plans flush and stop, and go on when the daemon is started again");
    daemon.end();
    drop(server);
    Ok(Exit::Success)
}

/// Says where it listens and what should be known.
fn tell(args: &ServeArgs, options: &ServerOptions, url: &str, tokens: usize, went_on: &[String]) {
    if args.json {
        crate::out::json(
            json!({ "event": "listening", "url": url, "pid": std::process::id(), "went_on": went_on }),
        );
        return;
    }
    crate::out::say(format_args!("drover serve: {url}"));
    if !went_on.is_empty() {
        crate::out::say(format_args!("goes on with: {}", went_on.join(", ")));
    }
    if let Some(oidc) = &options.oidc {
        crate::out::say(format_args!("takes JWTs of {} for {}", oidc.issuer, oidc.audience));
    }
    if tokens == 0 && options.oidc.is_none() {
        crate::out::say(
            "no token lets anybody in: make one with `drover serve token add NAME --role operator`",
        );
    }
    if options.tls.is_none() && !options.listen.ip().is_loopback() {
        crate::out::say(
            "warning: tokens go over the network in the clear; set tls.certificate and tls.key, or listen on 127.0.0.1 behind a proxy",
        );
    }
}

/// What a file of settings says.
#[derive(Debug, Default)]
struct Config {
    listen: Option<SocketAddr>,
    tls: Option<KeyPair>,
    /// The issuer of JWTs.
    oidc: Option<OidcOptions>,
    anonymous_view: bool,
    open_metrics: bool,
    policy: PlanPolicy,
    /// What all plans share.
    budgets: Budgets,
    /// Bytes of buffers of all their transfers together; absent: as many as one plan has.
    memory: Option<u64>,
}

impl Config {
    fn read(path: &Path) -> Result<Config, Failure> {
        let failed = |why: String| Failure::new(Exit::Usage, format!("settings {}: {why}", path.display()));
        let text = read_text(path, CONFIG_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
        Config::parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(failed)
    }

    /// Paths are relative to the folder of the file.
    fn parse(text: &str, folder: &Path) -> Result<Config, String> {
        let mut config = Config::default();
        let (mut certificate, mut key) = (None, None);
        let mut oidc = OidcSettings::default();
        for setting in settings(text).map_err(|problem| problem.to_string())? {
            let wrong = |what: &str| format!("line {}: {}: {what}", setting.at.line, setting.key);
            let switch = || match setting.value.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(wrong("true or false")),
            };
            let number = || match setting.value.parse() {
                Ok(number) if (1..=LIMIT_MAX).contains(&number) => Ok(number),
                _ => Err(wrong("a number from 1 to 10000 is wanted")),
            };
            match setting.key.as_str() {
                "listen" => {
                    config.listen =
                        Some(setting.value.parse().map_err(|_| wrong("an ADDRESS:PORT is wanted"))?)
                }
                name if let Some(name) = name.strip_prefix("oidc.") => {
                    oidc.take(name, setting.value, folder).map_err(|what| wrong(&what))?
                }
                "tls.certificate" => certificate = Some(folder.join(&setting.value)),
                "tls.key" => key = Some(folder.join(&setting.value)),
                "anonymous_view" => config.anonymous_view = switch()?,
                "open_metrics" => config.open_metrics = switch()?,
                "limits.vms_per_host" => config.budgets.vms_per_host = number()?,
                "limits.disks" => config.budgets.disks = number()?,
                "limits.cutovers" => config.budgets.cutovers = number()?,
                "limits.memory" => {
                    let bytes = setting.value.parse().ok().map(|Bytes(bytes)| bytes);
                    let bytes = bytes.filter(|bytes| *bytes >= MEMORY_BYTES_MIN);
                    config.memory = Some(bytes.ok_or_else(|| wrong("a size of 1MiB and more is wanted"))?);
                }
                "plan_programs" => config.policy.programs = switch()?,
                "targets" if setting.value.starts_with('/') => {
                    config.policy.targets.push(setting.value.into())
                }
                "targets" => return Err(wrong("an absolute folder is wanted")),
                _ => {
                    return Err(wrong(
                        "there is no such setting; listen, tls.certificate, tls.key, oidc, anonymous_view, open_metrics, targets, plan_programs, limits.vms_per_host, limits.disks, limits.cutovers, limits.memory",
                    ));
                }
            }
        }
        config.oidc = oidc.end()?;
        config.tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(KeyPair { certificate, key }),
            (None, None) => None,
            _ => return Err("tls takes both certificate and key".into()),
        };
        Ok(config)
    }
}

fn token_failure(error: &TokenFileError) -> Failure {
    Failure::new(Exit::Usage, error.to_string())
}

fn tokens(args: &TokenListArgs) -> TokenFile {
    TokenFile::of(&state_folder(args.state.as_deref()))
}

fn add(args: &TokenAddArgs) -> Result<Exit, Failure> {
    let role = match args.role {
        RoleArg::Viewer => Role::Viewer,
        RoleArg::Operator => Role::Operator,
        RoleArg::Admin => Role::Admin,
    };
    let token = tokens(&args.of)
        .add(&args.name, role, args.project.as_deref())
        .map_err(|error| token_failure(&error))?;
    if args.of.json {
        crate::out::json(json!({ "name": args.name, "role": role, "project": args.project, "token": token }));
    } else {
        crate::out::line(token);
        crate::out::say("this is shown once; a running daemon knows it at once");
    }
    Ok(Exit::Success)
}

fn list(args: &TokenListArgs) -> Result<Exit, Failure> {
    let rows = tokens(args).read().map_err(|error| token_failure(&error))?;
    if args.json {
        let row = |row: &drover_server::TokenRow| json!({ "name": row.name, "role": row.role, "project": row.project, "made_ms": row.made_ms });
        crate::out::json(json!({ "tokens": rows.iter().map(row).collect::<Vec<_>>() }));
        return Ok(Exit::Success);
    }
    let columns =
        [("NAME", Align::Left), ("ROLE", Align::Left), ("PROJECT", Align::Left), ("MADE", Align::Left)];
    let mut table = Table::new(&columns);
    for row in rows {
        let project = row.project.unwrap_or_else(|| "all".into());
        table.row([row.name, row.role.word().into(), project, local_time(row.made_ms)]);
    }
    crate::out::print(&table.to_string());
    Ok(Exit::Success)
}

fn remove(args: &TokenNamedArgs) -> Result<Exit, Failure> {
    match tokens(&args.of).remove(&args.name).map_err(|error| token_failure(&error))? {
        true => Ok(Exit::Success),
        false => Err(Failure::new(Exit::Usage, format!("there is no token '{}'", args.name))
            .advise("see `drover serve token list`")),
    }
}

fn audit(args: &AuditArgs) -> Result<Exit, Failure> {
    let store = Store::open_to_read(&state_folder(args.of.state.as_deref()))?;
    let rows = store.orders(None, args.limit)?;
    if args.of.json {
        let row = |row: &drover_engine::OrderRow| {
            json!({
                "id": row.id, "at_ms": row.at_ms, "who": row.who, "role": row.role, "from": row.origin, "project": row.project,
                "plan": row.plan, "vm": row.vm, "action": row.action, "before": row.before, "after": row.after,
                "outcome": row.outcome,
            })
        };
        crate::out::json(json!({ "orders": rows.iter().map(row).collect::<Vec<_>>() }));
        return Ok(Exit::Success);
    }
    let columns = ["WHEN", "WHO", "ROLE", "FROM", "ORDER", "PLAN", "VM", "BEFORE", "AFTER", "OUTCOME"];
    let mut table = Table::new(&columns.map(|column| (column, Align::Left)));
    for row in rows {
        let or = |text: Option<String>| text.unwrap_or_else(|| "--".into());
        table.row([
            local_time(row.at_ms),
            row.who,
            row.role,
            row.origin,
            row.action,
            or(row.plan),
            or(row.vm),
            or(row.before),
            or(row.after),
            row.outcome,
        ]);
    }
    crate::out::print(&table.to_string());
    Ok(Exit::Success)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn groups_of_an_issuer_have_roles_for_all_projects_or_for_one() {
        let text = "oidc:\n  issuer: https://id.lab/ops\n  audience: drover\n  roles:\n    viewer: [staff, guests]\n  projects:\n    web.shop: {operator: web}\n";
        let oidc = Config::parse(text, Path::new("")).unwrap().oidc.unwrap();
        let roles: Vec<_> = oidc
            .roles
            .iter()
            .map(|(value, grant)| (value.as_str(), grant.role, grant.project.as_deref()))
            .collect();
        assert_eq!(
            roles,
            [
                ("staff", Role::Viewer, None),
                ("guests", Role::Viewer, None),
                ("web", Role::Operator, Some("web.shop"))
            ]
        );
        assert_eq!((oidc.audience.as_str(), oidc.claim.as_str()), ("drover", "groups"));
        assert_eq!(oidc.client, None, "nobody is sent to a client that was not named");
    }

    #[test]
    fn the_page_logs_in_as_the_client_of_the_settings() {
        let text = "oidc:\n  issuer: https://id.lab/ops\n  audience: drover\n  client_id: page\n  scopes: [groups, openid]\n  roles: {viewer: staff}\n";
        let client = Config::parse(text, Path::new("")).unwrap().oidc.unwrap().client.unwrap();
        assert_eq!((client.id.as_str(), client.scope.as_str()), ("page", "openid groups"));
    }

    #[test]
    fn settings_are_read_and_what_is_none_is_refused_with_its_line() {
        let text = "listen: 127.0.0.1:1\ntls:\n  certificate: c.pem\n  key: /k.pem\nanonymous_view: true\ntargets: [/vms]\nlimits: {disks: 40, cutovers: 5, memory: 64MiB}\n";
        let config = Config::parse(text, Path::new("/etc/drover")).unwrap();
        assert_eq!(config.tls.unwrap().certificate, Path::new("/etc/drover/c.pem"));
        assert!(config.anonymous_view && !config.open_metrics);
        assert_eq!(config.policy.targets, [PathBuf::from("/vms")]);
        assert_eq!((config.budgets.disks, config.budgets.cutovers, config.budgets.vms_per_host), (40, 5, 20));
        assert_eq!(config.memory, Some(64 << 20));
        assert!(config.oidc.is_none());
        assert!(!config.policy.programs, "plans name nothing that is loaded unless that is allowed");
        for (text, why) in [
            ("listen: x", "line 1: listen: an ADDRESS:PORT is wanted"),
            ("\nopen_metric: true", "line 2: open_metric: there is no such setting"),
            ("limits: {memory: 1KiB}", "line 1: limits.memory: a size of 1MiB"),
            ("open_metrics: yes", "line 1: open_metrics: true or false"),
            ("tls:\n  key: k", "tls takes both"),
            ("targets: [vms]", "line 1: targets: an absolute folder"),
            ("oidc:\n  issuer: http://id.lab", "line 2: oidc.issuer: it is not https"),
            ("oidc:\n  issuer: https://id.lab", "oidc: nobody has a role"),
            ("oidc: {issuer: https://id.lab, roles: {viewer: [a]}}", "oidc.audience is missing"),
            ("oidc:\n  roles: {root: a}", "line 2: oidc.roles.root: a role is viewer, operator or admin"),
            ("oidc:\n  secret: a", "line 2: oidc.secret: there is no such setting; issuer,"),
            ("oidc:\n  scopes: ['a b']", "line 2: oidc.scopes: a scope is"),
            (
                "oidc: {issuer: https://id.lab, audience: a, scopes: [b], roles: {viewer: [a]}}",
                "which takes oidc.client_id, too",
            ),
            ("limits:\n  disks: 0", "line 2: limits.disks: a number from 1 to 10000"),
        ] {
            let error = Config::parse(text, Path::new("")).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
