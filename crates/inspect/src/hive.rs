//! A hive of Windows' registry, read as it lies in its file: its logs are not replayed, so that what changed in the last moments before a
//! snapshot of a guest that runs may be seen as it was before.
//!
//! Integers are little-endian; places count from byte 4096 of the file.
//!
//! ```text
//! file:  0 "regf", 20 version (u32, 1), 36 the root's cell (u32); cells from 4096 on
//! cell:  0 its bytes (i32, negative: in use), 4 what it holds; offsets below are from there
//! key:   0 "nk", 2 flags (u16, 0x20: the name is Latin-1), 20 subkeys, 28 their list, 36 values, 40 their list (u32 each),
//!        72 bytes of the name (u16), 76 the name
//! list:  0 "lf", "lh", "li" or "ri", 2 how many (u16), 4 places (u32 each; of "lf" and "lh" a hint of 4 bytes behind each). "ri" is a
//!        list of the others. A hint is the name's first four letters ("lf"), or 37 times that of the letters before plus the
//!        next capital letter ("lh")
//! value: 0 "vk", 2 bytes of the name (u16), 4 bytes of data (u32, top bit: they are at 8), 8 cell of the data, 12 kind (u32),
//!        16 flags (u16, 1: the name is Latin-1), 20 the name
//! ```
//!
//! Source: hivex `lib/hivex-internal.h`; M. Suhanov, "Windows registry file format specification".

use std::cell::Cell;
use std::io;

use crate::read::{ReadAt, u16_at, u32_at};

/// A hive.
pub(crate) struct Hive {
    file: Box<dyn ReadAt>,
    root: u32,
    /// Cells that may still be read, and their bytes: what they say of each other may lead in circles.
    left: Cell<u32>,
    left_bytes: Cell<usize>,
}

/// A key of a hive.
pub(crate) struct Key<'a> {
    hive: &'a Hive,
    pub(crate) name: String,
    subkeys: Listed,
    values: Listed,
}

/// How many there are, and where their list is.
#[derive(Clone, Copy)]
struct Listed {
    count: u32,
    at: u32,
}

/// What a value holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Texts(Vec<String>),
    Number(u32),
    Bytes(Vec<u8>),
}

impl Hive {
    pub(crate) fn open(file: impl ReadAt + 'static) -> Result<Hive, String> {
        let mut head = [0; 64];
        file.read_at(0, &mut head).map_err(told)?;
        if &head[..4] != b"regf" || u32_at(&head, 20) != 1 {
            return Err("it does not begin as a hive of the registry does".into());
        }
        let (left, left_bytes) = (Cell::new(CELLS_MAX), Cell::new(BYTES_MAX));
        Ok(Hive { file: Box::new(file), root: u32_at(&head, 36), left, left_bytes })
    }

