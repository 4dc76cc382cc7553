//! VMs of a plan from a table, as a spreadsheet saves it: a row for each, with what its columns say of it.

use std::collections::{BTreeSet, HashMap};

use drover_types::inventory::{Inventory, Vm};

use crate::draft::quote;
use crate::keys::{Kind, SELECTION, SELECTORS};
use crate::near::nearest;
use crate::problem::{At, Problem};
use crate::read::WAVES_MAX;

/// Rows of a table at most.
const ROWS_MAX: usize = 100_000;

/// The VMs of a table.
#[derive(Debug)]
pub struct DraftTable<'a> {
    pub(crate) rows: Vec<Row<'a>>,
    /// The waves that rows name, in the order in which they come.
    pub(crate) waves: Vec<String>,
    /// Columns that no key of a plan goes by.
    pub unused: Vec<String>,
}

/// A VM, and what its row says of it.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub vm: &'a Vm,
    /// Keys of its selection, as YAML.
    pub keys: Vec<(&'static str, String)>,
}

/// What a column holds.
#[derive(Clone, Copy)]
enum Column {
    Name,
    Id,
    Key(&'static str, Kind),
    Unused,
}

impl Column {
    /// By its title, in whatever case, also as inventories of vSphere export it.
    fn of(title: &str) -> Column {
        let title = title.trim().to_lowercase().replace([' ', '-'], "_");
        let key = || SELECTION.keys.iter().find(|key| key.name == title && !SELECTORS.contains(&key.name));
        match title.as_str() {
            "name" | "vm" | "vm_name" => Column::Name,
            "id" | "vm_id" => Column::Id,
            _ => key()
                .filter(|key| is_one_word(key.kind))
                .map_or(Column::Unused, |key| Column::Key(key.name, key.kind)),
        }
    }
}

/// Whether a cell can hold it.
fn is_one_word(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Text
            | Kind::PlanName
            | Kind::Path
            | Kind::Duration
            | Kind::Number(..)
            | Kind::Priority
            | Kind::Moment
            | Kind::Flag
            | Kind::Choice(_)
            | Kind::Verify
    )
}

/// Reads a table: its first row has the titles of the columns, one of which is `name` or `id`; cells are parted by commas, semicolons or
/// tabs. Each VM is looked for in the inventory.
///
/// # Errors
/// All rows that name no VM, or one that another row or VM is called like, and whatever else is wrong.
pub fn draft_table<'a>(text: &str, inventory: &'a Inventory) -> Result<DraftTable<'a>, Vec<Problem>> {
    let text = text.trim_start_matches('\u{feff}');
    let parted_by = parted_by(text.lines().next().unwrap_or_default());
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(parted_by)
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let mut records = reader.records();
    let titles = match records.next() {
        Some(Ok(titles)) => titles,
        Some(Err(error)) => return Err(vec![Problem::error("", error.to_string())]),
        None => return Err(vec![Problem::error("", "the table is empty").advise(FIRST_ROW)]),
    };
    let columns: Vec<Column> = titles.iter().map(Column::of).collect();
    if !columns.iter().any(|it| matches!(it, Column::Name | Column::Id)) {
        let problem = Problem::error("", "no column is called name or id").at(at(1, 0));
        return Err(vec![problem.advise(FIRST_ROW)]);
    }
    let names = Names::of(inventory);
    let mut table = DraftTable { rows: Vec::new(), waves: Vec::new(), unused: unused(&titles, &columns) };
    let (mut problems, mut seen) = (Vec::new(), HashMap::new());
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                problems.push(Problem::error("", error.to_string()));
                break;
            }
        };
        let line = record.position().map_or(0, |it| it.line());
        if record.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        if table.rows.len() == ROWS_MAX {
            problems.push(Problem::error("", format!("it has more than {ROWS_MAX} rows")).at(at(line, 0)));
            break;
        }
        let row = match names.row(&record, &columns, line) {
            Ok(row) => row,
            Err(problem) => {
                problems.push(*problem);
                continue;
            }
        };
        if let Some(first) = seen.insert(row.vm.id.as_str(), line) {
            let text = format!("{} is in line {first}, too", row.vm.name);
            problems.push(Problem::error("", text).at(at(line, 0)).advise("leave one of them out"));
            continue;
        }
        for (_, wave) in row.keys.iter().filter(|(key, _)| *key == "wave") {
            if !table.waves.contains(wave) {
                table.waves.push(wave.clone());
            }
        }
        table.rows.push(row);
    }
    if table.waves.len() > WAVES_MAX {
        let text = format!("it names {} waves; a plan has {WAVES_MAX} at most", table.waves.len());
        problems.push(Problem::error("wave", text));
    }
    if table.rows.is_empty() && problems.is_empty() {
        problems.push(Problem::error("", "it names no VM"));
    }
    if problems.is_empty() { Ok(table) } else { Err(problems) }
}

