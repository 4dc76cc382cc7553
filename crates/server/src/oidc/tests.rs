use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::auth::Role;

const ISSUER: &str = "https://id.lab/realms/ops";

/// A key of the issuer's, with what it signs.
struct Signer {
    id: Option<&'static str>,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn rsa_signature(pair: &RsaKeyPair, by: &'static dyn RsaEncoding, message: &str) -> Vec<u8> {
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(by, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
    signature
}

impl Signer {
    fn ecdsa(id: &'static str) -> Signer {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Signer { id: Some(id), pair: Pair::Ecdsa(pair) }
    }

    fn rsa(id: &'static str) -> Signer {
        Signer { id: Some(id), pair: Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()) }
    }

    fn ed(id: &'static str) -> Signer {
        Signer { id: Some(id), pair: Pair::Ed(Ed25519KeyPair::generate().unwrap()) }
    }

    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Ecdsa(_) => "ES256",
            Pair::Ed(_) => "EdDSA",
        }
    }

    fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                // DER of RFC 8017, A.1.1: 9 bytes, the modulus, 2 bytes, 65537.
                let der = pair.public_key().as_ref();
                assert_eq!((der.len(), &der[267..]), (270, &[1, 0, 1][..]));
                json!({ "kty": "RSA", "n": part(&der[9..265]), "e": part(&der[267..]) })
            }
            Pair::Ecdsa(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": part(x), "y": part(y) })
            }
            Pair::Ed(pair) => json!({ "kty": "OKP", "crv": "Ed25519", "x": part(pair.public_key()) }),
        };
        (jwk["alg"], jwk["use"]) = (self.algorithm().into(), "sig".into());
        if let Some(id) = self.id {
            jwk["kid"] = id.into();
        }
        jwk
    }

    fn header(&self) -> Value {
        let mut header = json!({ "alg": self.algorithm(), "typ": "JWT" });
        if let Some(id) = self.id {
            header["kid"] = id.into();
        }
        header
    }

    /// A token with this header, signed by the key.
    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned(header, claims);
        let signature = match &self.pair {
            Pair::Rsa(pair) => rsa_signature(pair, &RSA_PKCS1_SHA256, &message),
            Pair::Ecdsa(pair) => {
                pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec()
            }
            Pair::Ed(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", part(signature))
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }
}

/// What is signed.
fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", part(header.to_string()), part(claims.to_string()))
}

#[derive(Debug, Default)]
struct Documents(Mutex<Answers>);

/// What the issuer answers with, and how often it was asked for its keys.
#[derive(Debug, Default)]
struct Answers {
    keys: Option<Vec<Value>>,
    asked: usize,
    /// Further members of its discovery document.
    endpoints: Vec<(String, String)>,
}

impl IssuerDocuments for Documents {
    fn get(&self, url: &str, _: usize) -> Result<Vec<u8>, String> {
        let mut state = self.0.lock().unwrap();
        let keys = state.keys.clone().ok_or("connection refused")?;
        let answer = match url {
            "https://id.lab/realms/ops/.well-known/openid-configuration" => {
                let mut found = json!({ "issuer": ISSUER, "jwks_uri": "https://id.lab/keys" });
                for (name, url) in &state.endpoints {
                    found[name] = url.as_str().into();
                }
                found
            }
            "https://id.lab/keys" => {
                state.asked += 1;
                json!({ "keys": keys })
            }
            other => panic!("{other}"),
        };
        Ok(answer.to_string().into_bytes())
    }
}

struct Stage {
    oidc: Arc<Oidc>,
    documents: Arc<Documents>,
    runtime: Runtime,
    began: Instant,
}

