//! Carries out a plan's hooks and checks: programs, HTTP calls, connections.

mod check;
mod remote;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_child::attended::{self, Attended, End};
use drover_engine::{Answer, HookResult, HookRunner};
use drover_mover::StopSignal;
use drover_plan::{Call, Check, Hook, Probe};
use drover_view::{clean, plain};
use serde_json::Value;

pub use self::check::hook_problems;
pub use self::remote::speaks;

/// A program that ends with this has the VM left out: what GNU test programs say to be skipped.
const SKIP_CODE: i32 = 77;
/// Of a serial line; what comes later is not waited for.
const SERIAL_BYTES_MAX: u64 = 16 << 20;
/// Of what a program says of its failure, in a message.
const MESSAGE_CHARS_MAX: usize = 400;

/// Hooks and checks of a plan.
pub struct Outside {
    /// Folder that paths in the plan are relative to, and where programs run.
    folder: PathBuf,
}

impl Outside {
    /// Those of a plan whose paths are relative to this folder.
    pub fn new(folder: &Path) -> Outside {
        Outside { folder: folder.to_path_buf() }
    }

    fn program(&self, words: &[String], document: &Value, time_max: Duration, stop: &StopSignal) -> Answer {
        let Some((name, arguments)) = words.split_first() else {
            return Answer::new(HookResult::Failed, "no program is named");
        };
        let program = match attended::find(name, &self.folder) {
            Ok(program) => program,
            Err(error) => return Answer::new(HookResult::Failed, format!("{name}: {error}")),
        };
        let word = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let variables = [
            ("DROVER_POINT", word("/point").to_string()),
            ("DROVER_PLAN", word("/plan").to_string()),
            ("DROVER_VM", word("/vm/target_name").to_string()),
            ("DROVER_WAVE", format!("{}{}", word("/wave/name"), word("/vm/wave"))),
        ];
        let (folder, input) = (self.folder.as_path(), document.to_string());
        let input = input.as_bytes();
        let attended =
            Attended { program: &program, arguments, variables: &variables, folder, input, time_max };
        match attended::run(&attended, &|| stop.is_set()) {
            Ok(outcome) => judged(&outcome, time_max),
            Err(error) => Answer::new(HookResult::Failed, format!("{name} cannot be started: {error}")),
        }
    }

    fn shell(&self, line: &str, document: &Value, time_max: Duration, stop: &StopSignal) -> Answer {
        let words = ["/bin/sh", "-c", line].map(str::to_string);
        self.program(&words, document, time_max, stop)
    }
}

impl HookRunner for Outside {
    fn call(&self, hook: &Hook, document: &Value, stop: &StopSignal) -> Answer {
        match &hook.call {
            Call::Command(words) => self.program(words, document, hook.timeout, stop),
            Call::Shell(line) => self.shell(line, document, hook.timeout, stop),
            Call::Http(call) => remote::post(call, document, &self.folder, hook.timeout, stop),
        }
    }

    fn ask(&self, check: &Check, document: &Value, stop: &StopSignal) -> Answer {
        let answer = match &check.probe {
            Probe::Tcp { host, port } => remote::connects(host, *port, check.timeout, stop),
            Probe::Http { url, status, trust } => {
                remote::answers(url, *status, trust, &self.folder, check.timeout, stop)
            }
            Probe::Serial(text) => said_on_serial(text, document),
            Probe::Command(words) => self.program(words, document, check.timeout, stop),
            Probe::Shell(line) => self.shell(line, document, check.timeout, stop),
        };
        // A check says yes or no; there is nothing to be left out.
        match answer.result {
            HookResult::Passed | HookResult::Interrupted => answer,
            HookResult::Failed | HookResult::Stop | HookResult::Skip => {
                Answer { result: HookResult::Failed, ..answer }
            }
        }
    }
}

/// Whether a guest wrote this since it was started.
fn said_on_serial(text: &str, document: &Value) -> Answer {
    let folder = document.pointer("/target/folder").and_then(Value::as_str).unwrap_or_default();
    let log = Path::new(folder).join("serial.log");
    let failed = |why: String| Answer::new(HookResult::Failed, why);
    let mut written = Vec::new();
    let read =
        std::fs::File::open(&log).and_then(|file| file.take(SERIAL_BYTES_MAX).read_to_end(&mut written));
    if let Err(error) = read {
        return failed(format!("{}: {error}", log.display()));
    }
    let written = String::from_utf8_lossy(&written);
    match written.lines().find(|line| line.contains(text)) {
        Some(line) => Answer::new(HookResult::Passed, shortened(line.trim())),
        None => failed(format!("its last line is '{}'", last_words(&plain(&written)))),
    }
}

/// What a program's end means.
fn judged(outcome: &attended::Outcome, time_max: Duration) -> Answer {
    let stdout = String::from_utf8_lossy(&outcome.stdout);
    let output = plain(&format!("{stdout}{}", String::from_utf8_lossy(&outcome.stderr)));
    let answer = |result, message: String| Answer { result, message, output: output.clone() };
    let status = match &outcome.end {
        End::Stopped => return answer(HookResult::Interrupted, "the run was stopped".into()),
        End::TimedOut => {
            let text = format!("not done after {} s, and ended", time_max.as_secs_f64());
            return answer(HookResult::Failed, text);
        }
        End::Exited(status) => status,
    };
    let last_line = stdout.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let said = match Said::of(last_line) {
        Some(Ok(said)) => Some(said),
        Some(Err(why)) => return answer(HookResult::Failed, why),
        None => None,
    };
    match (said, status.code()) {
        (
            Some(Said { result: result @ (HookResult::Stop | HookResult::Skip), message }),
            Some(0 | SKIP_CODE),
        ) => answer(result, message),
        (Some(Said { result: HookResult::Stop, message }), _) => answer(HookResult::Stop, message),
        (said, Some(0)) => answer(HookResult::Passed, said.map_or_else(String::new, |it| it.message)),
        (said, Some(SKIP_CODE)) => {
            answer(HookResult::Skip, said.map_or_else(|| last_words(&output), |it| it.message))
        }
        (_, _) => answer(HookResult::Failed, format!("{status}{}", and(&last_words(&output)))),
    }
}

