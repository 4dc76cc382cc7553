//! The page's login at an issuer: what the daemon tells of it, and what a headless Chromium does with it (`lab/page/login.mjs`).

use std::process::Command;
use std::sync::Arc;

use drover_server::{IssuerDocuments, OidcOptions};
use serde_json::json;

use crate::described::{description, hold};
use crate::fake::{Answer, Stage};
use crate::issuer::{CLIENT, Issuer};
use crate::page::{modules, workspace};

/// What a page may connect to.
fn connects(page: &Answer) -> &str {
    let line = page.head.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
    line.split("; ").find_map(|part| part.strip_prefix("connect-src ")).unwrap()
}

#[test]
fn the_page_learns_without_a_token_where_it_logs_in_and_may_ask_there_alone() {
    let issuer = Issuer::start();
    let stage = Stage::with(|options| options.oidc = Some(issuer.options()), 1);
    let answer = stage.get("", "/v1/login");
    hold(&description(), "get", "/v1/login", &answer);
    let url = issuer.url();
    assert_eq!(
        answer.json(),
        json!({ "oidc": {
            "issuer": url, "client_id": CLIENT, "scope": "openid groups", "token": "id_token",
            "endpoints": { "authorization": format!("{url}/authorize"), "token": format!("{url}/token"), "end_session": format!("{url}/end") }
        } })
    );
    assert_eq!(connects(&stage.get("", "/")), format!("'self' {url}/token"));
    let silent =
        Stage::with(|options| options.oidc = Some(OidcOptions { client: None, ..issuer.options() }), 1);
    assert_eq!(
        silent.get("", "/v1/login").json(),
        json!({ "oidc": null }),
        "strangers are not told where it is"
    );
    assert_eq!(connects(&silent.get("", "/")), "'self'");
    assert_eq!(Stage::new().get("", "/v1/login").json(), json!({ "oidc": null }));
}

/// Nobody.
#[derive(Debug)]
struct Away;

impl IssuerDocuments for Away {
    fn get(&self, _: &str, _: usize) -> Result<Vec<u8>, String> {
        Err("connection refused".into())
    }
}

#[test]
fn an_issuer_that_is_away_leaves_the_page_with_tokens() {
    let issuer = Issuer::start();
    let away = || OidcOptions { documents: Arc::new(Away), ..issuer.options() };
    let stage = Stage::with(|options| options.oidc = Some(away()), 1);
    let answer = stage.get("", "/v1/login");
    hold(&description(), "get", "/v1/login", &answer);
    assert_eq!(answer.json()["oidc"]["endpoints"], json!(null));
    assert_eq!(connects(&stage.get("", "/")), "'self'");
    assert_eq!(stage.get("viewer", "/v1/plans").status, 200);
}

#[test]
fn people_log_in_at_the_issuer_and_find_what_they_looked_at() {
    let Some(modules) = modules() else { return };
    let issuer = Issuer::start();
    let stage = Stage::with(|options| options.oidc = Some(issuer.options()), 200);
    let mut node = Command::new("node");
    node.arg(workspace().join("lab/page/login.mjs"))
        .arg(modules)
        .arg(format!("http://{}", stage.address()))
        .args([issuer.url(), &issuer.ended_token()]);
    let output = node.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{out}{err}\nat the issuer: {:?}, wrong: {:?}",
        issuer.asked(),
        issuer.wrong()
    );
    assert_eq!(issuer.wrong(), [] as [String; 0]);
    let asked = issuer.asked();
    let count = |what: &str| asked.iter().filter(|it| **it == what).count();
    // One answer had another state and one was a denial: no code of theirs was asked about.
    assert_eq!(
        (count("authorize"), count("code"), count("refresh"), count("end")),
        (6, 4, 1, 1),
        "{asked:?}"
    );
}
