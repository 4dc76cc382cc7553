//! Makes the seeds of the corpus again: sound inputs, from which fuzzing starts.
//! `cargo test -p drover-lab --test fuzz -- --ignored make_seeds`, with QEMU's tools at hand.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use drover_copy::report::{About, ReportWriter};
use drover_copy::{Entry, Header, Leaf, LeafTable, encode_entry};
use drover_types::{BLOCK_BYTES, Digest};

use super::targets::pack;

fn keep(target: &str, name: &str, bytes: &[u8]) {
    let folder = drover_lab::workspace().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
}

/// A byte that says what the target makes of the rest, and the rest.
fn chosen(choice: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![choice];
    bytes.extend(rest);
    bytes
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn make_seeds() {
    heads();
    texts();
    journals();
    reports();
    servers();
    clients();
    files();
    images();
    links();
    agents();
    relays();
    pieces();
    nfc();
    guests();
    windows();
}

/// Disks with a partition of ext4 that holds what a look into a guest reads, and with one that an UEFI boots from; the head of a physical
/// volume of LVM; an initramfs.
fn guests() {
    let work = tempfile::tempdir().unwrap();
    let script = "mkdir -p tree/etc/network tree/boot/grub init/lib/modules/6/kernel && cd tree\n\
                  echo 'PRETTY_NAME=\"Debian 12\"' > etc/os-release\n\
                  echo '/dev/sdb1 /data ext4' > etc/fstab\n\
                  echo 'iface ens192 inet static' > etc/network/interfaces\n\
                  printf 'linux /vmlinuz root=/dev/sda1\\ninitrd /initrd.img-6\\n' > boot/grub/grub.cfg\n\
                  cd ../init && echo x > lib/modules/6/kernel/virtio_blk.ko\n\
                  find . | LC_ALL=C sort | cpio -o -H newc --quiet -R 0:0 | gzip -9n > ../tree/boot/initrd.img-6 && cd ..\n\
                  truncate -s 128k part && mke2fs -q -F -t ext4 -b 1024 -N 32 -O ^has_journal,^resize_inode -m 0 -d tree part\n\
                  truncate -s 160k disk\n\
                  printf 'label: dos\\nstart=32 size=256 type=83\\n' | sfdisk -q --no-reread --no-tell-kernel disk\n\
                  dd if=part of=disk bs=512 seek=32 conv=notrunc status=none\n\
                  mkfs.vfat --invariant -F 12 -s 1 -r 16 -f 1 -C esp.part 48 > /dev/null\n\
                  { printf MZ; head -c 98 /dev/zero; } > program\n\
                  mmd -i esp.part ::/EFI ::/EFI/debian ::/EFI/Microsoft ::/EFI/Microsoft/Boot ::/EFI/BOOT\n\
                  for loader in debian/shimx64.efi Microsoft/Boot/bootmgfw.efi BOOT/BOOTX64.EFI; do mcopy -i esp.part program ::/EFI/$loader; done\n\
                  truncate -s 56k esp && printf 'label: dos\\nstart=8 size=96 type=ef\\n' | sfdisk -q --no-reread --no-tell-kernel esp\n\
                  dd if=esp.part of=esp bs=512 seek=8 conv=notrunc status=none";
    let made = Command::new("sh").args(["-ec", script]).current_dir(work.path()).status().unwrap();
    assert!(made.success());
    keep("inspect_disk", "ext4", &std::fs::read(work.path().join("disk")).unwrap());
    let volume = drover_lab::workspace().join("crates/inspect/fixtures/lvm-first.gz");
    let head =
        Command::new("sh").args(["-ec", "gzip -dc \"$0\" | head -c 32768"]).arg(volume).output().unwrap();
    assert_eq!(head.stdout.len(), 32768);
    keep("inspect_disk", "lvm", &head.stdout);
    keep("inspect_disk", "esp", &std::fs::read(work.path().join("esp")).unwrap());
    keep("inspect_initramfs", "gzip", &std::fs::read(work.path().join("tree/boot/initrd.img-6")).unwrap());
}

/// A hive, and an NTFS with two of them, of which what a look reads is kept alone.
fn windows() {
    use drover_lab::windows::{Windows, hive};
    let work = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(work.path().join(name), bytes).unwrap();
    let Windows { software, system, .. } = Windows::server().and_driver("viostor");
    put("SOFTWARE", &hive(&software));
    put("SYSTEM", &hive(&system));
    keep(
        "inspect_hive",
        "system",
        &hive(
            "[Select]\n\"Current\"=dword:00000001\n[A\\B]\n\"Addresses\"=multi:\"192.0.2.7\"\n[Services\\a]\n\"Start\"=dword:00000000\n",
        ),
    );
    let script = "truncate -s 2M part && mkntfs -F -Q -q -c 1024 part 2>/dev/null && mkdir m && ntfs-3g part m\n\
                  mkdir -p m/Windows/System32/config m/Windows/System32/drivers\n\
                  cp SOFTWARE SYSTEM m/Windows/System32/config && printf MZ > m/Windows/System32/drivers/viostor.sys\n\
                  printf hibr > m/hiberfil.sys && truncate -s 8k m/hiberfil.sys && umount m";
    let made = Command::new("sh").args(["-ec", script]).current_dir(work.path()).status().unwrap();
    assert!(made.success());
    let image = Arc::new(Seen(std::fs::read(work.path().join("part")).unwrap(), Mutex::default()));
    let inside = drover_inspect::inspect(&[image.clone() as Arc<dyn drover_inspect::ReadAt>]);
    assert!(inside.windows.is_some_and(|windows| windows.is_hibernated), "{:?}", inside.unseen);
    let mut kept = vec![0; image.0.len()];
    for sector in image.1.lock().unwrap().iter() {
        let span = sector * 512..(sector + 1) * 512;
        kept[span.clone()].copy_from_slice(&image.0[span]);
    }
    keep("inspect_ntfs", "windows", &pack(&kept));
}

/// A disk, and which of its sectors were read one by one.
struct Seen(Vec<u8>, Mutex<BTreeSet<usize>>);

impl drover_inspect::ReadAt for Seen {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        // What it holds is told by its first bytes, of which many are read.
        let seen = if bytes.len() <= 32 << 10 { bytes.len() } else { 512 };
        self.1.lock().unwrap().extend(offset as usize / 512..(offset as usize + seen).div_ceil(512));
        self.0.read_at(offset, bytes)
    }
}

