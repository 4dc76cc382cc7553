//! The routes and what they answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::answer::{cursor, document, json as answer_json, limit, query};
use crate::auth::{Caller, Denied, Gate, Role};
use crate::bounds::Bounds;
use crate::events::{EventHub, watch_events};
use crate::keys::Keys;
use crate::metrics::{self, Counters};
use crate::oidc::Oidc;
use crate::operations::{Form, Operations, Outcome, Page, Plan, VmQuery};
use crate::problem::{Kind, Problem};
use crate::states::VM_STATES;
use crate::turns::{READY_EACH, Readiness, Turns};
use crate::{OPENAPI, orders, page};

/// What handlers share.
pub(crate) struct App {
    pub operations: Arc<dyn Operations>,
    pub gate: Gate,
    pub hub: EventHub,
    pub bounds: Bounds,
    pub keys: Keys,
    pub counters: Arc<Counters>,
    pub turns: Turns,
    pub readiness: Readiness,
    /// The issuer whose JWTs count, if there is one.
    pub oidc: Option<Arc<Oidc>>,
    /// The cause that was told last for which no token can be checked.
    pub told_of_tokens: std::sync::Mutex<String>,
    pub event_turns: Arc<Semaphore>,
    pub anonymous_view: bool,
    pub open_metrics: bool,
    pub stopping: watch::Receiver<bool>,
}

pub(crate) type Shared = State<Arc<App>>;

impl App {
    /// Says who is not let in and why, once for each cause.
    pub(crate) fn warn_of_tokens(&self, text: String) {
        let mut told = self.told_of_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != text {
            self.operations.warn(&text);
            *told = text;
        }
    }

    /// Who has a token of the daemon's or of the issuer's.
    async fn caller(&self, token: &str, from: IpAddr) -> Result<Caller, Denied> {
        let now = Instant::now();
        let Some(oidc) = self.oidc.as_ref().filter(|_| Oidc::takes(token)) else {
            return self.gate.caller(token, from, now);
        };
        match oidc.caller(token, now).await {
            Err(Denied::Unknown) => Err(self.gate.refuse(from, now)),
            known => known,
        }
    }

    /// Asks the issuer for its keys before anybody comes, so that who runs the daemon is told what is wrong with it.
    pub(crate) async fn greet_issuer(self: Arc<Self>) {
        let Some(oidc) = &self.oidc else { return };
        oidc.ask(Instant::now()).await;
        if let Some(why) = oidc.error() {
            self.warn_of_issuer(&why);
        }
    }

    fn warn_of_issuer(&self, why: &str) {
        self.warn_of_tokens(format!("JWTs cannot be checked: {why}"));
    }

    /// Carries out what blocks, on a thread for it and when it is its turn.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Operations) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turn(&self.turns.look).await?;
        self.ask_in(turn, work).await
    }

    /// A turn of a kind, when it comes.
    pub(crate) async fn turn(&self, turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Problem> {
        let closed = |_| Problem::new(Kind::Unavailable, "the daemon ends");
        turns.clone().acquire_owned().await.map_err(closed)
    }

    /// As [`App::ask`], in a turn that the caller has. It ends with the work, also where nobody waits for the answer any more.
    pub(crate) async fn ask_in<T: Send + 'static>(
        &self,
        turn: OwnedSemaphorePermit,
        work: impl FnOnce(&dyn Operations) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let operations = self.operations.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(operations.as_ref())
        });
        match task.await {
            Ok(result) => result,
            Err(_) => {
                Err(Problem::new(Kind::Internal, "internal error: an operation ended without an answer"))
            }
        }
    }

    /// A plan that the caller may see. One of another project is as if it were not there.
    pub(crate) async fn plan(&self, caller: &Caller, name: &str) -> Result<Plan, Problem> {
        let turn = self.turn(&self.turns.look).await?;
        self.plan_in(turn, caller, name).await
    }

    /// The same in a turn that the caller has.
    pub(crate) async fn plan_in(
        &self,
        turn: OwnedSemaphorePermit,
        caller: &Caller,
        name: &str,
    ) -> Result<Plan, Problem> {
        let wanted = name.to_string();
        let plan = self.ask_in(turn, move |operations| operations.plan(&wanted)).await?;
        if caller.sees(&plan.project) { Ok(plan) } else { Err(no_plan(name)) }
    }
}