const FIRST_ROW: &str =
    "the first row has the titles of the columns: name or id, and keys of `vms` such as wave";

/// What parts the cells of a line: what it has most of.
fn parted_by(line: &str) -> u8 {
    let count = |of: &u8| line.bytes().filter(|byte| byte == of).count();
    // Of as many of each, the last: a comma.
    [b'\t', b';', b','].into_iter().max_by_key(count).unwrap_or(b',')
}

fn at(line: u64, column: usize) -> At {
    At { line: u32::try_from(line).unwrap_or(u32::MAX), column: column as u32 + 1 }
}

fn unused(titles: &csv::StringRecord, columns: &[Column]) -> Vec<String> {
    let unused = titles.iter().zip(columns).filter(|(_, column)| matches!(column, Column::Unused));
    let titles: BTreeSet<&str> = unused.map(|(title, _)| title.trim()).filter(|it| !it.is_empty()).collect();
    titles.into_iter().map(str::to_string).collect()
}

/// The VMs of an inventory by what a row may call them.
struct Names<'a> {
    inventory: &'a Inventory,
    by_name: HashMap<&'a str, Vec<&'a Vm>>,
    by_id: HashMap<&'a str, &'a Vm>,
}

impl<'a> Names<'a> {
    fn of(inventory: &'a Inventory) -> Names<'a> {
        let mut names = Names { inventory, by_name: HashMap::new(), by_id: HashMap::new() };
        for vm in &inventory.vms {
            names.by_name.entry(&vm.name).or_default().push(vm);
            names.by_id.insert(&vm.id, vm);
        }
        names
    }

    fn row(
        &self,
        record: &csv::StringRecord,
        columns: &[Column],
        line: u64,
    ) -> Result<Row<'a>, Box<Problem>> {
        let (mut name, mut id, mut keys) = (None, None, Vec::new());
        for (number, (cell, column)) in record.iter().zip(columns).enumerate() {
            let cell = cell.trim();
            match column {
                _ if cell.is_empty() => {}
                Column::Name => name = Some((number, cell)),
                Column::Id => id = Some((number, cell)),
                Column::Unused => {}
                Column::Key(key, kind) => keys.push((*key, value(*kind, cell))),
            }
        }
        let vm = match (id, name) {
            (Some((number, id)), name) => match (self.by_id.get(id).copied(), name) {
                // Ids are those of one vCenter: in another each is some other VM's.
                (Some(vm), Some((_, name))) if vm.name != name => {
                    let text = format!("{id} is the id of '{}', not of '{name}'", vm.name);
                    Err(Problem::error("id", text).at(at(line, number)).advise("remove one of the two"))
                }
                (Some(vm), _) => Ok(vm),
                (None, _) => {
                    let text = format!("there is no VM with the id '{id}'");
                    Err(Problem::error("id", text).at(at(line, number)))
                }
            },
            (None, Some((number, name))) => self.named(name).map_err(|problem| problem.at(at(line, number))),
            (None, None) => Err(Problem::error("", "it names no VM").at(at(line, 0))),
        };
        Ok(Row { vm: vm.map_err(Box::new)?, keys })
    }

    fn named(&self, name: &str) -> Result<&'a Vm, Problem> {
        match self.by_name.get(name).map(Vec::as_slice).unwrap_or_default() {
            [vm] => Ok(vm),
            [] => {
                let names = self.inventory.vms.iter().map(|vm| vm.name.as_str());
                let advice = nearest(name, names)
                    .map_or("see `drover inventory` for the names".into(), |near| {
                        format!("did you mean '{near}'?")
                    });
                Err(Problem::error("name", format!("there is no VM called '{name}'")).advise(advice))
            }
            several => {
                let ids: Vec<&str> = several.iter().map(|vm| vm.id.as_str()).collect();
                let text = format!("{} VMs are called '{name}': {}", ids.len(), ids.join(", "));
                Err(Problem::error("name", text).advise("add a column id"))
            }
        }
    }
}

/// A cell as YAML.
fn value(kind: Kind, cell: &str) -> String {
    match (kind, cell.to_lowercase().as_str()) {
        (Kind::Flag, "true" | "yes" | "1") => "true".into(),
        (Kind::Flag, "false" | "no" | "0") => "false".into(),
        (Kind::Choice(words), word) if words.contains(&word) => word.into(),
        (Kind::PlanName, word) => quote(&short_name(word)),
        (Kind::Number(..) | Kind::Priority, _) if cell.parse::<i64>().is_ok() => cell.into(),
        _ => quote(cell),
    }
}

