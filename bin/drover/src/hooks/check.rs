//! What of a plan's hooks and checks cannot be carried out here; known before anything is touched.

use std::path::Path;

use drover_child::attended;
use drover_http::{Client, Timeouts};
use drover_plan::{At, Call, Check, Hook, HookPoint, Plan, Probe, Problem, SecretSource, TargetKind, Trust};
use drover_source::login;

use super::remote::url_of;

/// Looks at everything that the plan has called and asked.
pub fn hook_problems(plan: &Plan, folder: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_here = plan.target.via.is_none() && matches!(plan.target.kind, TargetKind::Qemu);
    let of_vms =
        plan.vms.iter().map(|it| (&it.overrides.hooks, &it.overrides.checks, it.selector.path.as_str()));
    for (hooks, checks, place) in std::iter::once((&plan.hooks, &plan.checks, "")).chain(of_vms) {
        let at = |key: &str| if place.is_empty() { key.to_string() } else { format!("{place}.{key}") };
        for (point, hook) in hooks.iter().flat_map(|(point, hooks)| hooks.iter().map(move |it| (point, it))) {
            let path = at(&format!("hooks.{}", HookPoint::name(*point)));
            problems.extend(of_hook(hook, folder).map(|problem| placed(problem, &path, hook.line)));
        }
        let lists = [("pre_cutover", &checks.pre_cutover), ("post_start", &checks.post_start)];
        for (name, check) in
            lists.iter().flat_map(|(name, list)| list.iter().flatten().map(move |it| (name, it)))
        {
            let path = at(&format!("checks.{name}"));
            problems.extend(of_check(check, folder).map(|problem| placed(problem, &path, check.line)));
            if matches!(check.probe, Probe::Serial(_)) && !(is_here && *name == "post_start") {
                let text = "the serial line is known of guests that run from a folder of this machine, after their start";
                problems.push(placed((text.into(), "ask in another way"), &path, check.line));
            }
        }
    }
    for wave in &plan.waves {
        for (name, hooks) in wave.hooks.lists() {
            let path = format!("{}.hooks.{name}", wave.path);
            let wrong = |hook: &Hook| Some(placed(of_hook(hook, folder)?, &path, hook.line));
            problems.extend(hooks.iter().filter_map(wrong));
        }
    }
    problems
}

/// What is wrong, and what to try.
type Wrong = (String, &'static str);

fn placed((text, advice): Wrong, path: &str, line: u32) -> Problem {
    Problem::error(path, text).at(At { line, column: 1 }).advise(advice)
}

fn of_hook(hook: &Hook, folder: &Path) -> Option<Wrong> {
    match &hook.call {
        Call::Command(words) => of_command(words, folder),
        Call::Shell(_) => None,
        Call::Http(call) => {
            let token = call.token.as_ref().and_then(|token| of_token(token, folder));
            of_address(&call.url, &call.trust, folder).or(token)
        }
    }
}

fn of_check(check: &Check, folder: &Path) -> Option<Wrong> {
    match &check.probe {
        Probe::Command(words) => of_command(words, folder),
        Probe::Tcp { .. } | Probe::Serial(_) | Probe::Shell(_) => None,
        // Of a name that is put in later, what stands around it is judged.
        Probe::Http { url, trust, .. } => of_address(&url.replace("{name}", "name"), trust, folder),
    }
}

fn of_command(words: &[String], folder: &Path) -> Option<Wrong> {
    let name = words.first()?;
    let error = attended::find(name, folder).err()?;
    let advice = "a path is relative to the plan's folder, a name is looked for in PATH; it must be executable (chmod +x)";
    Some((format!("{name}: {error}"), advice))
}

fn of_address(url: &str, trust: &Trust, folder: &Path) -> Option<Wrong> {
    let url = match url_of(url) {
        Ok(url) => url,
        Err(why) => return Some((why, "write it as https://host/path")),
    };
    let trust = match login::trust(trust, folder) {
        Ok(trust) => trust,
        Err(error) => return Some((error.what, "see the certificate")),
    };
    let error = Client::new(url.endpoint, &trust, Timeouts::default()).err()?;
    Some((drover_engine::chain(&error), "see the file of certificate authorities"))
}

fn of_token(token: &SecretSource, folder: &Path) -> Option<Wrong> {
    let error = login::secret_of(token, folder).err()?;
    Some((error.what, "the token is the first line of the file, or the variable's value"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_called_is_told_with_its_place_before_anything_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                    target: {type: qemu, folder: /t}\n\
                    hooks:\n  before_copy: [{command: [./missing]}, {command: [sh, -c, x]}]\n  after_done:\n    \
                    - {url: 'https://x/', token_file: none}\n    - {url: 'https://x/', ca_file: none.pem}\n\
                    checks: {post_start: [{command: [/no/such]}, {http: 'http://{name}/'}, {tcp: 'x:1'}]}\n\
                    vms: [{name: a, wave: w, hooks: {after_start: [{command: [no-such-program-anywhere]}]}}]\n\
                    waves: [{name: w, hooks: {before_wave: [{command: [./none]}], after_wave: [{url: 'https://x/', token_file: none}]}}]\n";
        let plan = Plan::parse(text).unwrap_or_else(|problems| panic!("{problems:?}"));
        let found: Vec<String> =
            hook_problems(&plan, folder.path()).iter().map(ToString::to_string).collect();
        let paths = [
            "hooks.before_copy",
            "hooks.after_done",
            "hooks.after_done",
            "checks.post_start",
            "vms[0].hooks.after_start",
            "waves[0].hooks.before_wave",
            "waves[0].hooks.after_wave",
        ];
        assert_eq!(found.len(), paths.len(), "{found:#?}");
        for (found, path) in found.iter().zip(paths) {
            assert!(found.contains(path), "{found} is not of {path}");
        }
        assert!(found[0].starts_with("6:1:") && found[0].contains("./missing"), "{}", found[0]);
    }
}