/// There is no such plan.
pub(crate) fn no_plan(name: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no plan '{name}'"))
        .advise("see /v1/plans for those there are")
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everybody.
    Open,
    /// Everybody if the configuration says so, else as `Role`.
    Metrics,
    /// With a token of this role or a higher one; a viewer may be anonymous if the configuration says so.
    Role(Role),
}

type Handler = MethodRouter<Arc<App>>;

/// All routes of the API: method, path, who may call it, and what answers.
fn table() -> Vec<(Method, &'static str, Access, Handler)> {
    use Access::{Metrics, Open};
    let (view, operate, admin) =
        (Access::Role(Role::Viewer), Access::Role(Role::Operator), Access::Role(Role::Admin));
    vec![
        (Method::GET, "/healthz", Open, get(healthz)),
        (Method::GET, "/readyz", Open, get(readyz)),
        (Method::GET, "/openapi.json", Open, get(openapi)),
        (Method::GET, "/metrics", Metrics, get(prometheus)),
        (Method::GET, "/v1/login", Open, get(login)),
        (Method::GET, "/v1/about", view, get(about)),
        (Method::GET, "/v1/plans", view, get(plans)),
        (Method::POST, "/v1/plans", operate, post(orders::submit)),
        (Method::GET, "/v1/plans/{plan}", view, get(plan)),
        (Method::GET, "/v1/plans/{plan}/status", view, get(status)),
        (Method::GET, "/v1/plans/{plan}/vms", view, get(vms)),
        (Method::GET, "/v1/plans/{plan}/vms/{vm}", view, get(vm)),
        (Method::GET, "/v1/plans/{plan}/concerns", view, get(concerns)),
        (Method::GET, "/v1/plans/{plan}/events", view, get(plan_events)),
        (Method::GET, "/v1/plans/{plan}/waves", view, get(waves)),
        (Method::GET, "/v1/plans/{plan}/limits", view, get(limits)),
        (Method::GET, "/v1/plans/{plan}/rates", view, get(rates)),
        (Method::GET, "/v1/plans/{plan}/report", view, get(report)),
        (Method::POST, orders::PATH, operate, post(orders::order)),
        (Method::POST, "/v1/check", operate, post(orders::check)),
        (Method::GET, "/v1/events", view, get(events)),
        (Method::GET, "/v1/live", view, get(live)),
        (Method::GET, "/v1/resources", view, get(resources)),
        (Method::GET, "/v1/audit", admin, get(audit)),
    ]
}

/// Methods and paths of the API, for whoever holds its description against it.
pub fn routes() -> Vec<(String, &'static str)> {
    table().into_iter().map(|(method, path, ..)| (method.to_string(), path)).collect()
}

/// The service for all connections.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (_, path, access, handler) in table() {
        let guard = from_fn_with_state((app.clone(), access), admit);
        // Two methods of one path are two routes with a guard each.
        let handler = match path {
            orders::PATH => handler.layer(DefaultBodyLimit::max(app.bounds.order_bytes)),
            _ => handler,
        };
        router = router.route(path, handler.layer(guard));
    }
    for (path, content_type, text) in page::FILES {
        let file = move |State(app): Shared| async move {
            let token_endpoint = app.oidc.as_ref().and_then(|oidc| oidc.token_endpoint());
            page::file(content_type, text, token_endpoint.as_deref())
        };
        router = router.route(path, get(file));
    }
    router
        .fallback(async || Problem::new(Kind::NotFound, "there is no such path").advise("see /openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(Kind::MethodNotAllowed, "this path takes another method")
        })
        .layer(DefaultBodyLimit::max(app.bounds.body_bytes))
        .layer(from_fn_with_state(app.clone(), around))
        .with_state(app)
}