    /// The key of a path (`Microsoft\Windows NT`), whatever the case of its letters; absent if there is none.
    pub(crate) fn key(&self, path: &str) -> Result<Option<Key<'_>>, String> {
        self.key_at(self.root)?.key(path)
    }

    fn key_at(&self, at: u32) -> Result<Key<'_>, String> {
        let cell = self.cell(at, KEY_BYTES_MAX)?;
        let length = cell.get(72..74).map(|bytes| usize::from(u16_at(bytes, 0)));
        let name = length.and_then(|length| cell.get(76..76 + length)).filter(|_| cell.starts_with(b"nk"));
        let name = name.ok_or("a key of the registry makes no sense")?;
        let listed =
            |count: usize, list: usize| Listed { count: u32_at(&cell, count), at: u32_at(&cell, list) };
        Ok(Key {
            hive: self,
            name: letters(name, u16_at(&cell, 2) & LATIN_KEY != 0),
            subkeys: listed(20, 28),
            values: listed(36, 40),
        })
    }

    /// What a cell holds, up to so many bytes.
    fn cell(&self, at: u32, bytes_max: usize) -> Result<Vec<u8>, String> {
        self.left.set(self.left.get().checked_sub(1).ok_or("its registry has too many keys")?);
        let (mut size, at) = ([0; 4], FIRST + u64::from(at));
        self.file.read_at(at, &mut size).map_err(told)?;
        let size = i32::from_le_bytes(size);
        if size > -8 {
            return Err("a cell of the registry is none that is in use".into());
        }
        let length = (size.unsigned_abs() - 4) as usize;
        if at + 4 + length as u64 > self.file.size() {
            return Err("a cell of the registry is larger than its hive".into());
        }
        let mut bytes = vec![0; length.min(bytes_max)];
        let left_bytes = self.left_bytes.get().checked_sub(bytes.len());
        self.left_bytes
            .set(left_bytes.ok_or("more of its registry would be read than of any that is known")?);
        self.file.read_at(at + 4, &mut bytes).map_err(told)?;
        Ok(bytes)
    }

    /// Calls with each place in a list of keys whose hint does not rule out that name, until that gives something.
    fn each_of_list<T>(
        &self,
        at: u32,
        wanted: Option<&str>,
        may_nest: bool,
        call: &mut dyn FnMut(u32) -> Result<Option<T>, String>,
    ) -> Result<Option<T>, String> {
        let nonsense = || "a list of the registry makes no sense".to_string();
        let list = self.cell(at, LIST_BYTES_MAX)?;
        let (kind, count) =
            list.split_at_checked(4).map(|(head, _)| (&head[..2], u16_at(head, 2))).ok_or_else(nonsense)?;
        let step = if matches!(kind, b"lf" | b"lh") { 8 } else { 4 };
        let entries = list[4..].get(..usize::from(count) * step).ok_or_else(nonsense)?;
        for entry in entries.chunks_exact(step) {
            let place = u32_at(entry, 0);
            let may_be = |wanted: &str| match kind {
                b"lh" => u32_at(entry, 4) == hint(wanted),
                b"lf" => begins_so(&entry[4..], wanted),
                _ => true,
            };
            let found = match kind {
                b"ri" if may_nest => self.each_of_list(place, wanted, false, call)?,
                b"lf" | b"lh" | b"li" => match wanted.is_none_or(may_be) {
                    true => call(place)?,
                    false => None,
                },
                _ => return Err(nonsense()),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl<'a> Key<'a> {
    /// The key of a path below this one; absent if there is none.
    pub(crate) fn key(&self, path: &str) -> Result<Option<Key<'a>>, String> {
        let mut found = None;
        for name in path.split('\\') {
            found = found.as_ref().unwrap_or(self).child(name)?;
            if found.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn child(&self, name: &str) -> Result<Option<Key<'a>>, String> {
        if self.subkeys.count == 0 {
            return Ok(None);
        }
        let hive = self.hive;
        hive.each_of_list(self.subkeys.at, Some(name), true, &mut |place| {
            let key = hive.key_at(place)?;
            Ok(key.name.eq_ignore_ascii_case(name).then_some(key))
        })
    }

    /// At most so many keys right below this one.
    pub(crate) fn children(&self, max: usize) -> Result<Vec<Key<'a>>, String> {
        let (hive, mut found) = (self.hive, Vec::new());
        if self.subkeys.count > 0 {
            hive.each_of_list(self.subkeys.at, None, true, &mut |place| {
                found.push(hive.key_at(place)?);
                Ok((found.len() >= max).then_some(()))
            })?;
        }
        Ok(found)
    }

    /// Names of its values, at most `max` of them.
    pub(crate) fn names(&self, max: usize) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        self.each_value(&mut |name, _| {
            found.push(name);
            Ok((found.len() >= max).then_some(()))
        })?;
        Ok(found)
    }

    /// A value; absent if there is none of the name, or it is of no kind that is known or too large.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, String> {
        let found = self.each_value(&mut |known, cell| {
            if !known.eq_ignore_ascii_case(name) {
                return Ok(None);
            }
            let (bytes, place) = (u32_at(cell, 4), u32_at(cell, 8));
            let length = (bytes & !IS_HERE) as usize;
            let data = match bytes & IS_HERE {
                0 if length > DATA_BYTES_MAX => return Ok(Some(None)),
                0 => self.hive.cell(place, length)?,
                _ => cell[8..12].get(..length).ok_or_else(nonsense)?.to_vec(),
            };
            if data.len() < length {
                return Err(nonsense());
            }
            Ok(Some(value_of(u32_at(cell, 12), data)))
        });
        found.map(Option::flatten)
    }

    /// Visits names and cells of its values until a visit gives something.
    fn each_value<T>(&self, visit: &mut Visit<'_, T>) -> Result<Option<T>, String> {
        let Listed { count, at } = self.values;
        if count == 0 {
            return Ok(None);
        }
        if count > VALUES_MAX {
            return Err("a key of the registry has too many values".into());
        }
        let list = self.hive.cell(at, 4 * count as usize)?;
        for place in list.as_chunks::<4>().0.iter().map(|place| u32::from_le_bytes(*place)) {
            let cell = self.hive.cell(place, VALUE_BYTES_MAX)?;
            let length = cell.get(2..4).map(|bytes| usize::from(u16_at(bytes, 0)));
            let known =
                length.and_then(|length| cell.get(20..20 + length)).filter(|_| cell.starts_with(b"vk"));
            let known = letters(known.ok_or_else(nonsense)?, u16_at(&cell, 16) & LATIN_VALUE != 0);
            if let Some(found) = visit(known, &cell)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A value that is a text; of several texts the first.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, String> {
        Ok(match self.value(name)? {
            Some(Value::Text(text)) => Some(text),
            Some(Value::Texts(texts)) => texts.into_iter().next(),
            Some(Value::Number(_) | Value::Bytes(_)) | None => None,
        })
    }

    /// A value that is texts, or one.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        Ok(match self.value(name)? {
            Some(Value::Text(text)) => vec![text],
            Some(Value::Texts(texts)) => texts,
            Some(Value::Number(_) | Value::Bytes(_)) | None => Vec::new(),
        })
    }

    /// A value that is a number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u32>, String> {
        Ok(match self.value(name)? {
            Some(Value::Number(number)) => Some(number),
            Some(Value::Text(_) | Value::Texts(_) | Value::Bytes(_)) | None => None,
        })
    }
}

