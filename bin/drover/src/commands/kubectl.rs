//! `drover kubectl`, which is also `kubectl drover`: what the operator's Plans and Migrations say, and what is asked of them.

mod apply;
mod proceed;
mod rows;
mod watch;

use std::sync::Arc;

use drover_kubevirt::{Access, Change, Cluster, KubeError, KubeErrorKind, NOT_KNOWN};
use drover_operator::{CUTOVER, MIGRATION, RETRY};
use drover_view::now_utc;
use serde_json::{Value, json};

use crate::cli::{ClusterArgs, KubectlCommand, KubectlLogsArgs, KubectlStatusArgs, KubectlVmsArgs};
use crate::exit::{Exit, Failure};
pub use apply::run as apply;
use rows::{PlanRow, Row, chosen, of_wave, shown};

/// The container of a worker's pod.
const CONTAINER: &str = "worker";

/// Does what its subcommands say.
pub fn run(command: &KubectlCommand) -> Result<Exit, Failure> {
    match command {
        KubectlCommand::Status(args) => status(args),
        KubectlCommand::Logs(args) => logs(args),
        KubectlCommand::Cutover(args) => cutover(args),
        KubectlCommand::Cancel(args) => cancel(args),
        KubectlCommand::Retry(args) => retry(args),
        KubectlCommand::Proceed(args) => proceed::run(args),
    }
}

/// A namespace of a cluster.
pub struct Place {
    pub cluster: Arc<Cluster>,
    pub namespace: String,
}

impl Place {
    /// That of options.
    pub fn of(args: &ClusterArgs) -> Result<Place, Failure> {
        let access = Access { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
        let cluster = Cluster::connect(&access).map_err(failure)?;
        let namespace = args.namespace.clone().unwrap_or_else(|| cluster.namespace().to_string());
        Ok(Place { cluster, namespace })
    }

    /// Where objects of drover's are.
    pub fn own(&self, plural: &str) -> String {
        format!("/apis/{}/namespaces/{}/{plural}", drover_operator::API, self.namespace)
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let mut rows: Vec<Row> =
            self.cluster.all(&self.own("migrations")).map_err(failure)?.iter().map(Row::of).collect();
        rows.sort_by(|a, b| (&a.plan, &a.vm, &a.name).cmp(&(&b.plan, &b.vm, &b.name)));
        Ok(rows)
    }

    fn plans(&self, only: Option<&str>) -> Result<Vec<PlanRow>, Failure> {
        let all = self.cluster.all(&self.own("plans")).map_err(failure)?;
        let plans: Vec<PlanRow> = all.iter().map(PlanRow::of).collect();
        let plans: Vec<PlanRow> =
            plans.into_iter().filter(|plan| only.is_none_or(|only| plan.name == only)).collect();
        match only.filter(|_| plans.is_empty()) {
            Some(only) => Err(self.no(format!("there is no Plan {only}"))),
            None => Ok(plans),
        }
    }

    /// What is asked for is not there.
    fn no(&self, what: String) -> Failure {
        Failure::new(Exit::Plan, format!("{what} in the namespace {}", self.namespace))
            .advise(format!("kubectl drover status -n {}", self.namespace))
    }
}

/// A failure of the cluster's, with what to try.
pub fn failure(error: KubeError) -> Failure {
    let kind = error.kind;
    let failure = crate::operator::failure(error);
    match kind {
        KubeErrorKind::Denied if failure.message.contains(NOT_KNOWN) => failure
            .advise("log in again: the token or the certificate of the kubeconfig's user may have expired"),
        KubeErrorKind::NotServed => {
            failure.advise("install the operator (docs/how-to/operator.md), or name another --context")
        }
        KubeErrorKind::Config => failure.advise("name a kubeconfig with --kubeconfig, and its --context"),
        KubeErrorKind::Denied => {
            failure.advise("give this user the rights that docs/how-to/kubectl.md lists")
        }
        KubeErrorKind::Unreachable => failure.advise("is the cluster up, and --context the right one?"),
        _ => failure,
    }
}

fn status(args: &KubectlStatusArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    if args.watch {
        return watch::run(&place, args);
    }
    let all = place.rows()?;
    let rows =
        chosen(&all, &args.names, args.of.as_deref()).and_then(|rows| of_wave(rows, args.wave.as_deref()));
    let mut rows = rows.map_err(|why| place.no(why))?;
    rows.retain(|row| row.is_in(&args.phase));
    // Who asks for VMs by their names does not ask for plans.
    let mut plans = if args.names.is_empty() { place.plans(args.of.as_deref())? } else { Vec::new() };
    plans.iter_mut().for_each(|plan| plan.keep_wave(args.wave.as_deref()));
    match args.json {
        true => {
            let told = json!({"namespace": place.namespace, "plans": plans, "migrations": rows});
            crate::out::json(format_args!("{told:#}"));
        }
        false => crate::out::print(&shown(&place.namespace, &plans, &rows, args.summary)),
    }
    Ok(Exit::Success)
}

fn logs(args: &KubectlLogsArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    let all = place.rows()?;
    let names = std::slice::from_ref(&args.name);
    let rows = chosen(&all, names, None).map_err(|why| place.no(why))?;
    let Some(row) = rows.first() else { return Ok(Exit::Success) };
    let pods = format!("/api/v1/namespaces/{}/pods", place.namespace);
    let query = format!("{pods}?labelSelector={}%3D{}", MIGRATION.replace('/', "%2F"), row.name);
    let found = place.cluster.get(&query).map_err(failure)?.unwrap_or_default();
    let Some(pod) = last_of(&found, args.failed) else {
        let why = if row.message.is_empty() { String::new() } else { format!(": {}", row.message) };
        let lacks = if args.failed { "no log of a worker that failed" } else { "no worker now" };
        let what = format!("{} has {lacks} ({}{why})", row.vm, row.phase);
        return Err(Failure::new(Exit::Plan, what)
            .advise(format!("kubectl drover status {} -n {}", row.vm, place.namespace)));
    };
    let tail = args.tail.map(|lines| format!("&tailLines={lines}")).unwrap_or_default();
    let path = format!("{pods}/{pod}/log?container={CONTAINER}&follow={}{tail}", args.follow);
    let tell = |line: &str| {
        crate::out::line(line);
        true
    };
    place.cluster.read_lines(&path, tell).map_err(failure)?;
    Ok(Exit::Success)
}

/// The pod that was made last, or the last one that failed.
fn last_of(list: &Value, has_failed: bool) -> Option<String> {
    let made = |pod: &&Value| pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_string();
    let all = list["items"].as_array()?.iter();
    let last = all.filter(|pod| !has_failed || pod["status"]["phase"] == "Failed").max_by_key(made)?;
    last["metadata"]["name"].as_str().map(str::to_string)
}

/// VMs of which something is asked. One that is named and of which it cannot be asked is an error; those of a Plan are passed over.
fn asked<'a>(
    place: &Place,
    all: &'a [Row],
    args: &KubectlVmsArgs,
    why_not: impl Fn(&Row) -> Option<String>,
) -> Result<Vec<&'a Row>, Failure> {
    let rows =
        chosen(all, &args.names, args.of.as_deref()).and_then(|rows| of_wave(rows, args.wave.as_deref()));
    let mut rows = rows.map_err(|why| place.no(why))?;
    if args.names.is_empty() {
        rows.retain(|row| why_not(row).is_none());
        return Ok(rows);
    }
    match rows.iter().find_map(|row| why_not(row)) {
        Some(why) => {
            Err(Failure::new(Exit::Plan, why).advise(format!("kubectl drover status -n {}", place.namespace)))
        }
        None => Ok(rows),
    }
}

