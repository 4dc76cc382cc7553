//! Keys of hooks and checks.

use super::{Kind, Rule, TRUST_ONCE, Table, key};

pub(crate) static HOOKS: Table = Table {
    keys: &[
        key(
            "before_copy",
            Kind::Many(&HOOK),
            "",
            "The VM was checked, and nothing was done to it. May leave the VM out.",
        ),
        key(
            "before_shutdown",
            Kind::Many(&HOOK),
            "",
            "The guest runs and is about to be shut down. May leave the VM out. Not called for a VM that is off.",
        ),
        key("after_shutdown", Kind::Many(&HOOK), "", "The guest is down at the source."),
        key("after_copy", Kind::Many(&HOOK), "", "Its disks are at the target, and compared."),
        key("before_start", Kind::Many(&HOOK), "", "The machine is about to be started at the target."),
        key("after_start", Kind::Many(&HOOK), "", "The machine was started at the target."),
        key("after_done", Kind::Many(&HOOK), "", "The VM has arrived, and the source is cleaned up."),
        key("after_failure", Kind::Many(&HOOK), "", "The VM failed or was stopped, and that is undone."),
    ],
    rules: &[],
};

/// Of a wave.
pub(crate) static WAVE_HOOKS: Table = Table {
    keys: &[
        key(
            "before_wave",
            Kind::Many(&HOOK),
            "",
            "It is the wave's turn, and none of its VMs begins or moves over yet. One that fails keeps all of them from it.",
        ),
        key(
            "after_wave",
            Kind::Many(&HOOK),
            "",
            "All VMs of the wave have ended, well or not. A failure is told, and changes nothing.",
        ),
    ],
    rules: &[],
};

pub(crate) static HOOK: Table = Table {
    keys: &[
        key("command", Kind::TextList, "", "Program and arguments; no shell. JSON is on standard input."),
        key("shell", Kind::Text, "", "A line for /bin/sh -c, in place of a command."),
        key("url", Kind::Text, "", "Address that gets the JSON by POST, in place of a command."),
        key("token_file", Kind::Path, "", "File whose first line is sent as a bearer token."),
        key("token_env", Kind::Text, "", "Environment variable with that token."),
        key("ca_file", Kind::Path, "", "PEM file of the certificate authorities to trust."),
        key("thumbprint", Kind::Thumbprint, "", "SHA-1 or SHA-256 thumbprint of the certificate."),
        key("insecure", Kind::Flag, "false", "Do not verify the certificate; allows http:// to other hosts."),
        key("timeout", Kind::Duration, "5m", "How long it may take, 24h at most."),
        key(
            "on_failure",
            Kind::Choice(&["stop", "warn"]),
            "stop",
            "stop: the VM fails, or its wave does not begin. warn: the failure is told, and it goes on.",
        ),
    ],
    rules: &[
        Rule::Needs(&["command", "shell", "url"]),
        Rule::NotBoth("command", "shell"),
        Rule::NotBoth("command", "url"),
        Rule::NotBoth("shell", "url"),
        Rule::NotBoth("token_file", "token_env"),
        TRUST_ONCE,
    ],
};

pub(crate) static CHECKS: Table = Table {
    keys: &[
        key(
            "pre_cutover",
            Kind::Many(&CHECK),
            "",
            "Asked before the guest is shut down at the source. All have to pass, or it is not shut down.",
        ),
        key(
            "post_start",
            Kind::Many(&CHECK),
            "",
            "Asked after the machine was started at the target, and by `drover rehearse`. All have to pass.",
        ),
        key(
            "on_post_start_failure",
            Kind::Choice(&["keep", "roll_back"]),
            "",
            "keep: the VM counts as failed, its guest goes on at the target, its source stays off. roll_back: the guest is stopped \
             at the target, what it wrote there is given up, and the source is started again. Unless said: keep.",
        ),
    ],
    rules: &[],
};

pub(crate) static CHECK: Table = Table {
    keys: &[
        key(
            "tcp",
            Kind::Text,
            "",
            "HOST:PORT that takes a connection; {name} is the VM's name at the target.",
        ),
        key("http", Kind::Text, "", "Address whose answer to a GET has a good status; {name} as for tcp."),
        key("status", Kind::Number(100, 599), "", "That status; absent: any from 200 to 299."),
        key("ca_file", Kind::Path, "", "PEM file of the certificate authorities to trust."),
        key("thumbprint", Kind::Thumbprint, "", "SHA-1 or SHA-256 thumbprint of the certificate."),
        key("insecure", Kind::Flag, "false", "Do not verify the certificate."),
        key(
            "serial",
            Kind::Text,
            "",
            "Text of a line that the guest writes to its first serial port; for targets of type qemu on this machine.",
        ),
        key("command", Kind::TextList, "", "Program that ends with 0, and its arguments; JSON as for hooks."),
        key("shell", Kind::Text, "", "A line for /bin/sh -c that ends with 0."),
        key("within", Kind::Duration, "2m", "How long it is tried, 24h at most."),
        key("every", Kind::Duration, "5s", "Time from one try to the next."),
        key("timeout", Kind::Duration, "10s", "How long one try may take."),
    ],
    rules: &[Rule::Needs(&["tcp", "http", "serial", "command", "shell"]), TRUST_ONCE],
};
