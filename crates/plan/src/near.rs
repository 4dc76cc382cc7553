//! What the user may have meant.

/// The candidate that takes the fewest edits from `word`, if they are few.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = word.chars().count().div_ceil(3).min(3);
    let close = candidates.map(|candidate| (distance(word, candidate), candidate));
    close.filter(|(edits, _)| *edits <= most).min().map(|(_, candidate)| candidate)
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
    fn finds_what_was_probably_meant() {
        let names = || ["web01", "web02", "db01"].into_iter();
        assert_eq!(nearest("wbe01", names()), Some("web01"));
        assert_eq!(nearest("mail", names()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
