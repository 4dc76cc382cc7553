//! What the benches share: settings, medians.

use anyhow::{Context, Result};

/// A setting from the environment.
///
/// # Errors
/// If it is set and makes no sense.
pub fn variable<T: std::str::FromStr>(name: &str, default: T) -> Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// Smallest, median and largest; zeros of nothing.
pub fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.as_slice() {
        [] => (0.0, 0.0, 0.0),
        [one] => (*one, *one, *one),
        [low, .., high] => (*low, values[values.len() / 2], *high),
    }
}
