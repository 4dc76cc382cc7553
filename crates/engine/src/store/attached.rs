//! What is attached to other VMs so that it can be read there.

use rusqlite::params;

use super::{Durable, Outcome, Store};
use crate::provider::Attachment;

impl Store {
    /// Records a file that is about to be attached.
    pub fn add_attachment(&self, plan: &str, vm: &str, attachment: &Attachment) -> Outcome<()> {
        let Attachment { proxy, file } = attachment;
        self.change(Durable::Now, |db| {
            db.execute(
                "INSERT OR IGNORE INTO attached VALUES (?1, ?2, ?3, ?4)",
                params![plan, vm, proxy, file],
            )
        })?;
        Ok(())
    }

    /// What may be attached of a VM's disks.
    pub fn attachments(&self, plan: &str, vm: &str) -> Outcome<Vec<Attachment>> {
        self.rows("SELECT proxy, file FROM attached WHERE plan = ?1 AND vm = ?2", params![plan, vm], |row| {
            Ok(Attachment { proxy: row.get(0)?, file: row.get(1)? })
        })
    }

    /// Nothing of a VM's disks is attached any more.
    pub fn forget_attachments(&self, plan: &str, vm: &str) -> Outcome<()> {
        self.change(Durable::Now, |db| {
            db.execute("DELETE FROM attached WHERE plan = ?1 AND vm = ?2", params![plan, vm])
        })?;
        Ok(())
    }
}