impl Stage {
    fn new(keys: &[&Signer]) -> Stage {
        let documents = Arc::new(Documents::default());
        let grant = |role, project: Option<&str>| Grant { role, project: project.map(str::to_string) };
        let options = OidcOptions {
            issuer: ISSUER.into(),
            audience: "drover".into(),
            claim: "realm_access.roles".into(),
            roles: vec![
                ("staff".into(), grant(Role::Viewer, None)),
                ("web".into(), grant(Role::Operator, Some("web"))),
                ("web".into(), grant(Role::Viewer, Some("web"))),
                ("boss".into(), grant(Role::Admin, None)),
            ],
            client: Some(LoginClient { id: "drover".into(), scope: "openid groups".into() }),
            documents: documents.clone(),
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let stage = Stage { oidc: Arc::new(Oidc::new(options)), documents, runtime, began: Instant::now() };
        stage.publish(keys);
        stage
    }

    fn publish(&self, keys: &[&Signer]) {
        self.documents.0.lock().unwrap().keys = Some(keys.iter().map(|key| key.jwk()).collect());
    }

    fn go_away(&self) {
        self.documents.0.lock().unwrap().keys = None;
    }

    fn asked(&self) -> usize {
        self.documents.0.lock().unwrap().asked
    }

    fn caller_after(&self, after: Duration, token: &str) -> Result<Caller, Denied> {
        self.runtime.block_on(self.oidc.caller(token, self.began + after))
    }

    fn caller(&self, token: &str) -> Result<Caller, Denied> {
        self.caller_after(Duration::ZERO, token)
    }

    /// Waits until nobody asks the issuer.
    fn settle(&self) {
        drop(self.runtime.block_on(self.oidc.asking.lock()));
    }
}

fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

fn claims(roles: &[&str]) -> Value {
    json!({ "iss": ISSUER, "aud": ["drover", "account"], "sub": "ann", "exp": now_s() + 300, "realm_access": { "roles": roles } })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims(&["staff"]);
    match value.is_null() {
        true => drop(claims.as_object_mut().unwrap().remove(name)),
        false => claims[name] = value,
    }
    claims
}

#[test]
fn a_token_counts_by_each_kind_of_key_and_its_groups_give_roles_for_projects() {
    let signers = [Signer::rsa("r"), Signer::ecdsa("e"), Signer::ed("o")];
    let stage = Stage::new(&signers.each_ref());
    for signer in &signers {
        let caller = stage.caller(&signer.sign(&claims(&["staff", "web", "other"]))).unwrap();
        assert_eq!(caller.name, format!("ann of {ISSUER}"));
        assert_eq!(caller.role_in("web"), Some(Role::Operator));
        assert_eq!(caller.role_in("db"), Some(Role::Viewer));
    }
    assert_eq!(stage.asked(), 1);
    let only_web = stage.caller(&signers[0].sign(&claims(&["web"]))).unwrap();
    assert!(only_web.sees("web") && !only_web.sees("db"));
    let none = stage.caller(&signers[0].sign(&claims(&["other"])));
    assert!(matches!(&none, Err(Denied::NoRole(why)) if why.contains("realm_access.roles")), "{none:?}");
}

#[test]
fn what_a_token_claims_has_to_be_right_and_its_bearer_is_told_what_is_not() {
    let signer = Signer::ecdsa("e");
    let stage = Stage::new(&[&signer]);
    for (name, value, why) in [
        ("exp", json!(now_s() - 60), "it has expired"),
        ("exp", Value::Null, "it has no usable `exp`"),
        ("exp", json!("tomorrow"), "it has no usable `exp`"),
        ("nbf", json!(now_s() + 60), "it is not valid yet"),
        ("iss", json!("https://id.lab/realms/other"), "its `iss` is not the issuer"),
        ("iss", Value::Null, "its `iss` is not the issuer"),
        ("aud", json!("account"), "its `aud` does not name this daemon"),
        ("aud", Value::Null, "its `aud` does not name this daemon"),
        ("sub", Value::Null, "its `sub` is not"),
        ("sub", json!("ann\u{1b}[2J"), "its `sub` is not"),
        ("sub", json!("a".repeat(256)), "its `sub` is not"),
    ] {
        let denied = stage.caller(&signer.sign(&with(name, value)));
        assert!(matches!(&denied, Err(Denied::Invalid(told)) if told.starts_with(why)), "{why}: {denied:?}");
    }
    // Clocks may be a little apart.
    assert!(stage.caller(&signer.sign(&with("exp", json!(now_s() - 5)))).is_ok());
    assert!(stage.caller(&signer.sign(&with("nbf", json!(now_s() + 5)))).is_ok());
}

#[test]
fn nothing_counts_but_a_signature_by_a_key_of_its_own_kind() {
    let (rsa, ecdsa, stranger) = (Signer::rsa("r"), Signer::ecdsa("e"), Signer::ecdsa("e"));
    let stage = Stage::new(&[&rsa, &ecdsa]);
    let good = claims(&["boss"]);
    let jwk = rsa.jwk();
    let by_secret = |secret: &str| {
        let message = unsigned(&json!({ "alg": "HS256", "kid": "r" }), &good);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes());
        format!("{message}.{}", part(tag))
    };
    let bare = |header: Value, signature: &str| format!("{}.{signature}", unsigned(&header, &good));
    let Pair::Rsa(pair) = &rsa.pair else { panic!("a key of RSA") };
    let pss = unsigned(&json!({ "alg": "PS256", "kid": "r" }), &good);
    let pss = format!("{pss}.{}", part(rsa_signature(pair, &RSA_PSS_SHA256, &pss)));
    let signed = ecdsa.sign(&good);
    let changed = signed.replace(&part(good.to_string()), &part(with("sub", json!("root")).to_string()));
    assert_ne!(signed, changed);
    let mut crit = ecdsa.header();
    (crit["crit"], crit["b64"]) = (json!(["b64"]), json!(true));
    let tokens = [
        ("by another key of that name", stranger.sign(&good)),
        ("HS256 by the public key", by_secret(jwk["n"].as_str().unwrap())),
        ("HS256 by the whole JWK", by_secret(&jwk.to_string())),
        ("an RSA key's name on ES256", ecdsa.sign_with(&json!({ "alg": "ES256", "kid": "r" }), &good)),
        ("RS256 on the name of another kind", rsa.sign_with(&json!({ "alg": "RS256", "kid": "e" }), &good)),
        ("PS256 by the right key", pss),
        ("none", bare(json!({ "alg": "none", "kid": "e" }), "")),
        ("none with a signature", bare(json!({ "alg": "None", "kid": "e" }), "AAAA")),
        ("no algorithm", bare(json!({ "kid": "e" }), "")),
        ("an empty signature", bare(json!({ "alg": "ES256", "kid": "e" }), "")),
        ("its own key", stranger.sign_with(&json!({ "alg": "ES256", "jwk": stranger.jwk() }), &good)),
        ("what must be understood", ecdsa.sign_with(&crit, &good)),
        ("other claims under the signature", changed),
        ("padding", format!("{signed}=")),
        ("dots", "..".into()),
    ];
    for (what, token) in tokens {
        assert!(Oidc::takes(&token), "{what}");
        assert_eq!(stage.caller(&token), Err(Denied::Unknown), "{what}");
    }
    assert!(stage.caller(&ecdsa.sign(&good)).is_ok() && stage.caller(&rsa.sign(&good)).is_ok());
    assert!(!Oidc::takes(&format!("a.b.{}", "c".repeat(JWT_CHARS_MAX))));
}