/// What holds for every request: a bound on its time, and fields that keep browsers from doing more than they should.
async fn around(State(app): Shared, request: Request, next: Next) -> Response {
    let is_check = request.uri().path() == "/v1/check";
    let time = if is_check { app.bounds.check_time } else { app.bounds.request_time };
    let mut response = match timeout(time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = format!("no answer within {} s", time.as_secs());
            Problem::new(Kind::Timeout, text).advise("send the body faster, or ask for less").into_response()
        }
    };
    if is_foreign(&response) {
        response = Problem::new(Kind::BadRequest, "the path is not what the API takes").into_response();
    }
    app.counters.answered(response.status().as_u16());
    let fields = response.headers_mut();
    fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    fields.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    fields.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    fields.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Whether it is an answer of the HTTP stack's own, to a path that is no UTF-8.
fn is_foreign(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    response.status() == StatusCode::BAD_REQUEST && content_type != Some("application/problem+json")
}

/// Lets a request through if its caller may make it, and tells the handler who that is.
async fn admit(
    State((app, access)): State<(Arc<App>, Access)>,
    Extension(from): Extension<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let needed = match access {
        Access::Open => return next.run(request).await,
        Access::Metrics if app.open_metrics => return next.run(request).await,
        Access::Metrics => Role::Viewer,
        Access::Role(role) => role,
    };
    let caller = match (bearer(request.headers()), app.anonymous_view) {
        (Some(token), _) => app.caller(token, from.ip()).await,
        (None, true) => Ok(Caller::anonymous()),
        (None, false) => Err(Denied::Missing),
    };
    match caller {
        Ok(caller) if caller.role() >= needed => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Ok(caller) if caller.name == Caller::anonymous().name => {
            denied(&app, Denied::Missing).into_response()
        }
        Ok(caller) => {
            let text = format!(
                "the role of '{}' is {}, and this takes {}",
                caller.name,
                caller.role().word(),
                needed.word()
            );
            Problem::new(Kind::Forbidden, text).into_response()
        }
        Err(why) => denied(&app, why).into_response(),
    }
}

