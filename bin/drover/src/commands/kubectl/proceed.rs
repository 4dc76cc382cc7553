//! `drover kubectl proceed`: the word that lets waves go on after one of which VMs failed, written to the annotation of its Plan.

use drover_kubevirt::{Change, KubeErrorKind};
use drover_operator::PROCEED;
use serde_json::{Value, json};

use super::{Place, failure};
use crate::cli::KubectlProceedArgs;
use crate::exit::{Exit, Failure};

/// How often a Plan that others change meanwhile is changed anew.
const TRIES_MAX: u32 = 5;

/// Gives the word.
pub fn run(args: &KubectlProceedArgs) -> Result<Exit, Failure> {
    let place = Place::of(&args.cluster)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let all = place.cluster.all(&place.own("plans")).map_err(failure)?;
        let plan = all.into_iter().find(|plan| plan["metadata"]["name"] == args.plan.as_str());
        let plan = plan.ok_or_else(|| place.no(format!("there is no Plan {}", args.plan)))?;
        let asked = asked(&plan, args.wave.as_deref()).map_err(|Refused { what, advice }| {
            let advice = advice.unwrap_or_else(|| format!("kubectl drover status -n {}", place.namespace));
            Failure::new(Exit::Plan, what).advise(advice)
        })?;
        if let Some(text) = &asked.text {
            let metadata = &plan["metadata"];
            // What another says at the same time is not lost.
            let body = json!({"metadata": {
                "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "annotations": {PROCEED: text},
            }});
            let path = format!("{}/{}", place.own("plans"), args.plan);
            match place.cluster.change(&path, Change::Merge, &body) {
                Err(error) if error.kind == KubeErrorKind::Conflict && tries < TRIES_MAX => continue,
                answer => drop(answer.map_err(failure)?),
            }
        }
        let Asked { wave, after, .. } = asked;
        crate::out::line(format_args!("whatever of wave {wave} failed, these go on: {}", after.join(", ")));
        return Ok(Exit::Success);
    }
}

/// What is asked of a Plan.
#[derive(Debug, PartialEq)]
struct Asked {
    wave: String,
    /// Waves after it.
    after: Vec<String>,
    /// What the annotation is to say; absent where the operator has heeded it already.
    text: Option<String>,
}

/// Why it cannot be asked.
#[derive(Debug)]
struct Refused {
    what: String,
    advice: Option<String>,
}

fn refused<T>(what: String, advice: Option<String>) -> Result<T, Refused> {
    Err(Refused { what, advice })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn asked(plan: &Value, wave: Option<&str>) -> Result<Asked, Refused> {
    let (name, status) = (plan["metadata"]["name"].as_str().unwrap_or_default(), &plan["status"]);
    let waves: Vec<&Value> = list(&plan["spec"]["plan"]["waves"]).collect();
    let holding =
        || list(&status["waves"]).filter(|it| it["holds"] == true).filter_map(|it| it["name"].as_str());
    let wave = match (wave, holding().collect::<Vec<_>>().as_slice()) {
        (Some(wave), _) => wave.to_string(),
        (None, [one]) => (*one).to_string(),
        (None, []) => {
            return refused(format!("no wave of Plan {name} holds others up because VMs of it failed"), None);
        }
        (None, more) => {
            let what = format!("VMs of several waves of Plan {name} failed: {}", more.join(", "));
            return refused(what, Some(format!("name one: kubectl drover proceed {name} {}", more[0])));
        }
    };
    if waves.iter().all(|it| it["name"] != wave.as_str()) {
        let names: Vec<&str> = waves.iter().filter_map(|it| it["name"].as_str()).collect();
        let advice = match names.as_slice() {
            [] => "the Plan has no `waves`".to_string(),
            names => format!("its waves: {}", names.join(", ")),
        };
        return refused(format!("Plan {name} has no wave '{wave}'"), Some(advice));
    }
    let is_after = |it: &&&Value| list(&it["after"]).any(|name| *name == wave.as_str());
    let after = waves.iter().filter(is_after).filter_map(|it| it["name"].as_str().map(str::to_string));
    let after: Vec<String> = after.collect();
    if after.is_empty() {
        let advice = Some("nothing waits for it".to_string());
        return refused(format!("no wave of Plan {name} is after '{wave}'"), advice);
    }
    // Words that the operator has not heeded yet stay.
    let said = plan["metadata"]["annotations"][PROCEED].as_str().unwrap_or_default();
    let is_heeded = list(&status["proceed"]).any(|it| *it == wave.as_str());
    let text = (!is_heeded).then(|| format!("{said} {wave}").trim_start().to_string());
    Ok(Asked { wave, after, text })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn plan(said: Value, status: Value) -> Value {
        json!({"metadata": {"name": "web", "annotations": {"drover.dev/proceed": said}}, "status": status,
            "spec": {"plan": {"waves": [{"name": "pilot"}, {"name": "rest", "after": ["pilot"]}, {"name": "last", "after": ["pilot", "rest"]}]}}})
    }

    #[test]
    fn the_wave_is_the_one_that_is_named_or_that_holds_others_up() {
        let holds = |names: &[&str]| {
            let waves: Vec<Value> = names.iter().map(|name| json!({"name": name, "holds": true})).collect();
            json!({"waves": waves})
        };
        let one = plan(json!(null), holds(&["pilot"]));
        let told = asked(&one, None).unwrap();
        assert_eq!((told.wave.as_str(), told.text.as_deref()), ("pilot", Some("pilot")));
        assert_eq!(told.after, ["rest", "last"]);
        assert_eq!(asked(&one, Some("rest")).unwrap().after, ["last"], "also before anything of it failed");
        let why = |plan: &Value, wave: Option<&str>| {
            let Refused { what, advice } = asked(plan, wave).unwrap_err();
            format!("{what}: {}", advice.unwrap_or_default())
        };
        assert!(why(&plan(json!(null), holds(&[])), None).contains("no wave of Plan web holds others up"));
        assert!(why(&plan(json!(null), holds(&["pilot", "rest"])), None).contains("pilot, rest: name one"));
        assert!(why(&one, Some("wbe")).contains("no wave 'wbe': its waves: pilot, rest, last"));
        assert!(why(&one, Some("last")).contains("no wave of Plan web is after 'last'"));
        assert!(why(&json!({"metadata": {"name": "web"}}), Some("a")).contains("has no `waves`"));
    }

    #[test]
    fn a_word_that_is_not_heeded_yet_is_kept_and_one_that_is_is_not_said_twice() {
        let text = |said: Value, heeded: Value| {
            let plan = plan(said, json!({"proceed": heeded}));
            asked(&plan, Some("pilot")).unwrap().text
        };
        assert_eq!(text(json!("rest"), json!([])).as_deref(), Some("rest pilot"));
        // Said when the Plan had no such wave: what changes is read again.
        assert_eq!(text(json!("pilot"), json!([])).as_deref(), Some("pilot pilot"));
        assert_eq!(text(json!("pilot"), json!(["pilot"])), None);
    }
}
