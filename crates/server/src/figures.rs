//! What a program without an API tells of itself: that it lives, whether it is ready, and its figures.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::metrics;
use crate::routes::{answer_ready, healthz};

/// What such a program is asked. It answers at once.
pub trait Figures: Send + Sync {
    /// Whether it does its work, or why not.
    fn ready(&self) -> Result<(), String>;
    /// Its figures, as [`crate::MetricsText`] makes them.
    fn metrics(&self) -> String;
}

type Told = State<Arc<dyn Figures>>;

pub(crate) fn router(figures: Arc<dyn Figures>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(async |State(figures): Told| answer_ready(figures.ready())))
        .route("/metrics", get(async |State(figures): Told| metrics::answer(figures.metrics())))
        .fallback(async || -> Response {
            (StatusCode::NOT_FOUND, "/healthz, /readyz, /metrics\n").into_response()
        })
        .with_state(figures)
}