fn denied(app: &App, why: Denied) -> Problem {
    let advice = "make one with `drover serve token add NAME --role viewer`, and send it as `Authorization: Bearer TOKEN`";
    match why {
        Denied::Missing => Problem::new(Kind::Unauthorized, "the request has no token").advise(advice),
        Denied::Unknown => {
            app.counters.bad_tokens.fetch_add(1, Ordering::Relaxed);
            Problem::new(Kind::Unauthorized, "the token is not known").advise(advice)
        }
        Denied::Unreadable(why) => {
            app.warn_of_tokens(format!("nobody is let in: {why}"));
            Problem::new(Kind::Unavailable, format!("no token can be checked: {why}"))
                .advise("give the file to the daemon's user, with rights for nobody else (chown, chmod 600)")
        }
        Denied::Invalid(why) => Problem::new(Kind::Unauthorized, format!("the JWT does not count: {why}"))
            .advise("get a new one from the issuer"),
        Denied::NoRole(why) => Problem::new(Kind::Forbidden, why)
            .advise("have a group or role of yours entered under `oidc` in the daemon's settings"),
        Denied::Issuer(why) => {
            app.warn_of_issuer(&why);
            // Strangers are not told where it is.
            Problem::new(Kind::Unavailable, "JWTs cannot be checked: their issuer gives no keys")
                .advise("see the daemon's log; or use a token of `drover serve token add`")
                .retry_after(10)
        }
        Denied::Guessing(seconds) => {
            app.counters.bad_tokens.fetch_add(1, Ordering::Relaxed);
            Problem::new(Kind::TooMany, "too many wrong tokens came from this address").retry_after(seconds)
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(crate) async fn healthz() -> Response {
    answer_json(StatusCode::OK, &json!({ "status": "ok" }))
}

async fn readyz(State(app): Shared) -> Response {
    readiness(&app).await.map(answer_ready).unwrap_or_else(Problem::into_response)
}

pub(crate) fn answer_ready(ready: Result<(), String>) -> Response {
    match ready {
        Ok(()) => answer_json(StatusCode::OK, &json!({ "status": "ready" })),
        Err(why) => Problem::new(Kind::Unavailable, why).into_response(),
    }
}

/// Asked at most once a second, and by one at a time, however many want to know.
async fn readiness(app: &App) -> Result<Result<(), String>, Problem> {
    let mut known = app.readiness.lock().await;
    if let Some((_, ready)) = known.as_ref().filter(|(at, _)| at.elapsed() < READY_EACH) {
        return Ok(ready.clone());
    }
    let turn = app.turn(&app.turns.ready).await?;
    let ready = app.ask_in(turn, |operations| Ok(operations.ready())).await?;
    *known = Some((Instant::now(), ready.clone()));
    Ok(ready)
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// How the page logs in at an issuer. It is for everybody: who logs in has no token yet.
async fn login(State(app): Shared) -> Response {
    let login = match &app.oidc {
        Some(oidc) => oidc.login(Instant::now()).await,
        None => None,
    };
    answer_json(StatusCode::OK, &json!({ "oidc": login }))
}

async fn prometheus(State(app): Shared, caller: Option<Extension<Caller>>) -> Result<Response, Problem> {
    let (mut gauges, mut live, resources) =
        app.ask(|operations| Ok((operations.gauges()?, operations.live(), operations.resources()?))).await?;
    let sees_all = caller.as_ref().is_none_or(|caller| caller.sees_all());
    let resources = sees_all.then_some(resources);
    // Without a caller the settings let everybody see all of it.
    if let Some(Extension(caller)) = caller {
        gauges.plans.retain(|plan| caller.sees(&plan.project));
        live.plans.retain(|plan| caller.sees(&plan.project));
    }
    Ok(metrics::answer(metrics::text(&gauges, &live, resources.as_ref(), &app.counters, app.hub.watchers())))
}

async fn about(State(app): Shared, Extension(caller): Extension<Caller>) -> Response {
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "caller": { "name": caller.name, "role": caller.role(), "grants": caller.grants },
        "anonymous_view": app.anonymous_view,
    });
    answer_json(StatusCode::OK, &about)
}

/// What lists are asked with.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<usize>,
    cursor: Option<String>,
    state: Option<String>,
    search: Option<String>,
    project: Option<String>,
}

type Asked<T> = Result<Query<T>, QueryRejection>;

async fn plans(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    asked: Asked<ListQuery>,
) -> Result<Response, Problem> {
    let asked = query(asked)?;
    let limit = limit(asked.limit)?;
    let mut plans = app.ask(|operations| operations.plans()).await?;
    let wanted = |plan: &Plan| {
        let matches =
            |wanted: &Option<String>, real: &str| wanted.as_deref().is_none_or(|wanted| wanted == real);
        caller.sees(&plan.project)
            && matches(&asked.project, &plan.project)
            && matches(&asked.state, &plan.state)
    };
    plans.retain(wanted);
    if let Some(last) = &asked.cursor {
        let at = plans.iter().position(|plan| plan.name == *last);
        plans.drain(..at.map_or(plans.len(), |at| at + 1));
    }
    let more = plans.len() > limit;
    plans.truncate(limit);
    let next = plans.last().filter(|_| more).map(|plan| plan.name.clone());
    Ok(answer_json(StatusCode::OK, &Page { items: plans, next }))
}

async fn plan(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Ok(answer_json(StatusCode::OK, &app.plan(&caller, &name).await?))
}

#[derive(Debug, Deserialize)]
struct FormQuery {
    #[serde(default)]
    format: Form,
}

async fn status(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    asked: Asked<FormQuery>,
) -> Result<Response, Problem> {
    let form = query(asked)?.format;
    if form == Form::Html {
        return Err(Problem::new(Kind::BadRequest, "a status is given as json or text"));
    }
    app.plan(&caller, &name).await?;
    Ok(document(app.ask(move |operations| operations.status(&name, form)).await?))
}

async fn report(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    asked: Asked<FormQuery>,
) -> Result<Response, Problem> {
    let form = query(asked)?.format;
    app.plan(&caller, &name).await?;
    Ok(document(app.ask(move |operations| operations.report(&name, form)).await?))
}

/// Answers with a page of what a plan has.
async fn page_of<T: Serialize + Send + 'static>(
    app: &App,
    caller: &Caller,
    name: String,
    asked: Asked<ListQuery>,
    look: impl FnOnce(&dyn Operations, &str, &VmQuery) -> Outcome<Page<T>> + Send + 'static,
) -> Result<Response, Problem> {
    let asked = query(asked)?;
    let (after, limit) = (cursor(asked.cursor.as_deref())?.unwrap_or(0), limit(asked.limit)?);
    let wanted = VmQuery { after, limit, state: asked.state, search: asked.search };
    app.plan(caller, &name).await?;
    let page = app.ask(move |operations| look(operations, &name, &wanted)).await?;
    Ok(answer_json(StatusCode::OK, &page))
}

