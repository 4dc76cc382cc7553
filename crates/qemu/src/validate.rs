use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use drover_child::find_program;

use crate::child;

/// What libvirt's schema says of a domain XML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validation {
    /// It is a domain.
    Valid,
    /// It is not, and why.
    Invalid(String),
    /// Nobody here can tell, and why.
    NotChecked(String),
}

/// Checks domain XML against libvirt's own schema, with libvirt's own tool or `xmllint`: once for each shape in a process.
pub fn validate_xml(xml: &str) -> Validation {
    static SHAPES: Shapes = Shapes(Mutex::new(BTreeMap::new()));
    SHAPES.validate(xml, validate_with_tool)
}

/// Shapes of definitions that the schema accepted, or that the tool is asked about: machines that are defined at once are often of
/// one. The tool is half of the CPU time that a small machine costs, and machines differ in little but their names and files.
#[derive(Default)]
struct Shapes(Mutex<BTreeMap<String, Arc<OnceLock<Validation>>>>);

/// More than any plan has; beyond it each machine is validated.
const SHAPES_MAX: usize = 1000;

impl Shapes {
    fn validate(&self, xml: &str, mut check: impl FnMut(&str) -> Validation) -> Validation {
        let Some(shape) = shape_of(xml) else { return check(xml) };
        let Some(answer) = self.answer(&shape) else { return check(xml) };
        let mut is_own = false;
        // Who else has this shape waits for it.
        let said = answer.get_or_init(|| {
            is_own = true;
            check(xml)
        });
        match said {
            Validation::Valid => Validation::Valid,
            // It says nothing of this one.
            _ if !is_own => check(xml),
            said => {
                self.shapes().remove(&shape);
                said.clone()
            }
        }
    }

    /// What the tool says, or will say, of the first of this shape; nothing where there are too many.
    fn answer(&self, shape: &str) -> Option<Arc<OnceLock<Validation>>> {
        let mut shapes = self.shapes();
        if let Some(answer) = shapes.get(shape) {
            return Some(Arc::clone(answer));
        }
        (shapes.len() < SHAPES_MAX).then(|| Arc::clone(shapes.entry(shape.to_string()).or_default()))
    }

    fn shapes(&self) -> MutexGuard<'_, BTreeMap<String, Arc<OnceLock<Validation>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A definition without what is the machine's own and what the schema accepts whatever it is, as long as it is plain.
/// Nothing of one that holds something else: that is validated as it is.
fn shape_of(xml: &str) -> Option<String> {
    FREE.iter().try_fold(xml.to_string(), |xml, (open, close, inner)| without(&xml, open, close, inner))
}

/// What stands between these is free, and may have these characters besides plain ones.
const FREE: &[(&str, &str, &str)] = &[
    ("<name>", "</name>", ""),
    ("<uuid>", "</uuid>", ""),
    ("<title>", "</title>", ""),
    // `(vm-42)`: where a machine came from.
    ("<description>", "</description>", "(),"),
    ("<serial>", "</serial>", ""),
    ("<mac address='", "'", ""),
    ("<source file='", "'", ""),
    ("<source dev='", "'", ""),
    ("<source bridge='", "'", ""),
    ("<nvram>", "</nvram>", ""),
    ("<nvram template='", "</nvram>", ""),
];

fn without(xml: &str, open: &str, close: &str, inner: &str) -> Option<String> {
    let mut parts = xml.split(open);
    let mut shape = parts.next()?.to_string();
    for part in parts {
        let (value, rest) = part.split_once(close)?;
        // A template, and the path of the machine's own.
        value.split("'>").all(|value| is_plain(value, inner)).then_some(())?;
        shape += &format!("{open}{close}{rest}");
    }
    Some(shape)
}

fn is_plain(value: &str, inner: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "_./:+-".contains(c) || inner.contains(c);
    let words = || value.split(' ');
    value.len() <= PLAIN_BYTES_MAX && words().all(|word| !word.is_empty() && word.chars().all(is_inner))
}

const PLAIN_BYTES_MAX: usize = 255;

fn validate_with_tool(xml: &str) -> Validation {
    let found = if on_path("xmllint") { checker() } else { None };
    let Some(checker) = found else {
        return Validation::NotChecked(
            "no libvirt schema here (packages libvirt-clients and libxml2-utils have it)".into(),
        );
    };
    checker.check(xml).unwrap_or_else(|why| Validation::NotChecked(format!("{}: {why}", checker.program)))
}

/// A program that checks a file against the schema, with what stands before and after the file.
struct Checker {
    program: &'static str,
    before: &'static [&'static str],
    after: &'static [&'static str],
}

