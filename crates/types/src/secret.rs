use std::fmt;

/// A password or ticket: shown nowhere, not in `Debug`, not in an error, not in the store, not in the log.
#[derive(PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        drover_log::hold(&text);
        Secret(text)
    }

    /// The text itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Clone for Secret {
    fn clone(&self) -> Secret {
        Secret::new(self.0.as_str())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        drover_log::release(&self.0);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_text() {
        let secret = Secret::new("hunter2");
        assert_eq!((format!("{secret:?}").as_str(), secret.reveal()), ("Secret(***)", "hunter2"));
    }
}
