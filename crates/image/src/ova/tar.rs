use std::collections::HashSet;
use std::io;

use drover_types::ByteSpan;

use crate::fault::{damaged, unsupported};
use crate::source::{ReadAt, read_piece};

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) span: ByteSpan,
}

/// Files in one archive. An appliance has a handful.
const MEMBERS_MAX: usize = 1000;
/// Headers looked at, those of long names, folders and links too.
const HEADERS_MAX: usize = 8 * MEMBERS_MAX;
/// A long name or a set of extended fields.
const EXTENSION_BYTES_MAX: u64 = 64 << 10;

const BLOCK_BYTES: u64 = 512;

/// Lists the files of a tar archive without reading them: ustar, GNU long names, pax paths and sizes.
///
/// ```text
/// 0 name 100   124 size 12   148 checksum 8   156 type 1   257 "ustar"   345 prefix 155      (512 bytes)
/// ```
/// Numbers are octal text, or binary (GNU) if the first bit is set. Then the file, padded to 512 bytes.
/// Source: POSIX `pax`, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
pub(crate) fn list(source: &dyn ReadAt) -> io::Result<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    let mut names = HashSet::new();
    let mut extended = Extended::default();
    let mut at = 0;
    for _ in 0..HEADERS_MAX {
        if at + BLOCK_BYTES > source.length() {
            return Ok(members);
        }
        let header =
            read_piece(source, "a header of the archive", ByteSpan::new(at, BLOCK_BYTES), BLOCK_BYTES)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(members);
        }
        check_sum(&header, at)?;
        let kind = header[156];
        let data = at + BLOCK_BYTES;
        let own = matches!(kind, b'x' | b'g' | b'L' | b'K');
        let size = extended.size.take().filter(|_| !own).map_or_else(|| number(&header[124..136]), Ok)?;
        let span = ByteSpan::new(data, size);
        let end = data.checked_add(size).filter(|end| *end <= source.length());
        let end =
            end.ok_or_else(|| damaged(format!("the archive ends within a file of {size} bytes at {at:#x}")))?;
        match kind {
            b'x' => extended.read_pax(&read_piece(source, "a pax header", span, EXTENSION_BYTES_MAX)?)?,
            b'L' => {
                extended.name = Some(text(&read_piece(source, "a long name", span, EXTENSION_BYTES_MAX)?)?)
            }
            b'g' | b'K' => {}
            b'S' => return Err(unsupported("the archive holds a sparse file; make it without --sparse")),
            b'0' | b'7' | 0 => {
                let name = extended.name.take().map_or_else(|| name(&header), Ok)?;
                let name = name.strip_prefix("./").unwrap_or(&name).to_string();
                // Which one would be meant? The checked one and the read one must not differ.
                if !names.insert(name.clone()) {
                    return Err(damaged(format!("the archive holds '{}' twice", name.escape_default())));
                }
                members.push(Member { name, span });
            }
            // Folders, links, devices: nothing of an appliance.
            _ => extended = Extended::default(),
        }
        if members.len() > MEMBERS_MAX {
            return Err(unsupported(format!("the archive holds more than {MEMBERS_MAX} files")));
        }
        at = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    }
    Err(unsupported(format!("the archive holds more than {HEADERS_MAX} headers")))
}

/// What is said of the next file before its header.
#[derive(Default)]
struct Extended {
    name: Option<String>,
    size: Option<u64>,
}

impl Extended {
    /// Lines `LENGTH KEY=VALUE\n`, where the length counts the whole line.
    fn read_pax(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let fault = || damaged("a pax header of the archive is broken");
        while !bytes.is_empty() && bytes[0] != 0 {
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(fault)?;
            let length: usize = text(&bytes[..space])?.parse().map_err(|_| fault())?;
            let line = bytes.get(space + 1..length).and_then(|line| line.strip_suffix(b"\n"));
            let (key, value) = line.and_then(split_at_equals).ok_or_else(fault)?;
            match key {
                b"path" => self.name = Some(text(value)?),
                b"size" => self.size = Some(text(value)?.parse().map_err(|_| fault())?),
                _ if key.starts_with(b"GNU.sparse") => {
                    return Err(unsupported("the archive holds a sparse file; make it without --sparse"));
                }
                _ => {}
            }
            bytes = &bytes[length..];
        }
        Ok(())
    }
}

fn split_at_equals(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|byte| *byte == b'=')?;
    Some((&line[..at], &line[at + 1..]))
}

/// The checksum is the sum of the header's bytes with blanks in its own place.
fn check_sum(header: &[u8], at: u64) -> io::Result<()> {
    let own = 148..156;
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| if own.contains(&at) { u64::from(b' ') } else { u64::from(*byte) })
        .sum();
    if number(&header[own.clone()]).is_ok_and(|told| told == sum) {
        return Ok(());
    }
    Err(damaged(format!("there is no archive header at {at:#x}; is it a tar archive, and whole?")))
}

fn number(field: &[u8]) -> io::Result<u64> {
    let fault = || damaged("a number in a header of the archive is broken");
    if field[0] & 0x80 != 0 {
        let first = u128::from(field[0] & 0x7f);
        let value = field[1..]
            .iter()
            .try_fold(first, |value, byte| (value < 1 << 64).then_some(value << 8 | u128::from(*byte)));
        return value.and_then(|value| u64::try_from(value).ok()).ok_or_else(fault);
    }
    let digits = text(field)?;
    let digits = digits.trim_matches(' ');
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| fault()) }
}

fn name(header: &[u8]) -> io::Result<String> {
    let name = text(&header[..100])?;
    let prefix = if header[257..].starts_with(b"ustar\0") { text(&header[345..500])? } else { String::new() };
    Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
}

/// A text up to its first zero byte.
fn text(bytes: &[u8]) -> io::Result<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]);
    text.map(str::to_string).map_err(|_| unsupported("a name in the archive is not UTF-8"))
}
