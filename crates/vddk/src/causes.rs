//! Known causes of failures, told by lines of nbdkit's and VDDK's logs, and of the logs of a host's NFC servers (vpxa,
//! hostd). Pure.
//!
//! The signs are words that VMware's documentation, nbdkit's manual, public trackers and the note of the NFC protocol
//! quote; the samples were written for the tests in that manner. They were not seen on a host of our own.

use std::fmt;

/// What a cause does to a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Login or permission: it fails until somebody mends that.
    Access,
    /// No connection, or none that can be trusted.
    Connection,
    /// No room at the host now.
    Busy,
    /// Library, plugin and nbdkit do not fit.
    Setup,
    /// It fails.
    Failure,
    /// It goes on, slower.
    Slow,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Access => "access",
            Effect::Connection => "connection",
            Effect::Busy => "busy",
            Effect::Setup => "setup",
            Effect::Failure => "failure",
            Effect::Slow => "slow",
        })
    }
}

/// A known cause.
#[derive(Debug)]
pub struct Cause {
    /// Short name, for machines.
    pub id: &'static str,
    /// What it is.
    pub title: &'static str,
    /// What to try.
    pub advice: &'static str,
    /// What it does.
    pub effect: Effect,
    /// A line that holds all words of one of these, in this order and whatever the case, tells of it; `*` stands
    /// between the words.
    pub signs: &'static [&'static str],
    /// Such lines.
    pub samples: &'static [&'static str],
}

/// A line that tells a cause.
#[derive(Debug)]
pub struct Finding<'a> {
    /// The cause.
    pub cause: &'static Cause,
    /// Number of the first such line, from 1.
    pub line: usize,
    /// That line.
    pub text: &'a str,
    /// How many lines tell of it.
    pub count: usize,
}