/// `Wave 1` as plans, waves and groups may be called: `wave-1`; empty if nothing of it may be in such a name.
pub fn short_name(word: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let letters: String = word.chars().map(fits).collect();
    let parts: Vec<&str> = letters.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::PowerState;

    use super::*;
    use crate::draft::{DraftOptions, DraftSource, draft_rows};
    use crate::model::Plan;

    fn inventory() -> Inventory {
        let vm = |id: &str, name: &str| Vm {
            id: id.into(),
            name: name.into(),
            instance_uuid: format!("uuid-{id}"),
            power: PowerState::Off,
            disks: vec![drover_types::inventory::VmDisk { capacity_bytes: 1 << 30, ..Default::default() }],
            ..Vm::default()
        };
        let vms =
            vec![vm("vm-1", "web01"), vm("vm-2", "web, \"two\""), vm("vm-3", "twin"), vm("vm-4", "twin")];
        Inventory { vms, ..Inventory::default() }
    }

    fn plan(table: &str) -> Plan {
        let inventory = inventory();
        let source = DraftSource::Vsphere {
            endpoint: "vc".into(),
            user: "u".into(),
            password_file: None,
            ca_file: None,
            thumbprint: None,
            insecure: true,
        };
        let options = DraftOptions { name: "p".into(), folder: "/t".into(), source, start: false };
        let table = draft_table(table, &inventory).unwrap();
        let text = draft_rows(&inventory, &table, &options);
        Plan::parse(&text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
    }

    fn told(table: &str) -> Vec<String> {
        draft_table(table, &inventory()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_table_becomes_a_plan_whatever_parts_its_cells() {
        let rows = [
            ["VM", "VM ID", "Powerstate", "Wave", "priority", "start", "mode", "target name"],
            ["web01", "", "poweredOff", "Wave 2", "10", "TRUE", "Warm", "front"],
            ["twin", "vm-4", "", "wave 1", "", "no", "", ""],
            ["", "", "", "", "", "", "", ""],
            ["\"web, \"\"two\"\"\"", "vm-2", "", "Wave 2", "-5", "", "cold", ""],
        ];
        for parted_by in [",", ";", "\t"] {
            let text = rows.map(|row| row.join(parted_by)).join("\r\n");
            let read = plan(&format!("\u{feff}{text}\r\n"));
            let of = |at: usize| (&read.vms[at].selector, &read.vms[at].overrides);
            let (selector, overrides) = of(0);
            assert_eq!(
                (selector.name.as_deref(), overrides.target_name.as_deref()),
                (Some("web01"), Some("front"))
            );
            assert_eq!(
                (overrides.wave.as_deref(), overrides.priority, overrides.start),
                (Some("wave-2"), Some(10), Some(true))
            );
            assert_eq!(overrides.mode, Some(crate::Mode::Warm));
            assert_eq!(
                (of(1).0.id.as_deref(), of(1).1.start, of(1).1.mode),
                (Some("vm-4"), Some(false), None)
            );
            assert_eq!((of(2).0.name.as_deref(), of(2).1.priority), (Some("web, \"two\""), Some(-5)));
            let waves: Vec<_> =
                read.waves.iter().map(|it| (it.wave.name.as_str(), it.wave.after.clone())).collect();
            assert_eq!(waves, [("wave-2", vec![]), ("wave-1", vec!["wave-2".to_string()])]);
        }
        let inventory = inventory();
        let table = draft_table("name,Cluster,Networks,Wave\nweb01,c,n,\n", &inventory).unwrap();
        assert_eq!(
            (table.unused, table.waves.len()),
            (vec!["Cluster".to_string(), "Networks".to_string()], 0)
        );
    }

    #[test]
    fn every_row_that_is_wrong_is_told_with_its_line() {
        let problems =
            told("name,id,wave\nwbe01,,a\ntwin,,a\nx,vm-9,\nweb01,,a\nother,vm-1,b\n,vm-1,b\n,,c\n");
        let wanted = [
            "2:1: error: name: there is no VM called 'wbe01' (did you mean 'web01'?)",
            "3:1: error: name: 2 VMs are called 'twin': vm-3, vm-4 (add a column id)",
            "4:2: error: id: there is no VM with the id 'vm-9'",
            "6:2: error: id: vm-1 is the id of 'web01', not of 'other' (remove one of the two)",
            "7:1: error: web01 is in line 5, too (leave one of them out)",
            "8:1: error: it names no VM",
        ];
        assert_eq!(problems, wanted);
        assert!(told("")[0].contains("the table is empty"));
        assert!(told("wave,host\na,b\n")[0].contains("no column is called name or id"));
        assert!(told("name\n\n")[0].contains("it names no VM"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_table_holds_is_told_or_read_as_a_plan(cells in proptest::collection::vec(".{0,12}", 1..24), columns in 1usize..5) {
            let titles = ["name", "wave", "group", "target_folder", "pool"];
            let mut text = titles[..columns].join(",") + "\n";
            for row in cells.chunks(columns) {
                text += &(row.join(",") + "\n");
            }
            text += "web01,Über Nacht,x y,/a b,#p\n";
            if let Ok(table) = draft_table(&text, &inventory()) {
                proptest::prop_assert!(!table.rows.is_empty());
            }
        }
    }
}
