//! Whether both sides have what QEMU's own TLS takes, which it would find out only when it connects.

use crate::preflight::Obstacle;
use crate::settings::Side;

/// What a monitor says of an object that is to be used as TLS credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its type: `tls-creds-x509`, `tls-creds-psk`.
    pub kind: String,
    /// `client` or `server`.
    pub endpoint: String,
}

/// What is in the way of TLS with the object of this name, as the source and the target have it.
pub fn tls_obstacles(
    name: &str,
    source: Option<&Credentials>,
    target: Option<&Credentials>,
) -> Vec<Obstacle> {
    let both = [(Side::Source, "client", source), (Side::Target, "server", target)];
    let mut found: Vec<Obstacle> =
        both.into_iter().filter_map(|(side, endpoint, it)| of_side(name, side, endpoint, it)).collect();
    if let (true, Some(here), Some(there)) = (found.is_empty(), source, target)
        && here.kind != there.kind
    {
        let what = format!("{name} is {} at the source and {} at the target", here.kind, there.kind);
        found.push(Obstacle { what, advice: "give both sides credentials of one kind".into() });
    }
    found
}

fn of_side(name: &str, side: Side, endpoint: &str, it: Option<&Credentials>) -> Option<Obstacle> {
    let obstacle = |what: String, advice: String| Some(Obstacle { what, advice });
    let make = format!("-object tls-creds-x509,id={name},endpoint={endpoint},dir=FOLDER or tls-creds-psk");
    let Some(it) = it else {
        let what = format!("the {side}'s QEMU has no TLS credentials {name}");
        return obstacle(what, format!("start it with {make}, or say `object-add` at its monitor"));
    };
    if !it.kind.starts_with(KIND) {
        return obstacle(
            format!("{name} of the {side} is {} and no TLS credentials", it.kind),
            format!("name {make}"),
        );
    }
    if it.endpoint != endpoint {
        let what = format!("the TLS credentials {name} of the {side} are those of a {}", it.endpoint);
        return obstacle(what, format!("make them with endpoint={endpoint}"));
    }
    None
}

const KIND: &str = "tls-creds-";

/// Where the source knows no name of its target, a certificate proves nothing: QEMU refuses it when it connects.
pub fn tls_name_obstacle(kind: &str, hostname: &str, goes_to: &str) -> Option<Obstacle> {
    let is_nameless = kind == "tls-creds-x509" && hostname.is_empty() && goes_to.starts_with("unix:");
    is_nameless.then(|| Obstacle {
        what: "a unix socket has no name that the target's certificate could be held against".into(),
        advice: "say --tls-hostname, which is in that certificate".into(),
    })
}

/// Somebody set a side to encrypt, and this move was not told to: it would go in the clear on one side, which fails late, or
/// on both, which nobody may have wanted.
pub fn tls_left_set(side: Side, credentials: &str) -> Obstacle {
    Obstacle {
        what: format!("the {side}'s QEMU is set to encrypt what it moves (tls-creds is {credentials:?})"),
        advice: format!(
            "say --tls-creds {credentials}, or set tls-creds to \"\" at its monitor if it is to go in the clear"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, endpoint: &str) -> Credentials {
        Credentials { kind: kind.into(), endpoint: endpoint.into() }
    }

    #[track_caller]
    fn one(source: Option<&Credentials>, target: Option<&Credentials>, words: &[&str]) {
        let found = tls_obstacles("tls0", source, target);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(words.iter().all(|word| found[0].to_string().contains(word)), "{}", found[0]);
    }

    #[test]
    fn both_sides_have_their_part() {
        for kind in ["tls-creds-x509", "tls-creds-psk"] {
            let (here, there) = (of(kind, "client"), of(kind, "server"));
            assert_eq!(tls_obstacles("tls0", Some(&here), Some(&there)), []);
        }
    }

    #[test]
    fn what_is_missing_or_something_else_is_named_with_its_side() {
        let (here, there) = (of("tls-creds-psk", "client"), of("tls-creds-psk", "server"));
        one(None, Some(&there), &["source", "no TLS credentials tls0", "endpoint=client"]);
        one(Some(&here), None, &["target", "no TLS credentials tls0", "endpoint=server"]);
        one(Some(&here), Some(&of("secret", "")), &["target", "secret"]);
        one(Some(&here), Some(&here), &["target", "those of a client"]);
        one(
            Some(&of("tls-creds-x509", "client")),
            Some(&there),
            &["x509 at the source", "psk at the target"],
        );
        assert_eq!(tls_obstacles("tls0", None, None).len(), 2);
    }

    #[test]
    fn a_certificate_wants_a_name() {
        let is_missing = |kind, name, to| tls_name_obstacle(kind, name, to).is_some();
        assert!(is_missing("tls-creds-x509", "", "unix:/run/x"));
        assert!(!is_missing("tls-creds-x509", "host-b", "unix:/run/x"));
        assert!(!is_missing("tls-creds-x509", "", "tcp:host-b:0"));
        assert!(!is_missing("tls-creds-psk", "", "unix:/run/x"));
    }

    #[test]
    fn what_somebody_set_is_named() {
        let told = tls_left_set(Side::Target, "tls9").to_string();
        assert!(told.contains("target") && told.contains("--tls-creds tls9"), "{told}");
    }
}
