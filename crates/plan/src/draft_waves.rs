//! Waves as the keys of a plan.

use std::fmt::Write;

use crate::draft::{one_line, quote};
use crate::warm::moment_text;

/// A wave to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftWave {
    /// Its name.
    pub name: String,
    /// What is to be known of it; a comment.
    pub note: String,
    /// The wave before it.
    pub after: Option<String>,
    /// When its window opens and closes, in milliseconds since 1970; absent: somebody has to write one, and the plan is refused before.
    pub window_ms: Option<(i64, i64)>,
    /// Its VMs.
    pub vms: Vec<DraftMember>,
}

/// A VM of a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftMember {
    /// By its name, which no other VM has.
    Name(String),
    /// By the provider's id, with its name for people.
    Id(String, String),
}

/// The `waves` of a plan, to be added to its file.
pub fn draft_waves(waves: &[DraftWave]) -> String {
    let mut text = "waves:\n".to_string();
    for wave in waves {
        // Writing to a String cannot fail.
        let _ = write_wave(&mut text, wave);
    }
    text
}

fn write_wave(text: &mut String, wave: &DraftWave) -> std::fmt::Result {
    writeln!(text, "  - name: {}   # {}", quote(&wave.name), one_line(&wave.note))?;
    if let Some(after) = &wave.after {
        writeln!(text, "    after: [{}]", quote(after))?;
    }
    match wave.window_ms {
        Some((from_ms, until_ms)) => {
            writeln!(text, "    from: {}", moment_text(from_ms))?;
            writeln!(text, "    until: {}", moment_text(until_ms))?;
        }
        // Without one it would begin when the wave before it ends, out of hours or in them.
        None => writeln!(text, "    window: to-be-written")?,
    }
    writeln!(text, "    vms:")?;
    wave.vms.iter().try_for_each(|vm| match vm {
        DraftMember::Name(name) => writeln!(text, "      - name: {}", quote(name)),
        DraftMember::Id(id, name) => writeln!(text, "      - id: {}   # {}", quote(id), one_line(name)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn what_is_written_is_read_as_what_was_meant() {
        let plan = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                    target: {type: qemu, folder: /t}\nvms: [{glob: '*'}]\n";
        let wave = |number: i64| DraftWave {
            name: format!("wave-{number}"),
            note: "2 VMs,\nlikely".into(),
            after: (number > 1).then(|| format!("wave-{}", number - 1)),
            window_ms: (number < 3)
                .then_some(1_796_162_400_000 + number * 86_400_000)
                .map(|ms| (ms, ms + 3_600_000)),
            vms: vec![
                DraftMember::Name(format!("a: \"#{number}\"\n")),
                DraftMember::Id(format!("vm-{number}"), "x\ny".into()),
            ],
        };
        let drafts = [wave(1), wave(2)];
        let read = Plan::parse(&(plan.to_string() + &draft_waves(&drafts))).unwrap();
        for (draft, read) in drafts.iter().zip(&read.waves) {
            assert_eq!((&draft.name, draft.after.as_ref()), (&read.wave.name, read.wave.after.first()));
            let window = &read.wave.window;
            let read_ms =
                window.from_ms.zip(window.until_ms).map(|(from, until)| (from as i64, until as i64));
            assert_eq!(draft.window_ms, read_ms);
            let members = [DraftMember::Name(read.vms[0].name.clone().unwrap()), draft.vms[1].clone()];
            assert_eq!(draft.vms, members);
            assert_eq!(read.vms[1].id.as_deref(), Some(format!("vm-{}", &read.wave.name[5..]).as_str()));
        }
        assert_eq!(read.waves.len(), 2);
        let refused = Plan::parse(&(plan.to_string() + &draft_waves(&[wave(3)])));
        assert!(refused.unwrap_err().iter().any(|it| it.message.contains("to-be-written")));
    }
}
