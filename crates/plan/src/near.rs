//! What the user may have meant.

use crate::glob::matches;

/// The candidate that takes the fewest edits from `word`, if they are few.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = word.chars().count().div_ceil(3).min(3);
    let close = candidates.map(|candidate| (distance(word, candidate), candidate));
    close.filter(|(edits, _)| *edits <= most).min().map(|(_, candidate)| candidate)
}

/// Names shown for one pattern.
const NEAR_MAX: usize = 3;

/// The names that come closest to a pattern that matches none. A `*` or `?` is left out, and as much of a name is compared.
pub fn near_names<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let literal: String = pattern.chars().filter(|it| !matches!(it, '*' | '?')).collect();
    let letters = literal.chars().count();
    let most = letters.div_ceil(3).min(3);
    let compared = |name: &str| match literal == pattern {
        true => distance(&literal, name),
        false => distance(&literal, &name.chars().take(letters).collect::<String>()),
    };
    let mut close: Vec<(usize, &str)> =
        names.map(|name| (compared(name), name)).filter(|(edits, _)| letters > 0 && *edits <= most).collect();
    close.sort_unstable();
    close.dedup();
    close.into_iter().take(NEAR_MAX).map(|(_, name)| name).collect()
}

/// What comes close to a pattern that none of these names matches; nothing if one does.
pub fn unmatched<'a>(pattern: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<Vec<&'a str>> {
    match names.clone().any(|name| matches(pattern, name)) {
        true => None,
        false => Some(near_names(pattern, names)),
    }
}

/// Insertions, deletions, replacements and swaps of neighbours from `a` to `b`, whatever the case of letters.
fn distance(a: &str, b: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (a, b) = (letters(a), letters(b));
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut edits = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                edits = edits.min(rows[i - 2][j - 2] + 1);
            }
            row.push(edits);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_near_a_pattern_that_matches_none() {
        let names = || ["web01", "web02", "web03", "web04", "db01"].into_iter();
        assert_eq!(near_names("wbe*", names()), ["web01", "web02", "web03"]);
        assert_eq!(near_names("db1", names()), ["db01"]);
        assert!(near_names("mail*", names()).is_empty());
        assert!(near_names("*", names()).is_empty());
    }

    #[test]
    fn a_pattern_is_unmatched_if_no_name_fits() {
        let names = || ["web01", "db01"].into_iter();
        assert_eq!(unmatched("web*", names()), None);
        assert_eq!(unmatched("wbe01", names()), Some(vec!["web01", "db01"]));
        assert_eq!(unmatched("mail", names()), Some(vec![]));
    }

    #[test]
    fn finds_what_was_probably_meant() {
        let names = || ["web01", "web02", "db01"].into_iter();
        assert_eq!(nearest("wbe01", names()), Some("web01"));
        assert_eq!(nearest("mail", names()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("WEB01", "web01"), 0);
    }

    #[test]
    fn longer_words_may_be_further_off_and_the_nearest_wins() {
        let is_near = |word: &str, other: &str| nearest(word, [other].into_iter()).is_some();
        assert!(is_near("abc", "abx") && !is_near("abc", "axx"), "one of three letters");
        assert!(is_near("abcd", "abxx") && !is_near("abcd", "axxx"), "two of four");
        assert!(
            is_near("abcdefghi", "abcdefxxx") && !is_near("abcdefghijkl", "abcdefghxxxx"),
            "three at most"
        );
        assert_eq!(nearest("abcdef", ["abcdxx", "abcdex", "xbcdxf"].into_iter()), Some("abcdex"));
        assert!(!is_near("", "a"));
    }

    /// The same, slow and obvious.
    fn edits(a: &[u8], b: &[u8]) -> usize {
        let (Some((last_a, rest_a)), Some((last_b, rest_b))) = (a.split_last(), b.split_last()) else {
            return a.len() + b.len();
        };
        let replaced = edits(rest_a, rest_b) + usize::from(last_a != last_b);
        let fewest = replaced.min(edits(rest_a, b) + 1).min(edits(a, rest_b) + 1);
        match (a, b) {
            ([first_a @ .., c, d], [first_b @ .., e, f]) if c == f && d == e => {
                fewest.min(edits(first_a, first_b) + 1)
            }
            _ => fewest,
        }
    }

    #[test]
    fn a_distance_is_the_fewest_edits_that_there_are() {
        let mut words = vec![String::new()];
        for at in 0..15 {
            words.extend(["a", "b"].map(|letter| format!("{}{letter}", words[at])));
        }
        words.extend(["abc", "cab", "acb", "cba", "bcaa", "aacb"].map(String::from));
        for a in &words {
            for b in &words {
                assert_eq!(distance(a, b), edits(a.as_bytes(), b.as_bytes()), "{a} {b}");
            }
        }
    }
}
