//! What fuzzing needs of the private parts: a hive of a registry, which few whole disks would lead to.

use crate::hive::{Hive, Key};

/// A hive, whatever its cells say.
pub fn hive(bytes: &[u8]) {
    if let Ok(hive) = Hive::open(bytes.to_vec()) {
        walk(&hive);
    }
}

/// Looks at some keys, their values and what lies below them.
pub(crate) fn walk(hive: &Hive) {
    let look = |key: &Key<'_>| {
        let names = ["Current", "ProductName", "Long", "Odd", "Addresses", "Start"];
        let found = names.map(|name| key.value(name));
        found.into_iter().flatten().flatten().count()
    };
    for path in ["Select", r"Microsoft\Windows NT\CurrentVersion", r"A\B", "Services"] {
        let Ok(Some(key)) = hive.key(path) else { continue };
        look(&key);
        let children = key.children(CHILDREN_MAX).unwrap_or_default();
        assert!(children.len() <= CHILDREN_MAX);
        children.iter().for_each(|child| {
            look(child);
        });
    }
}

const CHILDREN_MAX: usize = 64;
