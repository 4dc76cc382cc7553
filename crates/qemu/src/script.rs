use drover_types::shell_word;

use crate::command::{RunOptions, qemu_command};
use crate::error::QemuError;
use crate::spec::{Accelerator, MachineSpec};

/// A script that runs the machine in the foreground, without libvirt and without drover.
///
/// `DROVER_ACCEL=tcg` (or `kvm`) in the environment overrides the accelerator; arguments go on to QEMU.
///
/// # Errors
/// As [`qemu_command`].
pub fn shell_script(spec: &MachineSpec, options: &RunOptions) -> Result<String, QemuError> {
    let mut words = qemu_command(spec, options)?.into_iter();
    let program = words.next().expect("a command starts with its program");
    let mut lines = String::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let value = words.next_if(|next| !next.starts_with('-'));
        match (word.as_str(), value) {
            ("-accel", _) => {}
            (_, Some(value)) => {
                lines.push_str(&format!("  {} {} \\\n", shell_word(&word), shell_word(&value)))
            }
            (_, None) => lines.push_str(&format!("  {} \\\n", shell_word(&word))),
        }
    }
    let folder = shell_word(&spec.folder.path().to_string_lossy());
    let name = spec.name.replace(char::is_control, " ");
    let accel = choice(spec.accelerator);
    Ok(format!(
        "#!/bin/sh\n# Runs {name}. Written by drover, and written anew when the machine is defined again.\n\
         set -eu\ncd -- {folder}\naccel=${{DROVER_ACCEL:-{accel}}}\n\
         if [ \"$accel\" = auto ]; then\n  if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then accel=kvm; else accel=tcg; fi\nfi\n\
         exec {program} -accel \"$accel\" \\\n{lines}  \"$@\"\n"
    ))
}

fn choice(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Auto => "auto",
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "tcg",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::spec::tests::machine;

    #[test]
    fn the_script_passes_what_the_command_has() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = machine(folder.path());
        spec.name = "it's $HOME, `x`".into();
        spec.accelerator = Accelerator::Kvm;
        let script = shell_script(&spec, &RunOptions::default()).unwrap();
        let printing = script.replace("exec qemu-system-x86_64", "printf '%s\\n'");
        let output = Command::new("sh")
            .args(["-c", &printing, "run", "last"])
            .env_remove("DROVER_ACCEL")
            .output()
            .unwrap();
        let mut expected = qemu_command(&spec, &RunOptions::default()).unwrap().split_off(1);
        expected.retain(|word| word != "-accel" && word != "kvm");
        let expected = [&["-accel".to_string(), "kvm".into()], &expected[..], &["last".into()]].concat();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_environment_overrides_the_accelerator() {
        let spec = MachineSpec { folder: crate::VmFolder::new("/"), ..machine(Path::new("/")) };
        let script = shell_script(&spec, &RunOptions::default()).unwrap();
        let printing = script.replace("exec qemu-system-x86_64", "echo");
        let output = Command::new("sh").args(["-c", &printing]).env("DROVER_ACCEL", "kvm").output().unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().starts_with("-accel kvm"));
    }
}