/// The causes, those whose signs are the surest first: a line tells of the first that it fits.
pub static CAUSES: &[Cause] = &[
    Cause {
        id: "nfc_memory",
        title: "the host's NFC server is out of memory",
        advice: "read fewer disks of this host at once (limits.disks), use smaller AIO buffers or none, look whether a backup is \
                 running; on a single ESXi host nfcsvc/maxMemory in hostd's config.xml can be raised, and nfc_memory in the plan \
                 with it",
        effect: Effect::Busy,
        signs: &["nfc error 5", "failed to allocate the requested", "nfc_no_memory", "nfc*out of memory"],
        samples: &[
            "nbdkit: vddk[1]: error: [NFC ERROR] NfcFssrvrProcessErrorMsg: received NFC error 5 from server: Failed to \
             allocate the requested 4194328 bytes",
            "2026-11-21T10:00:00.000Z error -[07512] [NFC ERROR] NFC_NO_MEMORY while opening [ds1] web01/web01.vmdk",
            "error vpxa[2099841] [Originator@6876 sub=Libs] Failed to allocate the requested 24117272 bytes",
        ],
    },
    Cause {
        id: "nfc_sessions",
        title: "the host or the vCenter serves no more disks at once",
        advice: "read fewer disks at once (limits.disks); a vCenter serves about 50, all programs together, so look at \
                 backups too",
        effect: Effect::Busy,
        signs: &[
            "no more nfc sessions",
            "too many*sessions",
            "too many*connections",
            "maximum number of*connections",
        ],
        samples: &[
            "nbdkit: vddk[3]: error: [NFC ERROR] NfcNewAuthdConnectionEx: the host has no more NFC sessions: maximum of 50 reached",
            "error -[00017] VixDiskLibVim: FindObjectInVc: Too many outstanding connections to host esx1",
        ],
    },
    Cause {
        id: "aio",
        title: "the AIO buffers cannot be had",
        advice: "leave `aio` out of the plan: large buffers are for cold copies from vSphere 7.0.3 on, and take memory of the host",
        effect: Effect::Busy,
        signs: &["nfcaio*fail", "nfcaio*error", "nfcaio*cannot", "aio session*fail"],
        samples: &[
            "nbdkit: vddk[2]: error: [NFC ERROR] NfcAioInitSession: Failed to set up 4 buffers of 1048576 bytes",
        ],
    },
    Cause {
        id: "thumbprint",
        title: "the server's certificate is not the expected one",
        advice: "compare the thumbprint in the plan with the server's own (`openssl s_client`); it changes when the certificate is \
                 renewed",
        effect: Effect::Connection,
        signs: &[
            "thumbprint*mismatch",
            "thumbprint*does not match",
            "sslverifycert",
            "certificate*not trusted",
            "ssl*certificate verify failed",
        ],
        samples: &[
            "nbdkit: vddk[1]: error: SSL: Thumbprint mismatch: the server's certificate is not the one given, AA:BB",
            "warning -[00021] SSLVerifyCertAgainstSystemStore: Subject mismatch: vc.example.org vs 192.0.2.1",
        ],
    },
    Cause {
        id: "session_expired",
        title: "the session at the server has ended",
        advice: "drover logs in anew by itself; if it comes again and again, look for something that ends idle sessions early",
        effect: Effect::Access,
        signs: &["session is not authenticated", "notauthenticated"],
        samples: &[
            "nbdkit: vddk[1]: error: VixDiskLibVim: Login failure. Callback error 3014: the session is not authenticated",
        ],
    },
    Cause {
        id: "password",
        title: "user or password is wrong",
        advice: "check both; for a vCenter the user needs its domain (administrator@vsphere.local)",
        effect: Effect::Access,
        signs: &[
            "login failure",
            "incorrect user name or password",
            "invalidlogin",
            "cannot authenticate user",
        ],
        samples: &[
            "nbdkit: vddk[1]: error: VixDiskLibVim: Login failure. Callback error 3014: incorrect user name or password",
            "error -[00009] VixDiskLibVim: Error Vim::Fault::InvalidLogin",
        ],
    },
    Cause {
        id: "dns",
        title: "a host's name cannot be resolved",
        advice: "VDDK connects to the ESXi host by the name under which the vCenter knows it: let this machine resolve that name (DNS \
                 or /etc/hosts)",
        effect: Effect::Connection,
        signs: &["host address lookup*failed", "name or service not known", "name resolution", "getaddrinfo"],
        samples: &[
            "nbdkit: vddk[1]: error: Host address lookup for server esx1.example.org failed: Name or service not known",
            "error -[00031] NfcNewAuthdConnectionEx: Failed to connect: Temporary failure in name resolution",
        ],
    },
    Cause {
        id: "port_902",
        title: "the host's NFC port cannot be reached",
        advice: "open TCP port 902 from this machine to each ESXi host (not only 443 to the vCenter), or say which it is with `nfc_port`",
        effect: Effect::Connection,
        signs: &[
            ":902",
            "port 902",
            "newauthdconnection*fail",
            "authd*connection refused",
            "authd*timed out",
        ],
        samples: &[
            "error -[00042] NfcNewAuthdConnectionEx: Failed to connect: Connection timed out",
            "nbdkit: vddk[1]: error: cannot connect to peer 192.0.2.7:902: Connection refused",
        ],
    },
    Cause {
        id: "library",
        title: "VDDK's library cannot be loaded",
        advice: "libdir is the unpacked vmware-vix-disklib-distrib folder with lib64 in it; a release of VDDK newer than the plugin \
                 needs a newer nbdkit-plugin-vddk",
        effect: Effect::Setup,
        signs: &["libvixdisklib*cannot open", "vddk symbol*missing", "cannot open shared object"],
        samples: &[
            "nbdkit: error: libvixDiskLib.so.6: cannot open shared object file: No such file or directory",
            "nbdkit: error: required VDDK symbol \"VixDiskLib_Wait\" is missing.",
        ],
    },
    Cause {
        id: "permission",
        title: "the user may not read this disk, or it is not open to reading",
        advice: "the user needs VirtualMachine.Provisioning.GetVmFiles, DiskRandomRead and Datastore.FileManagement on the VM and \
                 its datastores; a running VM is read from a snapshot only",
        effect: Effect::Access,
        signs: &[
            "insufficient permission",
            "do not have access rights",
            "permission to perform this operation was denied",
            "permission check failed for file",
        ],
        samples: &[
            "error vpxa[2099841] [Originator@6876 sub=Libs] permission check failed for file '[ds1] a/a.vmdk'",
            "nbdkit: vddk[1]: error: VixDiskLib_ConnectEx: Insufficient permissions in the host operating system",
            "nbdkit: vddk[1]: error: VixDiskLib_Open: [ds1] a/a.vmdk: You do not have access rights to this file",
        ],
    },
    Cause {
        id: "transport",
        title: "a transport mode cannot be used, so the next one is taken",
        advice: "san needs the LUNs on this machine and hotadd needs it to be a VM of the same vSphere; write \
                 `transports: nbdssl:nbd` if neither is so",
        effect: Effect::Slow,
        signs: &["transport mode*cannot be used", "transport*not available", "falling back*transport"],
        samples: &[
            "nbdkit: debug: VixDiskLib: transport mode hotadd cannot be used here, trying the next",
            "warning -[00051] VixDiskLib: Transport san not available for [ds1] web01/web01.vmdk",
        ],
    },
    Cause {
        id: "no_transport",
        title: "no transport mode that was asked for can be used",
        advice: "write `transports: nbdssl:nbd`, which works over the network",
        effect: Effect::Failure,
        signs: &["none of the transport modes"],
        samples: &["nbdkit: vddk[1]: error: VixDiskLib: none of the transport modes san can be used"],
    },
    Cause {
        id: "extents",
        title: "the host does not tell which areas are allocated",
        advice: "nothing: drover reads the whole disk then, which takes longer",
        effect: Effect::Slow,
        signs: &["queryallocatedblocks*invalid", "queryallocatedblocks*fail", "queryallocatedblocks:"],
        samples: &[
            "nbdkit: vddk[1]: error: VixDiskLib_QueryAllocatedBlocks: One of the parameters was invalid",
        ],
    },
    Cause {
        id: "locked",
        title: "another program has the disk open",
        advice: "a backup or a datastore download reads it: wait until that has ended",
        effect: Effect::Busy,
        signs: &["failed to lock the file", "disklib*16392"],
        samples: &[
            "error vpxa[2099841] [Originator@6876 sub=Libs] [NFC ERROR] DiskLib error 16392: Failed to lock the file",
        ],
    },
    Cause {
        id: "running",
        title: "the disk of a running VM, without a snapshot",
        advice: "only what a snapshot froze can be read: look whether somebody removed the snapshot meanwhile",
        effect: Effect::Failure,
        signs: &["cannot be opened in multiwriter mode"],
        samples: &[
            "error vpxa[2099841] [Originator@6876 sub=Libs] Thin/TBZ/Sparse disks cannot be opened in multiwriter mode",
        ],
    },
    Cause {
        id: "file",
        title: "the disk is not in that snapshot, or its file has moved",
        advice: "somebody removed the snapshot or moved the VM meanwhile; look at its snapshots and run again",
        effect: Effect::Failure,
        signs: &["a file was not found", "file not found", "the snapshot*not found"],
        samples: &["nbdkit: vddk[1]: error: VixDiskLib_Open: [ds1] a/a.vmdk: A file was not found"],
    },
    Cause {
        id: "refused",
        title: "the server refused the connection",
        advice: "the thumbprint is another one, the port is closed, or it is no vSphere; `drover inventory` tells which",
        effect: Effect::Connection,
        signs: &[
            "server refused connection",
            "server could not be contacted",
            "error in communication",
            "connection was lost",
        ],
        samples: &[
            "nbdkit: vddk[1]: error: VixDiskLib_ConnectEx: The server refused connection",
            "nbdkit: vddk[2]: error: command 17: asynchronous read failed: The connection was lost",
        ],
    },
];

