//! VMs of a plan from a table, as a spreadsheet saves it: a row for each, with what its columns say of it.

use std::collections::{BTreeSet, HashMap};

use drover_types::inventory::{Inventory, Vm};
use drover_types::{Window, WindowError};

use crate::draft::quote;
use crate::keys::{Kind, SELECTION, SELECTORS};
use crate::near::nearest;
use crate::problem::{At, Problem};
use crate::read::WAVES_MAX;

/// Rows of a table at most.
const ROWS_MAX: usize = 100_000;
/// So many names that no VM has are compared with all that there are: a table of another vCenter has thousands.
const COMPARED_MAX: usize = 20;

/// The VMs of a table.
#[derive(Debug)]
pub struct DraftTable<'a> {
    pub(crate) rows: Vec<Row<'a>>,
    /// The waves that rows name, in the order in which they come.
    pub(crate) waves: Vec<String>,
    /// Their windows, where rows tell some.
    pub(crate) windows: HashMap<String, Windows>,
    /// Columns that no key of a plan goes by.
    pub unused: Vec<String>,
}

/// Windows of a wave, and the line that told them first.
#[derive(Debug)]
pub(crate) struct Windows {
    pub list: Vec<Window>,
    line: u64,
}

/// A VM, and what its row says of it.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub vm: &'a Vm,
    /// Keys of its selection, as YAML.
    pub keys: Vec<(&'static str, String)>,
    /// What it says of the windows of its wave, and the number of that cell.
    window: Option<(usize, Vec<Window>)>,
}

/// What a column holds.
#[derive(Clone, Copy)]
enum Column {
    Name,
    Id,
    Key(&'static str, Kind),
    /// Of the wave that the row names.
    Window,
    /// Of `warm`.
    Cutover,
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
            "window" => Column::Window,
            "cutover" => Column::Cutover,
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
    let mut names = Names::of(inventory);
    let (mut words, mut lines) = (Words::default(), Lines::of(text));
    let mut table = DraftTable {
        rows: Vec::new(),
        waves: Vec::new(),
        windows: HashMap::new(),
        unused: unused(&titles, &columns),
    };
    let (mut problems, mut seen) = (Vec::new(), HashMap::new());
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                problems.push(Problem::error("", error.to_string()));
                break;
            }
        };
        let line = lines.at(record.position().map_or(0, |it| it.byte() as usize));
        if record.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        if let Some(surplus) = surplus(&record, &titles) {
            let text = format!("cell {} ('{}') is below no title", surplus + 1, &record[surplus]);
            let advice =
                "put text that holds what parts the cells in double quotes, or give the column a title";
            problems.push(Problem::error("", text).at(at(line, surplus)).advise(advice));
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
        problems.extend(words.check(&record, &columns, line));
        for (_, wave) in row.keys.iter().filter(|(key, _)| *key == "wave") {
            if !table.waves.contains(wave) {
                table.waves.push(wave.clone());
            }
        }
        problems.extend(table.take_window(&row, line));
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

impl DraftTable<'_> {
    /// Takes what a row says of the windows of its wave: rows that tell some tell the same.
    fn take_window(&mut self, row: &Row<'_>, line: u64) -> Option<Problem> {
        let (number, list) = row.window.as_ref()?;
        let problem = |text: String| Problem::error("window", text).at(at(line, *number));
        let Some((_, wave)) = row.keys.iter().find(|(key, _)| *key == "wave") else {
            return Some(
                problem("its row names no wave".into())
                    .advise("windows are those of waves: name it in the column wave"),
            );
        };
        let known = self.windows.entry(wave.clone()).or_insert_with(|| Windows { list: list.clone(), line });
        (known.list != *list).then(|| {
            let text = format!("line {} has another window of wave {}", known.line, wave.trim_matches('"'));
            problem(text).advise("write the same in all rows of a wave, or leave it empty in all but one")
        })
    }
}