#[test]
fn keys_for_other_uses_and_of_other_kinds_are_passed_over() {
    let signer = Signer::ecdsa("e");
    for (name, value) in [("use", "enc"), ("alg", "ES384"), ("crv", "P-384"), ("kty", "oct"), ("x", "AAAA")] {
        let mut jwk = signer.jwk();
        jwk[name] = value.into();
        assert!(Key::of_jwk(jwk).is_none(), "{name} {value}");
    }
    assert!(Key::of_jwk(json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "e" })).is_none());
    let mut plain = signer.jwk();
    plain.as_object_mut().unwrap().retain(|name, _| name != "alg" && name != "use");
    assert!(Key::of_jwk(plain).is_some());
}

#[test]
fn a_key_without_a_name_is_found_where_it_is_the_only_one() {
    let (one, two) = (Signer { id: None, ..Signer::ecdsa("") }, Signer { id: None, ..Signer::ecdsa("") });
    let stage = Stage::new(&[&one]);
    assert!(stage.caller(&one.sign(&claims(&["boss"]))).is_ok());
    let stage = Stage::new(&[&one, &two]);
    assert_eq!(stage.caller(&one.sign(&claims(&["boss"]))), Err(Denied::Unknown));
}

#[test]
fn a_new_key_is_looked_up_and_a_flood_of_unknown_ones_asks_once_in_a_while() {
    let (old, new) = (Signer::ecdsa("old"), Signer::ecdsa("new"));
    let stage = Stage::new(&[&old]);
    let good = claims(&["boss"]);
    assert!(stage.caller(&old.sign(&good)).is_ok());
    stage.publish(&[&new]);
    let later = ASK_AFTER + Duration::from_secs(1);
    assert_eq!(stage.caller(&new.sign(&good)), Err(Denied::Unknown), "asked a moment ago");
    assert!(stage.caller_after(later, &new.sign(&good)).is_ok());
    assert_eq!(stage.caller_after(later, &old.sign(&good)), Err(Denied::Unknown), "it was withdrawn");
    let before = stage.asked();
    for number in 0..200 {
        let flood = Signer { id: Some(["x", "y", "z"][number % 3]), ..Signer::ecdsa("x") };
        let at = later + Duration::from_millis(100 * number as u64);
        assert_eq!(stage.caller_after(at, &flood.sign(&good)), Err(Denied::Unknown));
    }
    assert!(stage.asked() - before <= 2, "{} of 200", stage.asked() - before);
}

