//! The page: files of this program, which load nothing from anywhere else.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::states::PAGE_MODULE;

/// Nothing but its own files, no inline code, and no other page around it. It asks the daemon, and where there is a login, the
/// issuer for tokens.
fn policy(token_endpoint: Option<&str>) -> String {
    let issuer = token_endpoint.map(|url| format!(" {url}")).unwrap_or_default();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{issuer}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Path, type and content of each file.
pub(crate) const FILES: [(&str, &str, &str); 12] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/page/app.css", "text/css; charset=utf-8", include_str!("../page/app.css")),
    ("/page/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/page/api.js", "text/javascript; charset=utf-8", include_str!("../page/api.js")),
    ("/page/login.js", "text/javascript; charset=utf-8", include_str!("../page/login.js")),
    ("/page/dom.js", "text/javascript; charset=utf-8", include_str!("../page/dom.js")),
    ("/page/limits.js", "text/javascript; charset=utf-8", include_str!("../page/limits.js")),
    ("/page/list.js", "text/javascript; charset=utf-8", include_str!("../page/list.js")),
    ("/page/chart.js", "text/javascript; charset=utf-8", include_str!("../page/chart.js")),
    ("/page/states.js", "text/javascript; charset=utf-8", PAGE_MODULE),
    ("/page/vm.js", "text/javascript; charset=utf-8", include_str!("../page/vm.js")),
    ("/page/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
];

/// The answer with one of them.
pub(crate) fn file(content_type: &'static str, text: &'static str, token_endpoint: Option<&str>) -> Response {
    let fields = [
        (header::CONTENT_TYPE, content_type.to_string()),
        (header::CONTENT_SECURITY_POLICY, policy(token_endpoint)),
        (header::CACHE_CONTROL, "no-cache".to_string()),
    ];
    (fields, text).into_response()
}
