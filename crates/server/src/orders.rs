//! Orders: who may give one, once by its key, and written down before it is carried out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, FromRequest, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::answer::{body, json};
use crate::auth::{Caller, Role};
use crate::keys::{Answer, Known};
use crate::operations::{AuditEntry, Operations, Order, OrderKind, Outcome, Plan, Submission};
use crate::problem::{Kind, Problem};
use crate::routes::{App, Shared, no_plan};

/// Where orders about a plan go.
pub(crate) const PATH: &str = "/v1/plans/{plan}/orders";
/// The name of a VM in an order is not longer.
const VM_CHARS_MAX: usize = 256;
/// What the audit log keeps of the reason for which an order was refused.
const OUTCOME_CHARS_MAX: usize = 1_000;
/// An idempotency key is not longer.
const KEY_CHARS_MAX: usize = 128;

type Body = Result<Bytes, BytesRejection>;

/// Takes a plan in.
pub(crate) async fn submit(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Extension(from): Extension<SocketAddr>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    // A body may be large: as many are in memory as there are turns.
    let turn = app.turn(&app.turns.submit).await?;
    let (submission, bytes): (Submission, _) = body(Bytes::from_request(request, &()).await)?;
    check_submission(&caller, &submission)?;
    let entry = entry(&caller, from, &submission.project, None, "submit");
    once(&app, turn, &caller, &headers, &bytes, StatusCode::ACCEPTED, move |operations| {
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
    request: Request,
) -> Result<Response, Problem> {
    let turn = app.turn(&app.turns.check).await?;
    let (submission, _): (Submission, _) = body(Bytes::from_request(request, &()).await)?;
    check_submission(&caller, &submission)?;
    Ok(json(StatusCode::OK, &app.ask_in(turn, move |operations| operations.check(&submission)).await?))
}

fn check_submission(caller: &Caller, submission: &Submission) -> Result<(), Problem> {
    check_operator(caller, &submission.project)?;
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

/// Refuses who operates other projects only.
fn check_operator(caller: &Caller, project: &str) -> Result<(), Problem> {
    match caller.may(Role::Operator, project) {
        true => Ok(()),
        false => {
            let text = format!("'{}' may not give orders in project '{project}'", caller.name);
            Err(Problem::new(Kind::Forbidden, text))
        }
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
    if order.vm.as_ref().is_some_and(|vm| vm.chars().count() > VM_CHARS_MAX) {
        let text = format!("`vm` has more than {VM_CHARS_MAX} characters");
        return Err(Problem::new(Kind::BadRequest, text));
    }
    if order.wave.as_ref().is_some_and(|wave| wave.chars().count() > VM_CHARS_MAX) {
        let text = format!("`wave` has more than {VM_CHARS_MAX} characters");
        return Err(Problem::new(Kind::BadRequest, text));
    }
    let plan = app.plan_in(app.turn(&app.turns.order).await?, &caller, &name).await?;
    check_operator(&caller, &plan.project)?;
    let turn = app.turn(&app.turns.order).await?;
    let mut entry = entry(&caller, from, &plan.project, Some(name.clone()), word(order.order));
    let several = (!order.vms.is_empty()).then(|| order.vms.join(", "));
    (entry.vm, entry.before) = (
        order.vm.clone().or(several).or(order.wave.as_ref().map(|wave| format!("wave {wave}"))),
        Some(plan.state),
    );
    // The same body for another plan is another request.
    let request = [name.as_bytes(), b"\0", &bytes].concat();
    once(&app, turn, &caller, &headers, &request, StatusCode::OK, move |operations| {
        // The project may have changed while this waited for its turn.
        if !caller_sees(operations, &name, &entry.project)? {
            return Err(no_plan(&name));
        }
        written_down(
            operations,
            entry,
            |operations| operations.order(&name, &order),
            |it| (it.audited(), None),
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
        OrderKind::Proceed => "proceed",
        OrderKind::Retry => "retry",
        OrderKind::Pause => "pause",
        OrderKind::Resume => "resume",
        OrderKind::Cancel => "cancel",
        OrderKind::Limits => "limits",
    }
}

fn entry(caller: &Caller, from: SocketAddr, project: &str, plan: Option<String>, action: &str) -> AuditEntry {
    debug_assert!(caller.may(Role::Operator, project));
    AuditEntry {
        who: caller.name.clone(),
        role: caller.role_in(project).unwrap_or(Role::Viewer).word().into(),
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
            keep_end(operations, id, Some(&after), "ok");
            Ok(done)
        }
        Err(problem) => {
            let outcome: String = problem.detail.chars().take(OUTCOME_CHARS_MAX).collect();
            keep_end(operations, id, None, &outcome);
            Err(problem)
        }
    }
}

/// Keeps how an order ended. It was carried out or refused, and its caller is told that, whether or not this can be kept: the log
/// then has it as `begun`.
fn keep_end(operations: &dyn Operations, id: i64, after: Option<&str>, outcome: &str) {
    if let Err(problem) = operations.audit_end(id, after, outcome) {
        operations
            .warn(&format!("the end of order {id} ({outcome}) is not in the audit log: {}", problem.detail));
    }
}

/// Carries a request out, unless one with the same key was.
async fn once<T: Serialize + Send + 'static>(
    app: &Arc<App>,
    turn: OwnedSemaphorePermit,
    caller: &Caller,
    headers: &HeaderMap,
    request: &[u8],
    status: StatusCode,
    work: impl FnOnce(&dyn Operations) -> Outcome<T> + Send + 'static,
) -> Result<Response, Problem> {
    app.counters.orders.fetch_add(1, Ordering::Relaxed);
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(json(status, &app.ask_in(turn, work).await?));
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
    // Whoever waits for the answer may go away: the key is held until there is one, by a task of its own.
    let held = Held { app: app.clone(), caller: caller.name.clone(), key: key.to_string(), answered: false };
    let task = tokio::spawn(async move {
        let (status, content_type, body, mine) = match held.app.ask_in(turn, work).await {
            Ok(value) => {
                let body = serde_json::to_string(&value).unwrap_or_default();
                (status.as_u16(), "application/json", body, None)
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
    });
    let lost = |_| Problem::new(Kind::Internal, "internal error: an order ended without an answer");
    task.await.map_err(lost)?
}

/// A key whose request is being carried out; one that ends without an answer is free again.
struct Held {
    app: Arc<App>,
    caller: String,
    key: String,
    answered: bool,
}

impl Held {
    fn answer(mut self, answer: Answer) {
        self.answered = true;
        self.app.keys.end(&self.caller, &self.key, Some(answer));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.answered {
            self.app.keys.end(&self.caller, &self.key, None);
        }
    }
}

fn again(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(axum::http::header::CONTENT_TYPE, answer.content_type)], answer.body).into_response()
}
