/// Characters of a text in the name of a file.
const CHARS_MAX: usize = 120;

/// A text of others as the name of a file, which is no path: its letters, digits, `.`, `-` and `_`, with `_` in the place of all
/// others and of a dot at the beginning; at most 120 characters.
pub fn file_name(text: &str) -> String {
    let is_safe = |at: usize, c: char| c.is_ascii_alphanumeric() || "-_".contains(c) || c == '.' && at > 0;
    let safe: String = text
        .chars()
        .take(CHARS_MAX)
        .enumerate()
        .map(|(at, c)| if is_safe(at, c) { c } else { '_' })
        .collect();
    if safe.is_empty() { "_".into() } else { safe }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_out_of_no_folder() {
        assert_eq!(file_name("esx-1.lab:443/../é"), "esx-1.lab_443_..__");
        assert_eq!([file_name(".."), file_name("."), file_name("")], ["_.", "_", "_"]);
        assert_eq!(file_name(&"x".repeat(500)).len(), CHARS_MAX);
    }
}
