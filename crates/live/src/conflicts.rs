//! What of a wish QEMU does not do together with something else of it: told before anything is set.
//!
//! QEMU says so late, or not at all: memory that goes by RDMA is not encrypted, whatever credentials are named. What one of
//! both versions does not know is told by [`crate::settings`].
//!
//! Source: QEMU `migration/options.c` (`migrate_caps_check`, `migrate_rdma_caps_check`, `migrate_params_check`).

use crate::preflight::Obstacle;
use crate::settings::{Compression, Rdma, Wish};

/// What of a wish does not go together, each with what to do.
pub fn conflicts(wish: &Wish) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let mut add = |what: &str, advice: &str| {
        found.push(Obstacle { what: what.to_string(), advice: advice.to_string() });
    };
    let packs = wish.compression != Compression::None;
    let many = wish.channels > 1;
    if let Some(rdma) = wish.rdma {
        let others = [
            (many, "many connections do not go by RDMA", "leave --channels out"),
            (packs, "memory that goes by RDMA is not compressed", "leave --compress out"),
            (wish.xbzrle_bytes.is_some(), "xbzrle does not go by RDMA", "leave --xbzrle out"),
            (wish.postcopy, "post-copy does not go by RDMA", "leave --allow postcopy out"),
            (
                wish.tls.is_some(),
                "QEMU does not encrypt what goes by RDMA",
                "use a network that nobody else reads and leave TLS out, or go by tcp:",
            ),
            (
                wish.is_carried,
                "RDMA goes from host to host, not over a link",
                "leave --via out, or go by unix:",
            ),
        ];
        for (_, what, advice) in others.into_iter().filter(|(is_so, ..)| *is_so) {
            add(what, advice);
        }
        if !is_chunk(rdma) {
            add("chunks of RDMA are 1 MiB to 1 GiB and a power of two", "choose another --rdma-chunk-size");
        }
    }
    if let Some(bytes) = wish.xbzrle_bytes {
        if many || packs {
            add("xbzrle goes over one plain connection", "leave --channels and --compress out, or --xbzrle");
        }
        if !bytes.is_power_of_two() || bytes < PAGE_BYTES_MAX {
            add("xbzrle's memory is a power of two, of 64 KiB at least", "choose another --xbzrle");
        }
    }
    if wish.is_unordered && packs {
        add(
            "compressed memory takes two connections, which the target's QEMU cannot tell apart behind a link",
            "leave --compress out (a link compresses by itself)",
        );
    }
    if wish.postcopy && wish.postcopy_goes_alone && packs {
        add(
            "memory is compressed by connections which one of these QEMUs does not know how to end for post-copy",
            "leave --compress or --allow postcopy out",
        );
    }
    let (level, level_max) = match wish.compression {
        Compression::None => (0, 0),
        Compression::Zlib(level) => (level, 9),
        Compression::Zstd(level) => (level, 20),
    };
    if level > level_max {
        add(
            &format!("{level} is no level of that compression, {level_max} is the highest"),
            "choose a lower one",
        );
    }
    found
}

/// The largest page of a machine that QEMU has; its caches are not smaller than one.
const PAGE_BYTES_MAX: u64 = 64 << 10;

fn is_chunk(rdma: Rdma) -> bool {
    rdma.chunk_bytes.is_none_or(|bytes| bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Tls;

    #[track_caller]
    fn one(wish: &Wish, word: &str) {
        let found = conflicts(wish);
        assert!(found.len() == 1 && found[0].to_string().contains(word), "{found:?}");
    }

    fn rdma() -> Wish {
        Wish { rdma: Some(Rdma { pin_all: true, chunk_bytes: Some(1 << 30) }), ..Wish::default() }
    }

    #[test]
    fn what_goes_together_is_left_alone() {
        let tls = Some(Tls::default());
        let many =
            Wish { channels: 8, compression: Compression::Zstd(20), tls: tls.clone(), ..Wish::default() };
        let cached =
            Wish { xbzrle_bytes: Some(64 << 20), postcopy: true, tls, is_carried: true, ..Wish::default() };
        for wish in [Wish::default(), rdma(), many, cached] {
            assert_eq!(conflicts(&wish), [], "{wish:?}");
        }
    }

    #[test]
    fn rdma_goes_alone() {
        one(&Wish { channels: 2, ..rdma() }, "--channels");
        one(&Wish { compression: Compression::Zlib(1), ..rdma() }, "--compress");
        one(&Wish { xbzrle_bytes: Some(1 << 20), ..rdma() }, "--xbzrle");
        one(&Wish { postcopy: true, ..rdma() }, "postcopy");
        one(&Wish { tls: Some(Tls::default()), ..rdma() }, "not encrypt");
        one(&Wish { is_carried: true, ..rdma() }, "--via");
    }

    #[test]
    fn chunks_of_rdma_are_of_a_size_that_qemu_takes() {
        for bytes in [0, 1 << 19, 3 << 20, 1 << 31] {
            one(
                &Wish { rdma: Some(Rdma { pin_all: false, chunk_bytes: Some(bytes) }), ..Wish::default() },
                "power of two",
            );
        }
    }

    #[test]
    fn a_cache_of_pages_goes_over_one_plain_connection_and_has_a_size() {
        let cached = Wish { xbzrle_bytes: Some(64 << 20), ..Wish::default() };
        one(&Wish { channels: 4, ..cached.clone() }, "one plain connection");
        one(&Wish { compression: Compression::Zstd(1), ..cached.clone() }, "one plain connection");
        for bytes in [0, 4096, 3 << 20] {
            one(&Wish { xbzrle_bytes: Some(bytes), ..cached.clone() }, "power of two");
        }
    }

    #[test]
    fn what_takes_two_connections_wants_them_in_order() {
        let packed = Wish { compression: Compression::Zstd(1), ..Wish::default() };
        one(&Wish { is_carried: true, is_unordered: true, ..packed.clone() }, "link");
        assert_eq!(conflicts(&Wish { is_carried: true, ..packed }), []);
    }

    #[test]
    fn old_ones_do_not_go_ahead_of_what_is_compressed() {
        let packed = Wish { compression: Compression::Zstd(1), postcopy_goes_alone: true, ..Wish::default() };
        assert_eq!(conflicts(&packed), []);
        one(&Wish { postcopy: true, ..packed.clone() }, "post-copy");
        assert_eq!(conflicts(&Wish { postcopy: true, postcopy_goes_alone: false, ..packed }), []);
    }

    #[test]
    fn levels_have_an_end() {
        let of = |compression| Wish { compression, ..Wish::default() };
        assert_eq!(conflicts(&of(Compression::Zlib(9))), []);
        one(&of(Compression::Zlib(10)), "9 is the highest");
        one(&of(Compression::Zstd(21)), "20 is the highest");
    }
}