type Visit<'a, T> = dyn FnMut(String, &[u8]) -> Result<Option<T>, String> + 'a;

fn nonsense() -> String {
    "a value of the registry makes no sense".into()
}

/// Source: `REG_SZ` and the like of the Windows API.
fn value_of(kind: u32, data: Vec<u8>) -> Option<Value> {
    match kind {
        1 | 2 => Some(Value::Text(texts(&data).into_iter().next().unwrap_or_default())),
        3 => Some(Value::Bytes(data)),
        4 => Some(Value::Number(u32::from_le_bytes(data.try_into().ok()?))),
        7 => Some(Value::Texts(texts(&data).into_iter().filter(|text| !text.is_empty()).collect())),
        _ => None,
    }
}

/// Texts of UTF-16, each of which ends with a zero.
fn texts(data: &[u8]) -> Vec<String> {
    let letters: Vec<u16> = data.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    letters.split(|letter| *letter == 0).map(String::from_utf16_lossy).collect()
}

fn letters(name: &[u8], is_latin: bool) -> String {
    match is_latin {
        true => name.iter().map(|byte| char::from(*byte)).collect(),
        false => texts(name).concat(),
    }
}

/// Of a name in ASCII.
fn hint(name: &str) -> u32 {
    let add = |sum: u32, byte: u8| sum.wrapping_mul(37).wrapping_add(u32::from(byte.to_ascii_uppercase()));
    name.bytes().fold(0, add)
}

/// Whether the letters of a hint are those that a name begins with; without a hint it may.
fn begins_so(hint: &[u8], name: &str) -> bool {
    let known = hint.iter().position(|byte| *byte == 0).unwrap_or(hint.len());
    known == 0 || name.as_bytes().get(..known).is_some_and(|start| start.eq_ignore_ascii_case(&hint[..known]))
}

fn told(error: io::Error) -> String {
    error.to_string()
}

/// Where cells begin.
const FIRST: u64 = 4096;
const LATIN_KEY: u16 = 0x20;
const LATIN_VALUE: u16 = 1;
const IS_HERE: u32 = 1 << 31;
/// A name has at most 255 letters.
const KEY_BYTES_MAX: usize = 76 + 512;
const VALUE_BYTES_MAX: usize = 20 + 512;
/// More than 65,535 places with their hints.
const LIST_BYTES_MAX: usize = 1 << 20;
/// What is larger lies in several cells, and none of it is looked for.
const DATA_BYTES_MAX: usize = 16_344;
const VALUES_MAX: u32 = 4096;
/// A look into a usual hive takes some thousand.
const CELLS_MAX: u32 = 1 << 17;
/// Of these, a few MiB: the list of a thousand services has 8 KiB.
const BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
pub(crate) mod tests;
