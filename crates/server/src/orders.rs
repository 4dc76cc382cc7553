//! Orders: who may give one, once by its key, and written down before it is carried out.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::answer::{body, json};
use crate::auth::{Caller, Role};
use crate::keys::{Answer, Known};
use crate::operations::{AuditEntry, Operations, Order, OrderKind, Outcome, Plan, Submission};
use crate::problem::{Kind, Problem};
use crate::routes::{App, Shared, no_plan};

/// An idempotency key is not longer.
const KEY_CHARS_MAX: usize = 128;

type Body = Result<Bytes, BytesRejection>;

/// Takes a plan in.
pub(crate) async fn submit(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Extension(from): Extension<SocketAddr>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<Response, Problem> {
    let (submission, bytes): (Submission, _) = body(bytes)?;
    check_submission(&caller, &submission)?;
    let entry = entry(&caller, from, &submission.project, None, "submit");
    once(&app, &caller, &headers, &bytes, StatusCode::ACCEPTED, move |operations| {
        let who = entry.who.clone();
        let end = |plan: &Plan| (plan.state.clone(), Some(plan.name.clone()));
        written_down(operations, entry, |operations| operations.submit(&submission, &who), end)
    })
    .await
}

/// Holds a plan against its source.
pub(crate) async fn check(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    bytes: Body,
) -> Result<Response, Problem> {
    let (submission, _): (Submission, _) = body(bytes)?;
    check_submission(&caller, &submission)?;
    Ok(json(StatusCode::OK, &app.ask(move |operations| operations.check(&submission)).await?))
}

fn check_submission(caller: &Caller, submission: &Submission) -> Result<(), Problem> {
    if !caller.sees(&submission.project) {
        let text = format!("'{}' may not use project '{}'", caller.name, submission.project);
        return Err(Problem::new(Kind::Forbidden, text));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let project = &submission.project;
    if project.is_empty() || project.len() > 64 || !project.chars().all(fits) {
        let text = "a project's name has 1 to 64 letters, digits, '-', '_' and '.'";
        return Err(Problem::new(Kind::BadRequest, text));
    }
    match &submission.path {
        Some(path) if !path.starts_with('/') => Err(Problem::new(Kind::BadRequest, "`path` is absolute")),
        _ => Ok(()),
    }
}

/// Carries an order out.
pub(crate) async fn order(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Extension(from): Extension<SocketAddr>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<Response, Problem> {
    let (order, bytes): (Order, _) = body(bytes)?;
    let plan = app.plan(&caller, &name).await?;
    let mut entry = entry(&caller, from, &plan.project, Some(name.clone()), word(order.order));
    (entry.vm, entry.before) = (order.vm.clone(), Some(plan.state));
    // The same body for another plan is another request.
    let request = [name.as_bytes(), b"\0", &bytes].concat();
    once(&app, &caller, &headers, &request, StatusCode::OK, move |operations| {
        // The project may have changed while this waited for its turn.
        if !caller_sees(operations, &name, &entry.project)? {
            return Err(no_plan(&name));
        }
        written_down(
            operations,
            entry,
            |operations| operations.order(&name, &order),
            |it| (it.after.clone(), None),
        )
    })
    .await
}

fn caller_sees(operations: &dyn Operations, plan: &str, project: &str) -> Outcome<bool> {
    Ok(operations.plan(plan)?.project == project)
}

fn word(order: OrderKind) -> &'static str {
    match order {
        OrderKind::Cutover => "cutover",
        OrderKind::Pause => "pause",
        OrderKind::Resume => "resume",
        OrderKind::Retry => "retry",
        OrderKind::Cancel => "cancel",
    }
}

fn entry(caller: &Caller, from: SocketAddr, project: &str, plan: Option<String>, action: &str) -> AuditEntry {
    debug_assert!(caller.role >= Role::Operator);
    AuditEntry {
        who: caller.name.clone(),
        role: caller.role.word().into(),
        from: from.ip().to_string(),
        project: project.into(),
        plan,
        vm: None,
        action: action.into(),
        before: None,
    }
}

/// Writes down who orders what, carries it out, and writes down how it ended.
fn written_down<T>(
    operations: &dyn Operations,
    entry: AuditEntry,
    work: impl FnOnce(&dyn Operations) -> Outcome<T>,
    after: impl FnOnce(&T) -> (String, Option<String>),
) -> Outcome<T> {
    let id = operations.audit(&entry)?;
    match work(operations) {
        Ok(done) => {
            let (after, plan) = after(&done);
            let after = plan.map_or(after.clone(), |plan| format!("{plan}: {after}"));
            operations.audit_end(id, Some(&after), "ok")?;
            Ok(done)
        }
        Err(problem) => {
            operations.audit_end(id, None, &problem.detail)?;
            Err(problem)
        }
    }
}

/// Carries a request out, unless one with the same key was.
async fn once<T: Serialize + Send + 'static>(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    request: &[u8],
    status: StatusCode,
    work: impl FnOnce(&dyn Operations) -> Outcome<T> + Send + 'static,
) -> Result<Response, Problem> {
    app.counters.orders.fetch_add(1, Ordering::Relaxed);
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(json(status, &app.ask(work).await?));
    };
    let key = key.to_str().ok().filter(|key| (1..=KEY_CHARS_MAX).contains(&key.len()));
    let key = key.ok_or_else(|| {
        Problem::new(
            Kind::BadRequest,
            format!("an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters of ASCII"),
        )
    })?;
    match app.keys.begin(&caller.name, key, request, Instant::now()) {
        Known::New => {}
        Known::Busy => {
            return Err(Problem::new(Kind::Conflict, "the first request with this key has not ended yet")
                .retry_after(1));
        }
        Known::Other => {
            return Err(Problem::new(Kind::Refused, "this Idempotency-Key was used for another request"));
        }
        Known::Answered(answer) => return Ok(again(answer)),
    }
    // Whoever waits for the answer may go away: the key is held until there is one.
    let held = Held { app, caller: &caller.name, key, answered: false };
    let (status, content_type, body, mine) = match app.ask(work).await {
        Ok(value) => {
            (status.as_u16(), "application/json", serde_json::to_string(&value).unwrap_or_default(), None)
        }
        Err(problem) if problem.status >= 500 => return Err(problem),
        Err(problem) => {
            let body = serde_json::to_string(&problem).unwrap_or_default();
            (problem.status, "application/problem+json", body, Some(problem))
        }
    };
    let answer = Answer { status, content_type, body };
    held.answer(answer.clone());
    Ok(mine.map_or_else(|| again(answer), IntoResponse::into_response))
}

/// A key whose request is being carried out; one that ends without an answer is free again.
struct Held<'a> {
    app: &'a App,
    caller: &'a str,
    key: &'a str,
    answered: bool,
}

impl Held<'_> {
    fn answer(mut self, answer: Answer) {
        self.answered = true;
        self.app.keys.end(self.caller, self.key, Some(answer));
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.app.keys.end(self.caller, self.key, None);
        }
    }
}

fn again(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(axum::http::header::CONTENT_TYPE, answer.content_type)], answer.body).into_response()
}
