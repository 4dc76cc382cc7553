/// A word as a shell reads it back; left alone where nothing in it means anything to a shell.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn words_come_back_from_the_shell_as_they_were() {
        for word in ["plain", "", "it's", "$(reboot) `x` \"y\" \\", "a b\nc", "*?[", "größe"] {
            let line = format!("printf %s {}", shell_word(word));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(shell_word("app:shop/new-1.0"), "app:shop/new-1.0", "it is read as it is");
    }
}