#[test]
fn an_issuer_that_is_away_is_told_and_hurts_nobody_whose_key_is_known() {
    let signer = Signer::ecdsa("e");
    let stage = Stage::new(&[&signer]);
    let token = signer.sign(&claims(&["boss"]));
    stage.go_away();
    let away = stage.caller(&token);
    assert!(matches!(&away, Err(Denied::Issuer(why)) if why.contains("connection refused")), "{away:?}");
    stage.publish(&[&signer]);
    let mut at = ASK_AFTER;
    assert!(stage.caller_after(at, &token).is_ok(), "once it is back");
    stage.go_away();
    for step in [OLD_AFTER, OLD_AFTER * 2] {
        at += step;
        assert!(stage.caller_after(at, &token).is_ok(), "its key is known");
        stage.settle();
    }
    assert!(stage.oidc.error().is_some(), "it was asked meanwhile");
    let dead = stage.caller_after(at + DEAD_AFTER, &token);
    assert!(matches!(dead, Err(Denied::Issuer(_))), "{dead:?}");
    stage.publish(&[&Signer::ecdsa("next")]);
    at += DEAD_AFTER + ASK_AFTER;
    assert_eq!(stage.caller_after(at, &token), Err(Denied::Unknown), "its key was withdrawn");
}

#[test]
fn old_keys_are_looked_up_beside_the_requests() {
    let (old, new) = (Signer::ecdsa("old"), Signer::ecdsa("new"));
    let stage = Stage::new(&[&old]);
    let token = old.sign(&claims(&["boss"]));
    assert!(stage.caller(&token).is_ok());
    stage.publish(&[&new]);
    assert!(stage.caller_after(OLD_AFTER, &token).is_ok());
    stage.settle();
    assert_eq!(stage.caller_after(OLD_AFTER, &token), Err(Denied::Unknown), "it was withdrawn meanwhile");
}