fn pieces() {
    use drover_pack::pieces::head;
    use drover_pack::{Codec, Packer};
    let (mut packer, text) = (Packer::new().unwrap(), b"drover moves machines ".repeat(40));
    // Cut after 21 bytes each time.
    let mut stream = chosen(20, &[&head(Codec::Plain, 5, 5)[..], b"plain"].concat());
    for codec in [Codec::Lz4, Codec::Zstd1] {
        let packed = packer.pack(codec, &text).unwrap();
        stream.extend([&head(codec, packed.len(), text.len())[..], packed].concat());
    }
    keep("stream_pieces", "all", &stream);
}

/// A frame of NFC: head, words of the payload, extra.
fn nfc_frame(kind: u32, op: u32, payload: &[u32], extra: &[u8]) -> Vec<u8> {
    let head = [0xa100_da7a, kind, 4 * payload.len() as u32, op];
    let words = head.iter().chain(payload).flat_map(|word| word.to_le_bytes());
    words.chain(extra.iter().copied()).collect()
}

/// What a host answers to the requests of the target, from the operation `first` on.
fn nfc_replies(first: u32) -> Vec<u8> {
    // Status, read, codec, offset, total, offset in the request, plain bytes, extra bytes.
    let io = |offset, total, at, codec, plain, extra: &[u8]| {
        (vec![0, 0, 1, codec, offset, 0, total, at, plain, extra.len() as u32, 0], extra.to_vec())
    };
    let skipz =
        [2048u32, 0, 5, 3, 0x0063_6261].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut out = Vec::new();
    for (op, (payload, extra)) in [
        (0, io(0, 2048, 1024, 0, 1024, &[7; 1024])),
        (3, io(12288, 2048, 0, 3, 2048, &skipz[..19])),
        (0, io(0, 2048, 0, 0, 1024, &[8; 1024])),
        (2, io(8192, 2048, 0, 0, 2048, &[9; 2048])),
        (1, io(4096, 2048, 0, 0, 2048, &[6; 2048])),
        (4, (vec![0, 0, 0, 0, 0, 0, 512, 0, 512, 0, 0], Vec::new())),
    ] {
        out.extend(nfc_frame(7, first + op, &payload, &extra));
    }
    out.extend(nfc_frame(13, first + 5, &[0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0], &[0xaa; 8]));
    out.extend(nfc_frame(1, first + 6, &[99, 0, 0, 7], b"no such"));
    out.extend(nfc_frame(11, first + 6, &[0; 4], b""));
    out
}