/// Changes Migrations, if they are those that were read.
fn change(place: &Place, rows: &[&Row], body: &Value, words: &str) -> Result<Exit, Failure> {
    for row in rows {
        let mut body = body.clone();
        body["metadata"]["uid"] = json!(row.uid);
        let path = format!("{}/{}", place.own("migrations"), row.name);
        place.cluster.change(&path, Change::Merge, &body).map_err(failure)?;
        crate::out::line(format_args!("{}: {words}", row.vm));
    }
    if rows.is_empty() {
        crate::out::line("there is nothing to do");
    }
    Ok(Exit::Success)
}

fn annotation(name: &str) -> Value {
    json!({"metadata": {"annotations": {name: now_utc()}}})
}

fn cutover(args: &KubectlVmsArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    let all = place.rows()?;
    let rows = asked(&place, &all, args, Row::no_cutover)?;
    change(&place, &rows, &annotation(CUTOVER), "asked to move over now")
}

fn retry(args: &KubectlVmsArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    let all = place.rows()?;
    let rows = asked(&place, &all, args, Row::no_retry)?;
    change(&place, &rows, &annotation(RETRY), "tried again")
}

fn cancel(args: &KubectlVmsArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    let cancel = json!({"spec": {"cancel": true}});
    // The whole of a Plan: nothing of it begins any more, either.
    if let Some(plan) = args.of.as_deref().filter(|_| args.names.is_empty() && args.wave.is_none()) {
        place.plans(Some(plan))?;
        let path = format!("{}/{plan}", place.own("plans"));
        place.cluster.change(&path, Change::Merge, &cancel).map_err(failure)?;
        crate::out::line(format_args!(
            "Plan {plan}: what was begun is undone, and nothing begins any more; remove it only once its VMs are cancelled or have arrived: \
             kubectl drover status --plan {plan}"
        ));
        return Ok(Exit::Success);
    }
    let all = place.rows()?;
    let rows = asked(&place, &all, args, Row::no_cancel)?;
    change(&place, &rows, &cancel, "what was begun is undone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pod_has_the_log() {
        let pod = |name: &str, made: &str| json!({"metadata": {"name": name, "creationTimestamp": made}});
        let list = json!({"items": [pod("a", "2026-01-02T00:00:00Z"), pod("b", "2026-01-10T00:00:00Z"), pod("c", "2025-12-31T00:00:00Z")]});
        assert_eq!(last_of(&list, false).as_deref(), Some("b"));
        assert_eq!(last_of(&json!({"items": []}), false), None);
        let mut list = list;
        assert_eq!(last_of(&list, true), None);
        list["items"][0]["status"]["phase"] = json!("Failed");
        assert_eq!(last_of(&list, true).as_deref(), Some("a"));
    }
}