fn checker() -> Option<Checker> {
    if on_path("virt-xml-validate") {
        return Some(Checker { program: "virt-xml-validate", before: &[], after: &["domain"] });
    }
    let before = &["--noout", "--relaxng", SCHEMA];
    Path::new(SCHEMA).is_file().then_some(Checker { program: "xmllint", before, after: &[] })
}

impl Checker {
    fn check(&self, xml: &str) -> Result<Validation, String> {
        let folder = child::private_folder().map_err(|error| error.to_string())?;
        let file = folder.path().join("domain.xml");
        fs::write(&file, xml).map_err(|error| error.to_string())?;
        let mut command = drover_child::command(self.program, drover_child::Kind::Plain);
        command.args(self.before).arg(&file).args(self.after);
        let ended = child::run(&mut command, VALIDATE_TIME_MAX).map_err(|error| error.to_string())?;
        if ended.success { Ok(Validation::Valid) } else { Ok(Validation::Invalid(ended.words())) }
    }
}

/// Whether a program can be started by its name.
pub(crate) fn on_path(program: &str) -> bool {
    find_program(program, &[]).is_some()
}

const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";
const VALIDATE_TIME_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::libvirt::libvirt_xml;
    use crate::spec::MachineSpec;
    use crate::spec::tests::machine;

    /// How many of these the tool was asked about, if it says this of each.
    fn asked(specs: &[MachineSpec], says: &Validation) -> usize {
        let (shapes, mut asked) = (Shapes::default(), 0);
        for spec in specs {
            let result = shapes.validate(&libvirt_xml(spec), |_| {
                asked += 1;
                says.clone()
            });
            assert_eq!(&result, says);
        }
        asked
    }

    #[test]
    fn machines_of_one_shape_are_validated_once() {
        let first = machine(Path::new("/vms/web01"));
        let mut second = machine(Path::new("/vms/web02"));
        second.name = "web 02.example".into();
        second.uuid = Some("4211a1b2-0000-1111-2222-333344445556".into());
        second.nics[0].mac = "00:50:56:aa:bb:cd".into();
        second.description = Some("moved by drover from VMware vCenter Server 8.0.2 (vm-5716)".into());
        assert_eq!(asked(&[first.clone(), second.clone()], &Validation::Valid), 1);
        // Another shape, and names that the schema has to be asked about each time.
        let mut bare = second.clone();
        bare.disks.clear();
        let odd = MachineSpec { name: "a & b".into(), ..first.clone() };
        assert_eq!(asked(&[first.clone(), bare, odd.clone(), odd], &Validation::Valid), 4);
        let twice = [first, second];
        assert_eq!(asked(&twice, &Validation::Invalid("no".into())), 2, "only what is valid is remembered");
    }

    #[test]
    fn machines_of_one_shape_that_are_defined_at_once_are_validated_once() {
        let shapes = Shapes::default();
        let (asked, xml) = (AtomicUsize::new(0), libvirt_xml(&machine(Path::new("/vms/web01"))));
        let begin = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    let ask = |_: &str| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        // As a tool does, so that the others come meanwhile.
                        std::thread::sleep(Duration::from_millis(50));
                        Validation::Valid
                    };
                    assert_eq!(shapes.validate(&xml, ask), Validation::Valid);
                });
            }
        });
        assert_eq!(asked.into_inner(), 1);
    }

    #[test]
    fn machines_of_two_shapes_do_not_wait_for_each_other() {
        let (shapes, both) = (Shapes::default(), Barrier::new(2));
        let first = machine(Path::new("/vms/web01"));
        let mut bare = first.clone();
        bare.disks.clear();
        std::thread::scope(|scope| {
            for xml in [libvirt_xml(&first), libvirt_xml(&bare)] {
                let (shapes, both) = (&shapes, &both);
                let ask = move |_: &str| {
                    // It is asked about both at once, or this never ends.
                    both.wait();
                    Validation::Valid
                };
                scope.spawn(move || assert_eq!(shapes.validate(&xml, ask), Validation::Valid));
            }
        });
    }

    #[test]
    fn what_is_no_domain_is_refused_with_a_reason() {
        match validate_xml("<domain type='kvm'><name>x</name><bogus/></domain>") {
            Validation::Invalid(why) => assert!(why.contains("domain"), "{why}"),
            Validation::NotChecked(why) => println!("skipped: {why}"),
            Validation::Valid => panic!("a domain without memory passed"),
        }
    }
}