fn nfc() {
    keep("nfc_frames", "all", &nfc_replies(0));
    keep("nfc_frames", "error", &nfc_frame(1, 0, &[5, 0, 0, 6], b"memory"));
    let classic = |kind: u32, at: usize, word: u32| {
        let mut message = [0; 264];
        message[..4].copy_from_slice(&kind.to_le_bytes());
        message[at..at + 4].copy_from_slice(&word.to_le_bytes());
        message
    };
    let lines = "220 VMware Authentication Daemon Version 1.10: SSL Required, NFCSSL supported/t, SHA256 supported\r\n\
                 220 hello\r\n200 AB:CD\r\n200 Connect ha-nfcssl\r\n";
    let mut open = vec![0u32; 15];
    (open[2], open[3], open[4], open[5], open[7]) = (0x8000_1234, 0xffff_ffff, 2, 0x1e, 1 << 20);
    let talk = [lines.as_bytes(), &classic(36, 16, 1), &classic(51, 4, 11), &classic(52, 4, 0)].concat();
    let opening = [
        nfc_frame(2, 0, &[0; 4], b""),
        nfc_frame(9, 1, &[1_675_000, 1_675_000, 1], b""),
        nfc_frame(22, 2, &[1], b""),
        nfc_frame(4, 3, &open, b""),
    ];
    keep("nfc_handshake", "all", &[talk, opening.concat(), nfc_replies(4)].concat());
    let mut refused = [lines.as_bytes(), &classic(20, 12, 3)[..]].concat();
    refused.extend(b"no\0");
    keep("nfc_handshake", "refused", &refused);
}

fn relays() {
    for (name, text) in [
        ("rule", "allow from 10.0.0.0/8 to 2001:db8::/32 port 902,8000-8010 congestion bbr rate 2.5g"),
        ("network", "2001:db8::/32"),
        ("listen", "[::]:8000-8010"),
        ("target", "site-b.example.org:8000"),
    ] {
        keep("relay_texts", name, text.as_bytes());
    }
}