#[test]
fn a_claim_is_found_by_its_name_and_by_the_way_to_it() {
    let claims = json!({ "groups": "one", "https://d.lab/roles": ["two"], "a": { "b.c": { "d": "three" } } });
    assert_eq!(claim(&claims, "groups"), Some(&json!("one")));
    assert_eq!(claim(&claims, "https://d.lab/roles"), Some(&json!(["two"])));
    assert_eq!(claim(&claims, "a.b.c.d"), Some(&json!("three")));
    assert_eq!(claim(&claims, "a.b"), None);
}

#[test]
fn a_discovery_document_of_another_issuer_is_refused() {
    let stage = Stage::new(&[]);
    let mut options = stage.oidc.options.clone();
    options.issuer = "https://id.lab/realms/ops/".into();
    let error = look_up(&options).unwrap_err();
    assert!(error.contains("it is of the issuer \"https://id.lab/realms/ops\""), "{error}");
    assert!(look_up(&stage.oidc.options).unwrap_err().contains("no key for RS256, ES256 or EdDSA"));
}

fn endpoints_of(told: &[(&str, &str)]) -> Option<Endpoints> {
    let signer = Signer::ecdsa("e");
    let stage = Stage::new(&[&signer]);
    let told = told.iter().map(|(name, url)| (name.to_string(), url.to_string())).collect();
    stage.documents.0.lock().unwrap().endpoints = told;
    let login = stage.runtime.block_on(stage.oidc.login(stage.began)).unwrap();
    assert_eq!(stage.oidc.token_endpoint().is_some(), login.endpoints.is_some());
    login.endpoints
}

#[test]
fn a_browser_is_sent_only_where_nobody_on_the_way_can_answer() {
    let good = [
        ("authorization_endpoint", "https://id.lab/auth?tenant=a"),
        ("token_endpoint", "https://id.lab:8443/token"),
        ("end_session_endpoint", "http://127.0.0.1:81/out"),
    ];
    let found = endpoints_of(&good).unwrap();
    assert_eq!(found.authorization, good[0].1);
    assert_eq!((found.token.as_str(), found.end_session.as_deref()), (good[1].1, Some(good[2].1)));
    assert_eq!(endpoints_of(&good[..2]).unwrap().end_session, None);
    assert_eq!(endpoints_of(&good[..1]), None, "without one for tokens nobody logs in");
    for bad in [
        "http://id.lab/token",
        "http://localhost.id.lab/token",
        "http://localhost@id.lab/token",
        "http://localhost:x@id.lab/token",
        "https://ann@id.lab/token",
        "https:///token",
        "https://*/token",
        "https://id.lab/token; script-src *",
        "https://id.lab/token;script-src",
        "https://id.lab/a,b",
        "https://id.lab/token#part",
        "https://id.lab/t\u{e4}ken",
        "javascript:alert(1)",
        "/token",
        "",
    ] {
        assert_eq!(endpoints_of(&[good[0], ("token_endpoint", bad)]), None, "{bad}");
        assert_eq!(endpoints_of(&[("authorization_endpoint", bad), good[1]]), None, "{bad}");
    }
    let long = format!("https://id.lab/{}", "a".repeat(URL_CHARS_MAX));
    assert_eq!(endpoints_of(&[good[0], ("token_endpoint", &long)]), None);
}

#[test]
fn the_page_sends_the_id_token_where_it_is_the_audience_and_the_access_token_elsewhere() {
    let signer = Signer::ecdsa("e");
    let stage = Stage::new(&[&signer]);
    let token = |client: Option<&str>| {
        let client = client.map(|id| LoginClient { id: id.into(), scope: "openid".into() });
        let oidc = Arc::new(Oidc::new(OidcOptions { client, ..stage.oidc.options.clone() }));
        let login = stage.runtime.block_on(oidc.login(stage.began))?;
        assert_eq!(oidc.token_endpoint(), None, "its document names none");
        Some(login.token)
    };
    assert_eq!(token(Some("drover")), Some(Bearer::IdToken));
    assert_eq!(token(Some("drover-page")), Some(Bearer::AccessToken));
    assert_eq!(token(None), None);
}