/// The cause that a line tells of.
pub fn of_line(line: &str) -> Option<&'static Cause> {
    let line = line.to_lowercase();
    CAUSES.iter().find(|cause| cause.signs.iter().any(|sign| fits(&line, sign)))
}

/// The surest cause that any of the lines tells of, other than those that only slow it down.
pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Option<&'static Cause> {
    let place = |cause: &&'static Cause| CAUSES.iter().position(|it| it.id == cause.id);
    lines.into_iter().filter_map(of_line).filter(|cause| cause.effect != Effect::Slow).min_by_key(place)
}

/// All causes that a log tells of, each once, in the order of their first lines.
pub fn of_log(text: &str) -> Vec<Finding<'_>> {
    let mut findings: Vec<Finding<'_>> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(cause) = of_line(line) else { continue };
        match findings.iter_mut().find(|finding| finding.cause.id == cause.id) {
            Some(finding) => finding.count += 1,
            None => findings.push(Finding { cause, line: number + 1, text: line, count: 1 }),
        }
    }
    findings
}

fn fits(line: &str, sign: &str) -> bool {
    let mut rest = line;
    sign.split('*').all(|words| match rest.find(words) {
        Some(at) => {
            rest = &rest[at + words.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_tells_its_own_cause() {
        for cause in CAUSES {
            assert!(!cause.samples.is_empty(), "{} has no sample", cause.id);
            for sample in cause.samples {
                assert_eq!(of_line(sample).map(|found| found.id), Some(cause.id), "{sample}");
            }
        }
    }

    #[test]
    fn signs_are_in_lower_case_and_ids_are_used_once() {
        for (number, cause) in CAUSES.iter().enumerate() {
            assert!(cause.signs.iter().all(|sign| *sign == sign.to_lowercase()), "{}", cause.id);
            assert!(CAUSES[..number].iter().all(|earlier| earlier.id != cause.id), "{}", cause.id);
        }
    }

    #[test]
    fn harmless_lines_tell_nothing() {
        for line in
            ["", "nbdkit: debug: TLS disabled: could not load TLS certificates", "transport mode: nbdssl"]
        {
            assert!(of_line(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_log_tells_each_cause_once_with_its_first_line() {
        let (memory, dns) = (CAUSES[0].samples[0], "x: Name or service not known");
        let log = format!("starting\n{memory}\n{dns}\n{memory}\n");
        let found: Vec<_> = of_log(&log).iter().map(|it| (it.cause.id, it.line, it.count)).collect();
        assert_eq!(found, [("nfc_memory", 2, 2), ("dns", 3, 1)]);
    }

    #[test]
    fn the_surest_cause_wins_and_slowness_is_none() {
        let refused = "VixDiskLib_ConnectEx: The server refused connection";
        let thumbprint = "SSL: Thumbprint mismatch";
        assert_eq!(of_lines([refused, thumbprint]).map(|cause| cause.id), Some("thumbprint"));
        assert!(of_lines(["transport mode san cannot be used here"]).is_none());
    }
}