/// What is said in JSON: `{"result": "continue", "message": "..."}`.
struct Said {
    result: HookResult,
    message: String,
}

impl Said {
    /// Of a text that is such an object. What has a result that nobody knows is not taken for leave to go on.
    fn of(text: &str) -> Option<Result<Said, String>> {
        let value: Value = serde_json::from_str(text).ok()?;
        let result = value.as_object()?.get("result")?;
        let message = value["message"].as_str().map(shortened).unwrap_or_default();
        let result = match result.as_str() {
            Some("continue") => HookResult::Passed,
            Some("stop") => HookResult::Stop,
            Some("skip") => HookResult::Skip,
            _ => {
                let shown = shortened(&result.to_string());
                return Some(Err(format!("its result {shown} is not one of: continue, stop, skip")));
            }
        };
        Some(Ok(Said { result, message }))
    }
}

/// The last line that was written.
fn last_words(output: &str) -> String {
    shortened(output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default())
}

fn shortened(text: &str) -> String {
    clean(text).chars().take(MESSAGE_CHARS_MAX).collect()
}

fn and(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::OnFailure;
    use serde_json::json;

    use super::*;

    fn call(script: &str) -> Answer {
        call_for(script, Duration::from_secs(60))
    }

    fn call_for(script: &str, timeout: Duration) -> Answer {
        let folder = tempfile::tempdir().unwrap();
        let hook = Hook { call: Call::Shell(script.into()), timeout, on_failure: OnFailure::Stop, line: 1 };
        let document = json!({"point": "before_copy", "plan": "p", "vm": {"target_name": "web01"}});
        Outside::new(folder.path()).call(&hook, &document, &StopSignal::default())
    }

    #[test]
    fn an_exit_code_decides_and_words_are_kept_without_what_drives_a_terminal() {
        let passed =
            call("cat; echo; echo $DROVER_POINT $DROVER_PLAN $DROVER_VM; printf 'a\\033[31mb\\n' >&2");
        assert_eq!(passed.result, HookResult::Passed);
        assert!(
            passed.output.contains("\"target_name\":\"web01\"")
                && passed.output.contains("before_copy p web01\n")
        );
        assert!(passed.output.contains('b') && !passed.output.contains('\u{1b}'));
        let failed = call("echo first; echo the cause >&2; exit 3");
        assert_eq!(
            (failed.result, failed.message.as_str()),
            (HookResult::Failed, "exit status: 3: the cause")
        );
        let skipped = call("echo not this one; exit 77");
        assert_eq!((skipped.result, skipped.message.as_str()), (HookResult::Skip, "not this one"));
        let late = call_for("sleep 600", Duration::from_millis(300));
        assert_eq!(
            (late.result, late.message.as_str()),
            (HookResult::Failed, "not done after 0.3 s, and ended")
        );
    }

    #[test]
    fn a_program_is_told_the_wave_also_where_it_is_called_for_a_vm() {
        for document in [json!({"wave": {"name": "night"}}), json!({"vm": {"wave": "night"}})] {
            let folder = tempfile::tempdir().unwrap();
            let (call, timeout) = (Call::Shell("echo $DROVER_WAVE".into()), Duration::from_secs(60));
            let hook = Hook { call, timeout, on_failure: OnFailure::Stop, line: 1 };
            let answer = Outside::new(folder.path()).call(&hook, &document, &StopSignal::default());
            assert_eq!(answer.output.trim(), "night", "{document}");
        }
    }

    #[test]
    fn an_answer_in_json_decides_unless_the_program_failed() {
        let said = |json: &str, code: u8| call(&format!("echo text; echo '{json}'; exit {code}"));
        for (json, code, expected) in [
            (r#"{"result": "continue", "message": "well"}"#, 0, (HookResult::Passed, "well")),
            (r#"{"result": "stop", "message": "frozen"}"#, 0, (HookResult::Stop, "frozen")),
            (r#"{"result": "skip", "message": "not it"}"#, 0, (HookResult::Skip, "not it")),
            (r#"{"result": "stop", "message": "frozen"}"#, 5, (HookResult::Stop, "frozen")),
            (r#"{"other": 1}"#, 0, (HookResult::Passed, "")),
        ] {
            let answer = said(json, code);
            assert_eq!((answer.result, answer.message.as_str()), expected, "{json} {code}");
        }
        assert_eq!(said(r#"{"result": "continue"}"#, 4).result, HookResult::Failed);
        assert_eq!(said(r#"{"result": "skip"}"#, 4).result, HookResult::Failed);
        let unknown = said(r#"{"result": "maybe"}"#, 0);
        assert_eq!(unknown.result, HookResult::Failed);
        assert!(unknown.message.contains("is not one of: continue, stop, skip"), "{}", unknown.message);
    }

    #[test]
    fn no_program_sees_the_environment_of_drover() {
        let answer = call("env");
        assert!(!answer.output.contains("CARGO"), "{}", answer.output);
    }
}
