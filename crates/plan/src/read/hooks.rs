//! Reading hooks and checks.

use core::net::IpAddr;
use std::time::Duration;

use super::{Fields, Reader};
use crate::keys;
use crate::model::{
    AFTER_WAVE, BEFORE_WAVE, Call, Check, CheckKeys, Hook, HookPoint, Hooks, HttpCall, OnFailure, Probe,
    SecretSource, Trust, WaveHooks,
};
use crate::problem::Problem;

/// Longest time of a hook or a check.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shortest time between two tries of a check: it is asked, not flooded.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// Hooks of one moment, and checks of one kind.
const CALLS_MAX: usize = 32;

impl Reader {
    pub(super) fn hooks(&mut self, parent: &Fields<'_>) -> Hooks {
        let fields = self.map(parent, "hooks", &keys::HOOKS);
        let mut hooks = Hooks::new();
        for point in HookPoint::ALL {
            // A list that is there and empty takes the plan's hooks away from a VM.
            if fields.find(point.name()).is_some() {
                hooks.insert(point, self.listed_hooks(&fields, point.name()));
            }
        }
        hooks
    }

    pub(super) fn wave_hooks(&mut self, wave: &Fields<'_>) -> WaveHooks {
        let fields = self.map(wave, "hooks", &keys::WAVE_HOOKS);
        WaveHooks {
            before: self.listed_hooks(&fields, BEFORE_WAVE),
            after: self.listed_hooks(&fields, AFTER_WAVE),
        }
    }

    fn listed_hooks(&mut self, fields: &Fields<'_>, name: &str) -> Vec<Hook> {
        let listed = self.list(fields, name, |reader, fields| reader.hook(fields));
        self.not_too_many(fields, name, listed.len());
        listed.into_iter().flatten().collect()
    }

    pub(super) fn checks(&mut self, parent: &Fields<'_>) -> CheckKeys {
        let fields = self.map(parent, "checks", &keys::CHECKS);
        let mut read = |name: &str| {
            fields.find(name)?;
            let listed = self.list(&fields, name, |reader, fields| reader.check(fields));
            self.not_too_many(&fields, name, listed.len());
            Some(listed.into_iter().flatten().collect())
        };
        let (pre_cutover, post_start) = (read("pre_cutover"), read("post_start"));
        let roll_back = self.choice(&fields, "on_post_start_failure").map(|word| word == "roll_back");
        CheckKeys { pre_cutover, post_start, roll_back }
    }

    fn not_too_many(&mut self, fields: &Fields<'_>, name: &str, listed: usize) {
        if listed > CALLS_MAX {
            let text = format!("there are {listed} of them, {CALLS_MAX} are the most");
            self.problems.push(Problem::error(fields.path_of(name), text).at(fields.at));
        }
    }

    fn hook(&mut self, fields: &Fields<'_>) -> Option<Hook> {
        let (command, shell) = (self.command(fields), self.text(fields, "shell"));
        let url = self.url(fields, "url");
        let is_open = url.as_ref().is_some_and(|url| !url.is_tls);
        let trust = match is_open {
            true => self.flag(fields, "insecure").unwrap_or(false).then_some(Trust::Insecure),
            false => self.trust(fields),
        };
        if is_open && url.as_ref().is_some_and(|url| !url.is_loopback) {
            self.open_line(fields, trust == Some(Trust::Insecure));
        }
        let token = self.token(fields);
        if url.is_none() && (token.is_some() || trust.is_some()) && fields.find("url").is_none() {
            let text = "token, certificate and thumbprint belong to a `url`, and there is none";
            self.problems.push(Problem::error(fields.path.clone(), text).at(fields.at));
        }
        let http = url
            .map(|url| Call::Http(HttpCall { url: url.text, token, trust: trust.unwrap_or(Trust::System) }));
        let told = [command.map(Call::Command), shell.map(Call::Shell), http];
        let call = self.one_of(fields, told, &["command", "shell", "url"]);
        let timeout = self.time(fields, "timeout", Duration::from_secs(300));
        let on_failure = match self.choice(fields, "on_failure") {
            Some("warn") => OnFailure::Warn,
            _ => OnFailure::Stop,
        };
        Some(Hook { call: call?, timeout, on_failure, line: fields.at.line })
    }

    fn check(&mut self, fields: &Fields<'_>) -> Option<Check> {
        let tcp = self.tcp(fields);
        let url = self.url(fields, "http");
        let (trust, status) = (self.trust(fields), self.number(fields, "status").map(|it| it as u16));
        if url.is_none() && (status.is_some() || trust.is_some()) && fields.find("http").is_none() {
            let text = "status, certificate and thumbprint belong to `http`, and there is none";
            self.problems.push(Problem::error(fields.path.clone(), text).at(fields.at));
        }
        let http =
            url.map(|url| Probe::Http { url: url.text, status, trust: trust.unwrap_or(Trust::System) });
        let serial = self.text(fields, "serial").map(Probe::Serial);
        let (command, shell) = (self.command(fields), self.text(fields, "shell"));
        let told = [tcp, http, serial, command.map(Probe::Command), shell.map(Probe::Shell)];
        let probe = self.one_of(fields, told, &["tcp", "http", "serial", "command", "shell"]);
        let within = self.time(fields, "within", Duration::from_secs(120));
        let every = self.time(fields, "every", Duration::from_secs(5)).max(EVERY_MIN);
        let timeout = self.time(fields, "timeout", Duration::from_secs(10));
        Some(Check { probe: probe?, within, every, timeout, line: fields.at.line })
    }

