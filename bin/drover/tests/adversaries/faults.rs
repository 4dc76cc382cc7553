//! kill -9 and errors of the kernel at any system call of a copy's whole life; then it is gone on with.

use crate::copies::{Before, Format, Place, Pool, differs, foreign, scribble};
use crate::dice::Dice;
use crate::run::{Ended, Injection, Point, points_of, run, strike};
use crate::tally::{Ending, Kind, Violation};

/// A copy with the system calls of its whole life.
struct Way {
    from: Format,
    to: Format,
    before: Before,
    more: &'static [&'static str],
    points: Vec<Point>,
}

pub struct Ways<'a> {
    pool: &'a Pool,
    ways: Vec<Way>,
}

const WAYS: &[(Format, Format, Before, &[&str])] = &[
    (Format::Raw, Format::Raw, Before::Nothing, &[]),
    (Format::Raw, Format::Raw, Before::Nothing, &["--verify=full"]),
    (Format::Raw, Format::Raw, Before::Sparse, &["--verify=source"]),
    (Format::Qcow2, Format::Raw, Before::Empty, &[]),
    (Format::Raw, Format::Qcow2, Before::Nothing, &[]),
    (Format::Raw, Format::Qcow2, Before::Nothing, &["--verify=full"]),
    (Format::Raw, Format::Qcow2, Before::Nothing, &["--compress"]),
    (Format::Qcow2, Format::Qcow2, Before::Made, &["--verify=full"]),
];

impl<'a> Ways<'a> {
    pub fn new(pool: &'a Pool) -> Ways<'a> {
        let way = |&(from, to, before, more)| {
            let place = pool.place();
            place.prepare(to, before);
            let mut way = Way { from, to, before, more, points: Vec::new() };
            let (source, target) = way.ends(pool, &place, 0);
            way.points = points_of(&place.drover, &place.folder, &way.args(&source, &target));
            way
        };
        Ways { pool, ways: WAYS.iter().map(way).collect() }
    }

    pub fn round(&self, dice: &mut Dice) -> Ending {
        let way = dice.one_of(&self.ways);
        let place = self.pool.place();
        place.prepare(way.to, way.before);
        let mut round = Round { pool: self.pool, way, place, story: format!("{:?}", WAYS[self.number(way)]) };
        let ending = round.play(dice)?;
        round.place.look_for_secrets()?;
        Ok(ending)
    }

    fn number(&self, way: &Way) -> usize {
        self.ways.iter().position(|one| std::ptr::eq(one, way)).unwrap()
    }
}

impl Way {
    fn ends(&self, pool: &Pool, place: &Place, disk: usize) -> (String, String) {
        let disk = &pool.disks[disk];
        let source = if self.from == Format::Raw { &disk.raw } else { &disk.qcow2 };
        (source.clone(), place.target(self.to).display().to_string())
    }

    fn args<'t>(&self, source: &'t str, target: &'t str) -> Vec<&'t str> {
        // A disk that fails for ever is no reason to wait for it here.
        [&["copy", source, target, "--retry-for=1"][..], self.more].concat()
    }
}

struct Round<'a> {
    pool: &'a Pool,
    way: &'a Way,
    place: Place,
    story: String,
}

impl Round<'_> {
    fn play(&mut self, dice: &mut Dice) -> Ending {
        let faults = 1 + dice.roll(2);
        for _ in 0..faults {
            let mut injections = vec![strike(&self.way.points, dice)];
            // Kills and errors of the same life.
            injections.extend(dice.percent(20).then(|| strike(&self.way.points, dice)));
            self.story += &format!("; {injections:?}");
            let ended = self.copy(0, &injections)?;
            self.story += &format!(" -> {:?}", ended.code);
            if ended.code == Some(0) {
                self.check(&ended)?;
                return Ok("through".to_string());
            }
        }
        if dice.percent(15) {
            return self.somebody_takes_the_file();
        }
        let ended = self.copy(0, &[])?;
        match ended.code {
            Some(0) => self.check(&ended).map(|()| "gone on with".to_string()),
            // It was done, but for saying so.
            Some(7) if ended.said.contains("already holds") && self.is_equal() => Ok("was done".to_string()),
            _ => Err(Violation::new(
                Kind::Stuck,
                format!("{}; code {:?}: {}", self.story, ended.code, ended.said),
            )),
        }
    }

    /// A copy that recorded no data protects nothing: what somebody put there since is theirs.
    fn somebody_takes_the_file(&mut self) -> Ending {
        let path = self.place.target(self.way.to);
        let (recorded, is_equal) = (self.place.recorded(self.way.to), self.is_equal());
        if recorded > 0 || is_equal {
            return Ok("recorded".to_string());
        }
        scribble(&path);
        let ended = self.copy(1, &[])?;
        self.story += &format!("; somebody's bytes, another disk -> {:?}", ended.code);
        let mut found = std::fs::read(&path).unwrap_or_default();
        found.truncate(foreign().len());
        match found == foreign() && ended.code != Some(0) {
            true => Ok("somebody's bytes kept".to_string()),
            false => Err(Violation::new(Kind::Lost, format!("{}: {}", self.story, ended.said))),
        }
    }

    fn copy(&self, disk: usize, injections: &[Injection]) -> Result<Ended, Violation> {
        let (source, target) = self.way.ends(self.pool, &self.place, disk);
        let name = if injections.is_empty() { "plain" } else { "struck" };
        let ended =
            run(&self.place.drover, &self.place.folder, name, &self.way.args(&source, &target), injections);
        ended.map_err(|found| Violation::new(found.kind, format!("{}; {}", self.story, found.what)))
    }

    fn check(&self, ended: &Ended) -> Result<(), Violation> {
        let held = self.place.holds(self.way.to, &self.pool.disks[0]);
        held.map_err(|why| differs(ended, &why, &self.story))
    }

    fn is_equal(&self) -> bool {
        self.place.holds(self.way.to, &self.pool.disks[0]).is_ok()
    }
}