fn agents() {
    use drover_agent::message::{Head, Kind, hash_of};
    use drover_types::ByteSpan;
    let span = ByteSpan::new(BLOCK_BYTES, BLOCK_BYTES);
    let write = Head {
        mask: 1,
        hashes: vec![hash_of(&vec![7; BLOCK_BYTES as usize])],
        ..Head::plain(Kind::Write, 3, span)
    };
    let map = Head::plain(Kind::Map, 4, ByteSpan::new(0, 1 << 20));
    let done = Head { detail: 2, ..Head::plain(Kind::Done, 3, ByteSpan::new(0, 0)) };
    let lengths = [[0, 0, 1, 0, 0, 0, 0, 0x80], [0, 0, 15, 0, 0, 0, 0, 0]].concat();
    // Cut at 32 bytes: 0 takes a head without hashes, 1 makes the hashes.
    keep("agent_messages", "write", &chosen(1, &[&write.encode()[..32], b"packed"].concat()));
    keep("agent_messages", "map", &chosen(0, &[&map.encode()[..], &lengths].concat()));
    keep("agent_messages", "refused", &chosen(0, &[&done.encode()[..], b"no room"].concat()));
    for (name, text) in [
        (
            "disk",
            r#"{"service":"disk","version":1,"disk":"vms/web/01.raw","access":{"write":{"size":65536,"how":"resume","run":"r","epoch":3,"attempt":1}}}"#,
        ),
        ("connect", r#"{"service":"connect","to":"[2001:db8::1]:8000"}"#),
        ("pair", r#"{"service":"pair","name":"site-a"}"#),
    ] {
        keep("agent_messages", name, &chosen(2, text.as_bytes()));
    }
    for (name, text) in [
        (
            "opened",
            r#"{"ok":{"version":1,"size":65536,"bytes_min":512,"identity":"i","tag":"t","generation":"g","fast_zero":true,"extents":true,"zeroed":false,"is_new":true,"reserve_bytes":67108864,"takes":["lz4","offer"],"notes":["n"]}}"#,
        ),
        ("stat", r#"{"refused":{"status":5,"why":"there is no pool"}}"#),
    ] {
        keep("agent_messages", name, &chosen(3, text.as_bytes()));
    }
    keep("agent_messages", "name", &chosen(4, b"vms/folder/web01.raw"));
    // Of eight bytes each: what, id, kind, status, mask, block, byte, generation.
    let mut talk = Vec::new();
    for op in [0, 4, 7, 4, 7, 3, 4, 7, 1, 4, 5, 4, 7, 2, 4, 7, 6] {
        talk.extend([op, talk.len() as u8 / 40 + 1, 1, 0, 0, op, 9, 0]);
    }
    keep("agent_client", "talk", &talk);
    keep(
        "agent_client",
        "late",
        &[0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 1, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 50, 0, 4],
    );
}

fn links() {
    use drover_wire::{Credits, Greeting, Header, Hello, Kind, Refusal, RefusalCode, VERSIONS, Welcome};
    let credits = Credits { stream: 1 << 18, messages: 1 << 23, session: 1 << 28 };
    let (instance, name, announce) = ([3; 16], "site-a".to_string(), b"{\"pools\":[]}".to_vec());
    let hello = Hello {
        versions: VERSIONS,
        features: 5,
        join: Some(([1; 16], [2; 32])),
        instance,
        name: name.clone(),
        announce: announce.clone(),
        credits,
    };
    let welcome = Welcome {
        version: 1,
        features: 0,
        session: [4; 16],
        token: [5; 32],
        instance,
        name,
        announce,
        credits,
    };
    let refusal = Refusal { code: RefusalCode::Identity, text: "revoked".into() };
    let said = [
        ("hello", Greeting::Hello(hello)),
        ("welcome", Greeting::Welcome(welcome)),
        ("refusal", Greeting::Refusal(refusal)),
    ];
    for (seed, greeting) in said {
        keep("link_greeting", seed, &chosen(1, &greeting.encode()[8..]));
    }
    let frame = |kind: Kind, sequence, number, head_bytes, payload: &[u8]| {
        let channel = if kind.is_sequenced() { 7 } else { 0 };
        let header =
            Header { sequence, head_bytes, ..Header::new(kind, channel, number).with_payload(payload) };
        [&header.encode()[..], payload].concat()
    };
    let talk = [
        frame(Kind::Open, 1, 0, 0, b"{\"service\":\"sink\"}"),
        frame(Kind::Message, 2, 0, 4, b"headbody"),
        frame(Kind::Ack, 0, 3, 0, &[2, 0, 0, 0, 1, 0, 0, 0]),
        frame(Kind::Credit, 3, 1 << 20, 0, b""),
        frame(Kind::Finish, 4, 1, 0, b""),
        frame(Kind::Ping, 0, 99, 0, b""),
    ];
    keep("link_frames", "talk", &chosen(41, &talk.concat()));
    keep("link_frames", "stream", &chosen(200, &frame(Kind::Data, 1, 0, 0, &[9; 300])));
    // Kind or action, channel, sequence, number, length, head: see the target.
    let opened =
        [0, 4, 0, 0, 0, 1, 0, 18, 0, 1, 4, 0, 0, 0, 3, 0, 15, 4, 3, 4, 0, 111, 0, 0, 0, 15, 4, 16, 4];
    keep("link_peer", "stream", &opened);
    let messages =
        [2, 6, 0, 0, 0, 9, 2, 0, 6, 0, 0, 0, 1, 0, 18, 0, 14, 4, 13, 1, 19, 0, 7, 0, 0, 3, 0, 0, 0, 19, 0];
    keep("link_peer", "messages", &messages);
    keep(
        "link_peer",
        "lines",
        &[
            12, 0, 13, 1, 19, 0, 17, 0, 19, 0, 8, 0, 0, 5, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 19, 0, 11, 0, 0, 0,
            0, 1, 0,
        ],
    );
}

fn heads() {
    let part =
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4/10\r\nContent-Length: 5\r\n\r\nhello";
    keep("http_head", "part", part.as_bytes());
    keep(
        "http_head",
        "chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\n",
    );
    keep("http_head", "old", b"HTTP/1.0 404 Not Found\nDate: today\n\n");
    keep("http_head", "empty", b"HTTP/1.1 204 \r\nX: \r\n\r\n");
}

fn texts() {
    let uris = [
        "nbd://host:10810/a%20name",
        "nbds+unix:///export?socket=/run/nbd.sock&tls-certificates=/etc/pki",
        "nbds://[::1]/?tls-psk-file=/keys.psk",
        "nbd://user:secret@host",
    ];
    for (index, uri) in uris.iter().enumerate() {
        keep("nbd_uri", &index.to_string(), uri.as_bytes());
    }
    let small = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                 target: {type: qemu, folder: /t}\nvms: [{name: a}]\n";
    keep("plan", "small", small.as_bytes());
    keep("plan", "all", include_bytes!("../../../plan/example.yaml"));
    keep("plan", "wrong", b"version: 2\nsource: [1, 2]\nvms: {name: *x}\nvms: &x []\nlimits: {disks: -1}\n");
}

fn journals() {
    let header = Header::new(10_000 * BLOCK_BYTES + 7, "source", "target", 3);
    let entries = [
        Entry::Data { first: 1, leaves: vec![Digest([7; 32]), Digest([8; 32])] },
        Entry::Zero { first: 4090, count: 5000 },
        Entry::Data { first: 10_000, leaves: vec![Digest([9; 32])] },
        Entry::Complete(Digest([9; 32])),
        Entry::pass_begun(2, Some("a state")),
        Entry::Forget { first: 4000, count: 6000 },
        Entry::Zero { first: 4000, count: 6000 },
        Entry::PassComplete { number: 2, root: Digest([6; 32]) },
    ];
    let mut whole = header.encode().to_vec();
    let mut bare = whole[..112].to_vec();
    for entry in &entries {
        let bytes = encode_entry(&header, entry);
        bare.extend(&bytes[..bytes.len() - 16]);
        whole.extend(bytes);
    }
    keep("journal", "whole", &chosen(0, &whole));
    keep("journal", "bare", &chosen(1, &bare));
}

fn reports() {
    let about = About {
        size: 3 * BLOCK_BYTES + 100,
        made_at: 1_700_000_000,
        program: "drover 0.1".to_string(),
        name: "disk.raw".to_string(),
        identity: "a file".to_string(),
    };
    let mut part = LeafTable::new(about.size);
    part.set_zero(0, 4);
    let written = |part: &LeafTable| {
        let mut writer = ReportWriter::new(Vec::new(), &about).unwrap();
        writer.push(part).unwrap();
        writer.finish().unwrap().1
    };
    let zero = written(&part);
    part.set(1, Leaf::Data(Digest([3; 32])));
    let mixed = written(&part);
    for (name, bytes) in [("zero", zero), ("mixed", mixed)] {
        keep("report", &format!("{name}-whole"), &chosen(0, &bytes));
        let head = 40 + u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        let bare = [&bytes[..head], &bytes[head + 16..bytes.len() - 32]].concat();
        keep("report", &format!("{name}-bare"), &chosen(1, &bare));
    }
}

/// What servers say, put together field by field.
#[derive(Default)]
struct Said(Vec<u8>);

impl Said {
    fn u16(mut self, value: u16) -> Said {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Said {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Said {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Said {
        self.0.extend(bytes);
        self
    }

    fn answer(self, option: u32, kind: u32, data: &[u8]) -> Said {
        self.u64(0x0003_e889_0455_65a9).u32(option).u32(kind).u32(data.len() as u32).bytes(data)
    }

    fn greeting() -> Said {
        Said::default().bytes(b"NBDMAGICIHAVEOPT").u16(3)
    }

    fn simple(self, error: u32, cookie: u64, data: &[u8]) -> Said {
        self.u32(0x6744_6698).u32(error).u64(cookie).bytes(data)
    }

    fn chunk(self, kind: u16, cookie: u64, payload: &[u8]) -> Said {
        self.u32(0x668e_33ef).u16(1).u16(kind).u64(cookie).u32(payload.len() as u32).bytes(payload)
    }

    fn extended(self, kind: u16, cookie: u64, offset: u64, payload: &[u8]) -> Said {
        let head = self.u32(0x6e8a_278c).u16(1).u16(kind).u64(cookie).u64(offset);
        head.u64(payload.len() as u64).bytes(payload)
    }
}

const ACK: u32 = 1;
const UNSUPPORTED: u32 = 0x8000_0001;

fn servers() {
    let size = Said::default().u16(0).u64(1 << 20).u16(0x6d).0;
    let blocks = Said::default().u16(3).u32(512).u32(4096).u32(1 << 25).0;
    let context = |id: u32, name: &str| Said::default().u32(id).bytes(name.as_bytes()).0;
    let agreed = |said: Said| {
        said.answer(10, 4, &context(1, "base:allocation"))
            .answer(10, 4, &context(2, "qemu:dirty-bitmap:monday"))
            .answer(10, 4, &context(3, "drover:fence=3"))
            .answer(10, ACK, b"")
            .answer(7, 3, &size)
            .answer(7, 3, &blocks)
            .answer(7, ACK, b"")
    };
    let structured = agreed(Said::greeting().answer(11, UNSUPPORTED, b"no").answer(8, ACK, b""));
    let extended = agreed(Said::greeting().answer(11, ACK, b""));
    let simple = Said::greeting().answer(11, UNSUPPORTED, b"").answer(8, UNSUPPORTED, b"");
    let simple = simple.answer(7, UNSUPPORTED, b"").u64(1 << 20).u16(0x6d);
    let old =
        Said::default().bytes(b"NBDMAGIC").u64(0x0000_4202_8186_1253).u64(1 << 20).u32(5).bytes(&[0; 124]);
    let refused = Said::greeting().answer(11, UNSUPPORTED, b"").answer(8, ACK, b"").answer(10, ACK, b"");
    let refused =
        refused.answer(7, 0x8000_0006, b"no such").answer(3, 2, b"\0\0\0\x03abcd").answer(3, ACK, b"");
    for (name, said) in [
        ("structured", structured),
        ("extended", extended),
        ("simple", simple),
        ("old", old),
        ("refused", refused),
    ] {
        keep("nbd_client", name, &said.0);
    }
    let listed =
        Said::greeting().answer(11, ACK, b"").answer(3, 2, b"\0\0\0\x04diskwith words").answer(3, ACK, b"");
    let listed = listed
        .answer(6, 3, &size)
        .answer(6, 3, &blocks)
        .answer(6, 3, b"\0\x02for people")
        .answer(6, ACK, b"");
    let listed = listed.answer(9, 4, &context(1, "base:allocation")).answer(9, ACK, b"");
    keep("nbd_list", "one", &listed.0);
    keep("nbd_list", "policy", &Said::greeting().answer(11, ACK, b"").answer(3, 0x8000_0002, b"no").0);
    transmissions();
}

fn transmissions() {
    let run = |length: u32, flags: u32| Said::default().u32(length).u32(flags).0;
    let data = |length: usize, offset: u64| Said::default().u64(offset).bytes(&vec![7; length]).0;
    let hole = Said::default().u64(512).u32(4096).0;
    let error = Said::default().u32(28).u16(4).bytes(b"full").0;
    let simple = Said::default().simple(0, 1, &[7; 16]).simple(0, 2, &[8; 4096]).simple(22, 3, b"");
    let simple = simple.simple(0, 4, b"").simple(28, 5, b"").simple(0, 6, b"");
    keep("nbd_replies", "simple", &chosen(0, &simple.0));
    let status = |id: u32| [&id.to_be_bytes()[..], &run(4096, 3), &run(1 << 19, 0)].concat();
    let last = Said::default().chunk(1, 1, &data(16, 0)).chunk(2, 2, &hole).chunk(5, 3, &status(1));
    let last = last.chunk(0, 4, b"").chunk(0x8001, 5, &error).chunk(0, 6, b"");
    keep("nbd_replies", "structured", &chosen(1, &last.0));
    let long = |id: u32| Said::default().u32(id).u32(2).u64(4096).u64(3).u64(1 << 19).u64(0).0;
    let last = Said::default().extended(1, 1, 0, &data(16, 0)).extended(2, 2, 512, &hole);
    let last = last.extended(6, 3, 0, &long(1)).extended(0, 4, 0, b"").extended(0x8001, 5, 512, &error);
    keep("nbd_replies", "extended", &chosen(2, &last.extended(0, 6, 0, b"").0));
}

fn clients() {
    let option = |said: Said, code: u32, data: &[u8]| {
        said.bytes(b"IHAVEOPT").u32(code).u32(data.len() as u32).bytes(data)
    };
    let begun = option(option(Said::default().u32(3), 3, b""), 6, b"\0\0\0\x04disk\0\x01\0\x03");
    let begun = option(option(begun, 9, b"\0\0\0\x04disk\0\0\0\0"), 5, b"");
    keep("nbd_server", "options", &chosen(0, &option(begun, 2, b"").0));
    keep("nbd_server", "old", &chosen(0, &option(Said::default().u32(1), 1, b"disk").0));
    let request = |said: Said, flags: u16, command: u16, cookie: u64, offset: u64, length: u32| {
        said.u32(0x2560_9513).u16(flags).u16(command).u64(cookie).u64(offset).u32(length)
    };
    let asked = request(request(Said::default(), 0, 0, 1, 0, 16384), 1, 1, 2, 512, 8).bytes(b"eight by");
    let asked = request(request(request(asked, 0, 3, 3, 0, 0), 2, 6, 4, 0, 4096), 0, 4, 5, 0, 512);
    let asked = request(request(request(asked, 0, 7, 6, 0, 32768), 8, 7, 7, 1, 5), 0, 2, 8, 0, 0);
    keep("nbd_server", "requests", &chosen(1, &asked.0));
    keep("nbd_server", "structured", &chosen(2, &asked.0));
    let long = |said: Said, flags: u16, command: u16, cookie: u64, offset: u64, length: u64| {
        said.u32(0x21e4_1c71).u16(flags).u16(command).u64(cookie).u64(offset).u64(length)
    };
    let asked = long(long(Said::default(), 0, 0, 1, 0, 16384), 33, 1, 2, 512, 8).bytes(b"eight by");
    keep("nbd_server", "extended", &chosen(3, &long(long(asked, 0, 7, 3, 0, 32768), 0, 2, 4, 0, 0).0));
}

/// What SFTP servers say: the length of a packet, its type, the id and the rest.
fn files() {
    let packet = |said: Said, kind: u8, id: u32, rest: &[u8]| {
        said.u32(rest.len() as u32 + 5).bytes(&[kind]).u32(id).bytes(rest)
    };
    let string = |bytes: &[u8]| Said::default().u32(bytes.len() as u32).bytes(bytes).0;
    let status = |code: u32, words: &str| {
        Said::default().u32(code).bytes(&string(words.as_bytes())).bytes(&string(b"en")).0
    };
    // Size, owner, mode, times.
    let full = Said::default().u32(15).u64(1 << 20).u32(0).u32(0).u32(0o100_644).u32(7).u32(8).0;
    let opened =
        packet(packet(Said::default(), 2, 3, &string(b"posix-rename@openssh.com")), 102, 1, &string(b"h"));
    let opened = packet(opened, 105, 2, &full);
    keep("sftp", "opened", &chosen(0, &packet(opened, 103, 10, &string(&[7; 16])).0));
    let refused = packet(packet(Said::default(), 2, 3, b""), 101, 1, &status(2, "No such file"));
    keep("sftp", "refused", &chosen(0, &refused.0));
    // Reads have the ids from 10 on; what is left out of one is asked for again.
    let data = packet(packet(Said::default(), 103, 11, &string(&[8; 4096])), 103, 10, &string(&[7; 10]));
    let data = packet(packet(data, 101, 16, &status(1, "end")), 101, 13, &status(4, "failure"));
    let data = packet(packet(data, 103, 17, &string(&[9; 6])), 103, 12, &string(&[9; 8192]));
    keep("sftp", "data", &chosen(1, &data.0));
}

/// A few blocks of data in a small disk, so that tables have something to tell.
fn content() -> Vec<u8> {
    let mut bytes = vec![0; 256 << 10];
    for (at, byte) in [(0, 1), (70 << 10, 2), (255 << 10, 3)] {
        bytes[at..at + 600].fill(byte);
    }
    bytes
}

fn images() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.raw"), content()).unwrap();
    let kinds = [
        ("image_qcow2", "small", "-O qcow2 -o cluster_size=512"),
        ("image_qcow2", "default", "-O qcow2"),
        ("image_qcow2", "compressed", "-O qcow2 -c -o cluster_size=4k"),
        ("image_qcow2", "zstd", "-O qcow2 -c -o compression_type=zstd,cluster_size=16k"),
        ("image_qcow2", "subclusters", "-O qcow2 -o extended_l2=on,cluster_size=16k"),
        ("image_vmdk", "sparse", "-O vmdk"),
        ("image_vmdk", "stream", "-O vmdk -o subformat=streamOptimized"),
        ("image_vhd", "dynamic", "-O vpc -o force_size=on"),
        ("image_vhd", "fixed", "-O vpc -o subformat=fixed,force_size=on"),
        ("image_vhdx", "dynamic", "-O vhdx -o block_size=1M"),
    ];
    for (target, name, options) in kinds {
        let image = convert(folder.path(), options);
        keep(target, name, &chosen(0, &pack(&image)));
        if target.starts_with("image_vhd") {
            keep(target, &format!("{name}-sealed"), &chosen(1, &pack(&image)));
        }
    }
    backed(folder.path());
    let text = "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n\
                RW 8 FLAT \"disk.vmdk\" 0\nRW 16 ZERO\nddb.adapterType = \"lsilogic\"\n";
    let mut flat = text.as_bytes().to_vec();
    flat.resize(4096, 0);
    keep("image_vmdk", "flat", &chosen(0, &pack(&flat)));
    appliances(folder.path());
}

fn backed(folder: &Path) {
    let arguments = "create -q -f qcow2 -u -b disk.qcow2 -F qcow2 -o cluster_size=512 a.image 64k";
    run(folder, "qemu-img", arguments);
    keep("image_qcow2", "backed", &chosen(0, &pack(&std::fs::read(folder.join("a.image")).unwrap())));
}

fn appliances(folder: &Path) {
    let ovf = include_str!("small.ovf");
    std::fs::write(folder.join("vm.ovf"), ovf).unwrap();
    std::fs::write(folder.join("vm-disk1.vmdk"), convert(folder, "-O vmdk -o subformat=streamOptimized"))
        .unwrap();
    let sum = "SHA256(vm.ovf)= 0000000000000000000000000000000000000000000000000000000000000000\n";
    std::fs::write(folder.join("vm.mf"), sum).unwrap();
    run(folder, "tar", "--format=ustar -b 1 -cf vm.ova vm.ovf vm.mf vm-disk1.vmdk");
    keep("image_ova", "ustar", &std::fs::read(folder.join("vm.ova")).unwrap());
    run(folder, "tar", "--format=pax -b 1 -cf vm.ova vm.ovf");
    keep("image_ova", "pax", &std::fs::read(folder.join("vm.ova")).unwrap());
}

fn convert(folder: &Path, options: &str) -> Vec<u8> {
    run(folder, "qemu-img", &format!("convert -f raw {options} a.raw a.image"));
    std::fs::read(folder.join("a.image")).unwrap()
}

fn run(folder: &Path, program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