    /// The one that is told, with a complaint where it is not exactly one.
    fn one_of<T, const N: usize>(
        &mut self,
        fields: &Fields<'_>,
        told: [Option<T>; N],
        names: &[&str; N],
    ) -> Option<T> {
        let written = names.iter().filter(|name| fields.find(name).is_some()).count();
        if written != 1 {
            let text =
                if written == 0 { "it does not say what is called" } else { "it says twice what is called" };
            let problem = Problem::error(fields.path.clone(), text).at(fields.at);
            self.problems.push(problem.advise(format!("give one of: {}", names.join(", "))));
            return None;
        }
        told.into_iter().flatten().next()
    }

    fn command(&mut self, fields: &Fields<'_>) -> Option<Vec<String>> {
        let words = self.texts(fields, "command")?;
        let entry = fields.find("command")?;
        if words.first().is_none_or(String::is_empty) {
            self.wrong(fields, entry, "names no program");
            return None;
        }
        if words.iter().any(|word| word.contains('\0')) {
            self.wrong(fields, entry, "holds a byte that no argument can hold");
            return None;
        }
        Some(words)
    }

    fn token(&mut self, fields: &Fields<'_>) -> Option<SecretSource> {
        let file = self.text(fields, "token_file").map(|path| SecretSource::File(path.into()));
        let variable = self.text(fields, "token_env").map(SecretSource::Env);
        if let (Some(_), Some(_)) = (&file, &variable) {
            let problem =
                Problem::error(fields.path_of("token_env"), "the token is given twice").at(fields.at);
            self.problems.push(problem.advise("give either token_file or token_env"));
        }
        file.or(variable)
    }

    fn tcp(&mut self, fields: &Fields<'_>) -> Option<Probe> {
        let (entry, text) = (fields.find("tcp")?, self.text(fields, "tcp")?);
        let place = host_and_port(&text).and_then(|(host, port)| Some((host, port?)));
        if place.is_none() {
            self.wrong(fields, entry, "is not HOST:PORT, such as {name}.example.com:22 or [2001:db8::1]:22");
        }
        place.map(|(host, port)| Probe::Tcp { host, port })
    }

    fn url(&mut self, fields: &Fields<'_>, name: &str) -> Option<Address> {
        let (entry, text) = (fields.find(name)?, self.text(fields, name)?);
        let address = address(&text);
        if address.is_none() && text.split(['/', '?']).nth(2).is_some_and(|host| host.contains('@')) {
            // What stands before the @ may hold a password, which no message repeats.
            let message = "a user or password does not belong into the address";
            self.problems.push(Problem::error(fields.path_of(name), message).at(entry.node.at));
        } else if address.is_none() {
            self.wrong(fields, entry, "is not an address such as https://host/path");
        }
        address
    }

    /// HTTP without TLS: whoever sits on the line reads what hooks are told, and answers for them.
    fn open_line(&mut self, fields: &Fields<'_>, is_allowed: bool) {
        let text = "http:// to another host: anyone on the line can read it, and answer `stop` or `skip`";
        let path = fields.path_of("url");
        self.problems.push(match is_allowed {
            true => Problem::warning(path, text).at(fields.at).advise("use https://"),
            false => Problem::error(path, text)
                .at(fields.at)
                .advise("use https://, or allow it with `insecure: true`"),
        });
    }

    fn time(&mut self, fields: &Fields<'_>, name: &str, unless_said: Duration) -> Duration {
        let Some(time) = self.duration(fields, name) else { return unless_said };
        if let Some(entry) = fields.find(name)
            && (time.is_zero() || time > TIME_MAX)
        {
            self.wrong(fields, entry, "is not a time of more than 0 and at most 24h");
        }
        time
    }
}

/// An address of HTTP.
struct Address {
    text: String,
    is_tls: bool,
    is_loopback: bool,
}

fn address(text: &str) -> Option<Address> {
    let (is_tls, rest) = match text.split_once("://")? {
        ("https", rest) => (true, rest),
        ("http", rest) => (false, rest),
        _ => return None,
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let (host, _) = host_and_port(rest.split(['/', '?', '#']).next()?)?;
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback());
    Some(Address { text: text.to_string(), is_tls, is_loopback })
}

/// Host and port of `host`, `host:port` or `[v6]:port`.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return None,
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
        None => None,
    };
    let fits = |c: char| c.is_ascii_graphic() && !"@/\\<>\"%[]?#".contains(c);
    (!host.is_empty() && host.chars().all(fits)).then(|| (host.to_string(), port))
}