/// The windows of a cell, parted by commas or semicolons.
fn windows_of(cell: &str) -> Result<Vec<Window>, WindowError> {
    cell.split([',', ';']).map(str::trim).filter(|it| !it.is_empty()).map(str::parse).collect()
}

/// The first cell of a row that says something and stands below no title.
fn surplus(record: &csv::StringRecord, titles: &csv::StringRecord) -> Option<usize> {
    let is_titled = |number: usize| titles.get(number).is_some_and(|title| !title.trim().is_empty());
    (0..record.len()).find(|number| !record[*number].trim().is_empty() && !is_titled(*number))
}

/// Lines of a text by places in it, which come in their order. The reader of tables counts no empty line before a row.
struct Lines<'a> {
    text: &'a [u8],
    /// A place, and the line that it is in.
    known: (usize, u64),
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        Lines { text: text.as_bytes(), known: (0, 1) }
    }

    /// The line of the row that begins at a place, or behind empty lines there.
    fn at(&mut self, place: usize) -> u64 {
        let is_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let (before, line) = self.known;
        let rest = self.text.get(place..).unwrap_or_default();
        let place = place.min(self.text.len()).max(before) + rest.iter().take_while(is_end).count();
        let passed = &self.text[before..place];
        let ends = (0..passed.len()).filter(|at| match passed[*at] {
            b'\n' => true,
            // Alone, as old spreadsheets end lines.
            b'\r' => self.text.get(before + at + 1) != Some(&b'\n'),
            _ => false,
        });
        self.known = (place, line + ends.count() as u64);
        self.known.1
    }
}

/// Words of cells by the names that plans make of them.
#[derive(Default)]
struct Words {
    first: HashMap<(&'static str, String), (String, u64)>,
    told: BTreeSet<String>,
}

impl Words {
    /// Words of a row that would become one name with other words of their column. Each is told once.
    fn check(&mut self, record: &csv::StringRecord, columns: &[Column], line: u64) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (number, (cell, column)) in record.iter().zip(columns).enumerate() {
            let Column::Key(key, Kind::PlanName) = column else { continue };
            let (word, name) = (folded(cell), short_name(cell));
            if word.is_empty() {
                continue;
            }
            let (first, first_line) = self.first.entry((*key, name.clone())).or_insert((word.clone(), line));
            if *first != word && self.told.insert(format!("{key} {word}")) {
                let text =
                    format!("'{}' and what line {first_line} has would both be {key} {name}", cell.trim());
                let advice = "call them by names that differ in letters a to z and digits, or by one";
                problems.push(Problem::error(*key, text).at(at(line, number)).advise(advice));
            }
        }
        problems
    }
}

/// A word as people tell it from others: whatever its case, and what parts its parts.
fn folded(word: &str) -> String {
    let word = word.to_lowercase();
    let parts: Vec<&str> = word.split(|c: char| c.is_whitespace() || c == '-' || c == '_').collect();
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
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
    /// Names that were compared with all others.
    compared: usize,
}