async fn vms(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    asked: Asked<ListQuery>,
) -> Result<Response, Problem> {
    let unknown =
        asked.as_ref().ok().and_then(|asked| asked.state.as_deref()).filter(|it| !VM_STATES.contains(it));
    if let Some(unknown) = unknown {
        let text = format!("there is no state '{unknown}' of VMs");
        return Err(Problem::new(Kind::BadRequest, text).advise(format!("one of {}", VM_STATES.join(", "))));
    }
    page_of(&app, &caller, name, asked, |operations, plan, wanted| operations.vms(plan, wanted)).await
}

async fn vm(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path((name, vm)): Path<(String, String)>,
) -> Result<Response, Problem> {
    app.plan(&caller, &name).await?;
    Ok(answer_json(StatusCode::OK, &app.ask(move |operations| operations.vm(&name, &vm)).await?))
}

async fn plan_events(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    asked: Asked<ListQuery>,
) -> Result<Response, Problem> {
    page_of(&app, &caller, name, asked, |operations, plan, it| operations.events(plan, it.after, it.limit))
        .await
}

async fn concerns(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    asked: Asked<ListQuery>,
) -> Result<Response, Problem> {
    page_of(&app, &caller, name, asked, |operations, plan, it| operations.concerns(plan, it.after, it.limit))
        .await
}

async fn rates(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    app.plan(&caller, &name).await?;
    let items = app.ask(move |operations| operations.rates(&name)).await?;
    Ok(answer_json(StatusCode::OK, &Page { items, next: None }))
}

async fn waves(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    app.plan(&caller, &name).await?;
    let items = app.ask(move |operations| operations.waves(&name)).await?;
    Ok(answer_json(StatusCode::OK, &Page { items, next: None }))
}

async fn limits(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    app.plan(&caller, &name).await?;
    Ok(answer_json(StatusCode::OK, &app.ask(move |operations| operations.limits(&name)).await?))
}

/// Hosts serve plans of all projects.
async fn resources(State(app): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    if !caller.sees_all() {
        let text = "hosts serve plans of all projects, and the token is for one";
        return Err(Problem::new(Kind::Forbidden, text).advise("use a token without a project"));
    }
    Ok(answer_json(StatusCode::OK, &app.ask(|operations| operations.resources()).await?))
}

async fn live(State(app): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    let mut live = app.ask(|operations| Ok(operations.live())).await?;
    live.plans.retain(|plan| caller.sees(&plan.project));
    Ok(answer_json(StatusCode::OK, &live))
}

async fn audit(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    asked: Asked<ListQuery>,
) -> Result<Response, Problem> {
    let asked = query(asked)?;
    let (before, limit) = (cursor(asked.cursor.as_deref())?, limit(asked.limit)?);
    let mut page = app.ask(move |operations| operations.audit_log(before, limit)).await?;
    page.items.retain(|row| caller.may(Role::Admin, &row.entry.project));
    Ok(answer_json(StatusCode::OK, &page))
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    plan: Option<String>,
}

async fn events(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    asked: Asked<EventsQuery>,
) -> Result<Response, Problem> {
    let plan = query(asked)?.plan;
    if let Some(plan) = &plan {
        app.plan(&caller, plan).await?;
    }
    let Ok(permit) = app.event_turns.clone().try_acquire_owned() else {
        let text = format!("{} clients watch already, and no more are let in", app.bounds.event_clients);
        return Err(Problem::new(Kind::TooMany, text).retry_after(10));
    };
    Ok(watch_events(&app.hub, caller, plan, app.stopping.clone(), app.bounds.event_time, permit))
}
