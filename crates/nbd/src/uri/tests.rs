use super::*;
use proptest::prelude::*;

fn refused(text: &str) -> String {
    text.parse::<NbdUri>().unwrap_err().to_string()
}

#[test]
fn reads_hosts_ports_and_exports() {
    for (text, expected) in [
        ("nbd://web", NbdUri::tcp("web", 10809, "")),
        ("nbd://web/", NbdUri::tcp("web", 10809, "")),
        ("nbd://web:10810/disk%201", NbdUri::tcp("web", 10810, "disk 1")),
        ("nbd:///a/b", NbdUri::tcp("localhost", 10809, "a/b")),
        ("nbd://web//slash", NbdUri::tcp("web", 10809, "/slash")),
        ("nbd://[2001:db8::1]:9/x", NbdUri::tcp("2001:db8::1", 9, "x")),
        ("nbd://[::1]", NbdUri::tcp("::1", 10809, "")),
        ("nbd+unix:///?socket=/run/nbd.sock", NbdUri::unix("/run/nbd.sock", "")),
        ("nbd+unix:///e?&socket=/run/a%20b", NbdUri::unix("/run/a b", "e")),
        ("NBD://web/", NbdUri::tcp("web", 10809, "")),
        ("nbd://web:/%E2%82%AC?", NbdUri::tcp("web", 10809, "€")),
        ("nbd://[fe80::1%25eth0]/", NbdUri::tcp("fe80::1%eth0", 10809, "")),
        ("nbd+unix:///?socket=%00/abstract", NbdUri::unix("\0/abstract", "")),
    ] {
        assert_eq!(text.parse::<NbdUri>().unwrap(), expected, "{text}");
    }
}

#[test]
fn says_what_is_wrong() {
    for (text, reason) in [
        ("nbd+vsock://1", "not known"),
        ("http://web", "not known"),
        ("web:10809", "does not start with"),
        ("nbd://web:99999/", "is no port"),
        ("nbd://::1/", "goes in []"),
        ("nbd://[::1/", "not closed"),
        ("nbd://me@web/", "user name"),
        ("nbd+unix://web/x?socket=/a", "has no host"),
        ("nbd+unix:///x", "?socket=/path is missing"),
        ("nbd://web/%4", "two digits"),
        ("nbd://web/%zz", "two digits"),
        ("nbd://web/%00", "zero byte"),
        ("nbd://web/%ff", "UTF-8"),
        ("nbd://web/disk#1", "write %23"),
        ("nbd://we%2Fb/", "no host name"),
        ("nbd://web:+1/", "is no port"),
        ("nbd://web/?socket=/a", "needs nbd+unix://"),
        ("nbd://web/?tls-hostname=x", "tls-hostname needs nbds://"),
        ("nbd+unix:///e?a=b&socket=/run/a", "parameter a is not known"),
        ("nbd+unix:///?socket=/a&socket=/b", "socket is there twice"),
        ("nbd+unix:///?socket=", "path is empty"),
        ("nbd+unix:///?socket=%00", "path is empty"),
        ("nbd+unix:///?socket=/a%00b", "holds a zero byte"),
        ("nbds://me:secret@web/?tls-psk-file=/k", "password"),
        ("nbds://me@web/", "goes with ?tls-psk-file"),
        ("nbds://me@web/?tls-psk-file=/k&tls-username=you", "named twice"),
        ("nbds://web/?tls-psk-file=/k&tls-certificates=/c", "exclude each other"),
        ("nbds://web/?tls-type=psk", "needs tls-psk-file"),
        ("nbds://web/?tls-type=anon", "proves nothing"),
        ("nbds://web/?tls-verify-peer=0", "may be anybody"),
        ("nbds://web/?tls-hostname=", "tls-hostname is empty"),
        ("nbds://web/?x-thing=1", "x-thing is not known"),
    ] {
        assert!(refused(text).contains(reason), "{text}: {}", refused(text));
    }
}

#[test]
fn reads_what_guards_the_way() {
    let tls = |text: &str| text.parse::<NbdUri>().unwrap().tls.unwrap();
    assert_eq!(tls("nbds://web/x?tls-verify-peer=1&tls-type=x509"), UriTls::default());
    let folder = tls("nbds://web/x?tls-certificates=/etc/pki/a%20b&tls-hostname=web.example");
    assert_eq!(folder.certificates.as_deref(), Some(Path::new("/etc/pki/a b")));
    assert_eq!(folder.hostname.as_deref(), Some("web.example"));
    for text in [
        "nbds+unix://me%3Ayou@/?socket=/s&tls-psk-file=/k",
        "nbds+unix:///?tls-type=psk&tls-username=me:you&socket=/s&tls-psk-file=/k",
    ] {
        let key = tls(text);
        assert_eq!(
            (key.username.as_deref(), key.psk_file.as_deref()),
            (Some("me:you"), Some(Path::new("/k")))
        );
    }
}

#[test]
fn a_place_does_not_tell_what_guards_the_way() {
    let uri: NbdUri = "nbds://me@web/x?tls-psk-file=/k&tls-hostname=h".parse().unwrap();
    assert_eq!(uri.to_string(), "nbds://me@web/x?tls-psk-file=/k&tls-hostname=h");
    assert_eq!(uri.place(), "nbd://web/x");
}

#[test]
fn a_refusal_does_not_carry_escapes_to_the_terminal() {
    assert!(!refused("nbd://web/?a\x1b[2J=1").contains('\x1b'));
}

#[test]
fn a_refusal_does_not_tell_a_password() {
    for text in ["nbds://me:secret@web/?tls-psk-file=/k", "nbd://secret@web/", "nbds://a@secret@web?x=1"] {
        assert!(!refused(text).contains("secret"), "{}", refused(text));
    }
}

proptest! {
    #[test]
    fn a_printed_uri_reads_as_itself(host in "[a-z0-9.-]{1,20}", port: u16, export in "[^\0]{0,30}") {
        let tcp = NbdUri::tcp(&host, port, &export);
        prop_assert_eq!(tcp.to_string().parse::<NbdUri>().unwrap(), tcp.clone());
        let unix = NbdUri::unix(format!("/run/{host} ?&"), &export);
        prop_assert_eq!(unix.to_string().parse::<NbdUri>().unwrap(), unix.clone());
        let user = Some(format!("{host}:/@")).filter(|_| port > 9);
        let psk_file = user.as_ref().map(|_| PathBuf::from("/a b&c"));
        let guarded = UriTls { username: user, psk_file, hostname: Some(host), certificates: None };
        for uri in [tcp.with_tls(guarded.clone()), unix.with_tls(guarded)] {
            prop_assert_eq!(uri.to_string().parse::<NbdUri>().unwrap(), uri);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "(nbd(s|\\+unix)?://)?.{0,40}") {
        let _ = text.parse::<NbdUri>();
    }
}