impl<'a> Names<'a> {
    fn of(inventory: &'a Inventory) -> Names<'a> {
        let mut names = Names { inventory, by_name: HashMap::new(), by_id: HashMap::new(), compared: 0 };
        for vm in &inventory.vms {
            names.by_name.entry(&vm.name).or_default().push(vm);
            names.by_id.insert(&vm.id, vm);
        }
        names
    }

    fn row(
        &mut self,
        record: &csv::StringRecord,
        columns: &[Column],
        line: u64,
    ) -> Result<Row<'a>, Box<Problem>> {
        let (mut name, mut id, mut keys, mut window) = (None, None, Vec::new(), None);
        for (number, (cell, column)) in record.iter().zip(columns).enumerate() {
            let cell = cell.trim();
            match column {
                _ if cell.is_empty() => {}
                Column::Name => name = Some((number, cell)),
                Column::Id => id = Some((number, cell)),
                Column::Unused => {}
                Column::Key(key, kind) => keys.push((*key, value(*kind, cell))),
                Column::Cutover => keys.push(("warm", format!("{{cutover: {}}}", cutover(cell)))),
                Column::Window => {
                    let problem = |error: WindowError| {
                        Problem::error("window", format!("'{cell}': {error}")).at(at(line, number))
                    };
                    window = Some((number, windows_of(cell).map_err(problem)?));
                }
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
        Ok(Row { vm: vm.map_err(Box::new)?, keys, window })
    }

    fn named(&mut self, name: &str) -> Result<&'a Vm, Problem> {
        match self.by_name.get(name).map(Vec::as_slice).unwrap_or_default() {
            [vm] => Ok(vm),
            [] => {
                let names = self.inventory.vms.iter().map(|vm| vm.name.as_str());
                self.compared += 1;
                let near = if self.compared <= COMPARED_MAX { nearest(name, names) } else { None };
                let advice = near.map_or("see `drover inventory` for the names".into(), |near| {
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

/// When a VM moves over, as YAML: a word in whatever case, or a moment.
fn cutover(cell: &str) -> String {
    match cell.to_lowercase().as_str() {
        word @ ("manual" | "auto") => word.into(),
        _ => quote(cell),
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
    use crate::wanted::Wanted;

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

    fn options() -> DraftOptions {
        let source = DraftSource::Vsphere {
            endpoint: "vc".into(),
            user: "u".into(),
            password_file: None,
            ca_file: None,
            thumbprint: None,
            insecure: true,
        };
        DraftOptions { name: "p".into(), folder: "/t".into(), source, ..DraftOptions::default() }
    }

    fn plan(table: &str) -> Plan {
        let inventory = inventory();
        let table = draft_table(table, &inventory).unwrap();
        let text = draft_rows(&inventory, &table, &Wanted::default(), &options()).unwrap();
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
        assert_eq!(
            told("name,wave\r\n\r\n\r\nwbe01,a\r\n\"x\ny\",b\nz,\n")
                .iter()
                .map(|it| &it[..3])
                .collect::<Vec<_>>(),
            ["4:1", "5:1", "7:1"],
            "empty lines and those within a cell count"
        );
        assert!(told("")[0].contains("the table is empty"));
        assert!(told("wave,host\na,b\n")[0].contains("no column is called name or id"));
        assert!(told("name\n\n")[0].contains("it names no VM"));
    }

    #[test]
    fn different_words_that_would_become_one_name_are_told_once() {
        let told = |rows: &str| told(&format!("name,id,wave,group\n{rows}"));
        let rows = "web01,,Gruppe Ä,Gruppe Ö\n,vm-2,gruppe-ä,\n,vm-3,Gruppe Ö,\n,vm-4,gruppe ö,\n";
        assert_eq!(
            told(rows),
            [
                "4:3: error: wave: 'Gruppe Ö' and what line 2 has would both be wave gruppe (call them by names that differ in letters a \
              to z and digits, or by one)"
            ]
        );
        assert_eq!(told("web01,,a,C#\n,vm-2,a,C++\n").len(), 1);
        let fine = "name,id,wave,group\nweb01,,Wave 1,Wave_1\n,vm-2,wave  1,\n,vm-3,WAVE-1,wave 1\n";
        assert_eq!(draft_table(fine, &inventory()).unwrap().waves, ["\"wave-1\""]);
    }

    #[test]
    fn a_cell_below_no_title_is_told_if_it_says_something() {
        assert_eq!(
            told("name,wave\nweb01,a,b\n"),
            [
                "2:3: error: cell 3 ('b') is below no title (put text that holds what parts the cells in double quotes, or give the column \
              a title)"
            ]
        );
        assert!(told("name,,wave\nweb01,x,a\n")[0].starts_with("2:2: error: cell 2 ('x')"));
        assert_eq!(draft_table("name,wave,\nweb01,a,,,\n", &inventory()).unwrap().rows.len(), 1);
    }

    #[test]
    fn a_wrong_cell_is_told_with_its_line_of_the_plan_also_behind_vms_that_cannot_be_moved() {
        let mut inventory = inventory();
        inventory.vms[1].disks.clear();
        let table = draft_table("id,priority\nvm-2,x\nvm-1,y\nvm-3,1\n", &inventory).unwrap();
        let text = draft_rows(&inventory, &table, &Wanted::default(), &options()).unwrap();
        let problems = Plan::parse(&text).unwrap_err();
        let lines: Vec<&str> = text.lines().collect();
        let errors = problems.iter().filter(|it| it.is_error());
        let told: Vec<&str> = errors.map(|it| lines[it.line.unwrap() as usize - 1].trim()).collect();
        assert_eq!(told, ["priority: \"y\""], "{problems:?}\n{text}");
    }

    #[test]
    fn only_the_first_wrong_names_are_compared_with_all_that_there_are() {
        let rows: String = (0..30).map(|number| format!("wbe01{}\n", " ".repeat(number % 2))).collect();
        let problems = told(&format!("name\n{rows}"));
        let near = problems.iter().filter(|it| it.contains("did you mean 'web01'?")).count();
        assert_eq!((problems.len(), near), (30, COMPARED_MAX));
    }

    #[test]
    fn a_table_has_the_windows_of_its_waves_and_the_cutovers_of_its_vms() {
        let text = "name,id,wave,Window,mode,cutover\n\
                    web01,,Wave 1,\"Sat 22:00-06:00 Europe/Berlin, 2026-12-12\",warm,Manual\n\
                    ,vm-2,wave 1,,warm,2026-12-05T22:00:00Z\n\
                    ,vm-3,two,Sat 22:00-06:00 Europe/Berlin; 2026-12-12,,\n\
                    ,vm-4,three,,warm,auto\n";
        let read = plan(text);
        let windows = |at: usize| read.waves[at].wave.window.windows.to_string();
        let berlin = "Sat 22:00-06:00 Europe/Berlin, 2026-12-12 00:00 - 2026-12-13 00:00 UTC";
        assert_eq!([windows(0), windows(1), windows(2)], [berlin, berlin, ""]);
        let cutover = |at: usize| read.vms[at].overrides.warm.cutover;
        let at = crate::Cutover::At(1_796_508_000_000);
        let wanted = [Some(crate::Cutover::Manual), Some(at), None, Some(crate::Cutover::Auto)];
        assert_eq!([0, 1, 2, 3].map(cutover), wanted);
        assert!(draft_table(text, &inventory()).unwrap().unused.is_empty());
    }

    #[test]
    fn windows_that_are_none_or_of_no_wave_or_differ_are_told_with_their_lines() {
        let told = told(
            "name,id,wave,window\nweb01,,a,22:00-06:00\n,vm-2,a,23:00-06:00\n,vm-3,,22:00-06:00\n,vm-4,a,late\n",
        );
        assert_eq!(
            told[..2],
            [
                "3:4: error: window: line 2 has another window of wave a (write the same in all rows of a wave, or leave it empty in all but \
                 one)",
                "4:4: error: window: its row names no wave (windows are those of waves: name it in the column wave)",
            ]
        );
        assert!(told[2].starts_with("5:4: error: window: 'late': ") && told.len() == 3, "{told:?}");
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_table_holds_is_told_or_read_as_a_plan(cells in proptest::collection::vec(".{0,12}", 1..24), columns in 1usize..5) {
            let titles = ["name", "wave", "group", "target_folder", "pool"];
            let mut text = titles[..columns].join(",") + "\n";
            for row in cells.chunks(columns) {
                text += &(row.join(",") + "\n");
            }
            text += &(["web01", "Über Nacht", "x y", "/a b", "#p"][..columns].join(",") + "\n");
            if let Ok(table) = draft_table(&text, &inventory()) {
                proptest::prop_assert!(!table.rows.is_empty());
            }
        }
    }
}
