//! Transfers under way, and the resources that they share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use drover_types::{DayLimit, limit_at};

use super::fair::{Class, share};
use super::outcome::ResourceUse;
use super::{Capacities, Vm};
use crate::wait::Resource;

/// Bytes a second of what has no limit.
const UNLIMITED: f64 = 1e15;
/// What is left of a transfer when it counts as done; rounding leaves less.
const REST_BYTES: f64 = 1.0;

/// A disk that is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    pub(super) vm: usize,
    pub(super) disk: usize,
}

/// All transfers.
pub(super) struct Transfers<'a> {
    capacities: &'a Capacities,
    resources: Vec<Shared>,
    rates: Vec<f64>,
    number_of: BTreeMap<Resource, usize>,
    classes: Vec<Class>,
    queues: Vec<Queue>,
    /// Classes that have transfers, in order: all others, which may be many more, are looked at by nothing.
    with_flows: Vec<usize>,
    class_of: BTreeMap<Vec<usize>, usize>,
    stream: f64,
    is_stale: bool,
}

/// A resource.
struct Shared {
    resource: Resource,
    has_limit: bool,
    bytes: f64,
    could_bytes: f64,
    full_ms: f64,
    is_full: bool,
}

/// Transfers of a class.
#[derive(Default)]
struct Queue {
    /// Bytes that each transfer would have got that was there from the beginning.
    served: f64,
    /// By how many that will be when they are done.
    ends: BinaryHeap<Reverse<(u64, Flow)>>,
    /// What each was limited by before it began.
    began: BTreeMap<Flow, Vec<f64>>,
    /// Milliseconds for each resource of the class, the stream last.
    limited_ms: Vec<f64>,
}

impl<'a> Transfers<'a> {
    pub(super) fn new(capacities: &'a Capacities) -> Transfers<'a> {
        Transfers {
            capacities,
            resources: Vec::new(),
            rates: Vec::new(),
            number_of: BTreeMap::new(),
            classes: Vec::new(),
            queues: Vec::new(),
            with_flows: Vec::new(),
            class_of: BTreeMap::new(),
            stream: capacities.stream.map_or(UNLIMITED, |rate| rate.max(1) as f64),
            is_stale: true,
        }
    }

    fn number(&mut self, resource: Resource, rate: Option<u64>) -> usize {
        if let Some(number) = self.number_of.get(&resource) {
            return *number;
        }
        let number = self.resources.len();
        self.number_of.insert(resource.clone(), number);
        let has_limit = rate.is_some();
        let (bytes, could_bytes, full_ms, is_full) = (0.0, 0.0, 0.0, false);
        self.resources.push(Shared { resource, has_limit, bytes, could_bytes, full_ms, is_full });
        self.rates.push(rate.map_or(UNLIMITED, |rate| rate.max(1) as f64));
        number
    }

    /// Begins one; `now_ms` decides which hours of the line hold.
    pub(super) fn begin(&mut self, flow: Flow, vm: &Vm, bytes: u64, now_ms: u64) {
        let disk = &vm.job.disks[flow.disk];
        let all = self.capacities;
        let mut through = vec![self.number(Resource::Host(vm.job.host.clone()), all.host(&vm.job.host))];
        if let Some(rate) = all.datastore(&disk.datastore) {
            through.push(self.number(Resource::Datastore(disk.datastore.clone()), Some(rate)));
        }
        if let Some((pool, rate)) = disk.pool.as_ref().and_then(|pool| Some((pool, all.pool(pool)?))) {
            through.push(self.number(Resource::Pool(pool.clone()), Some(rate)));
        }
        if !all.link.is_empty() {
            through.push(self.number(Resource::Link, rate_at(all, &all.link, now_ms).or(Some(u64::MAX))));
        }
        for (line, limits) in vm.lines.iter().filter_map(|line| Some((line, all.lines.get(line)?))) {
            let rate = rate_at(all, limits, now_ms).or(Some(u64::MAX));
            through.push(self.number(Resource::Line(line.clone()), rate));
        }
        if all.cpu.is_some() {
            through.push(self.number(Resource::Cpu, all.cpu));
        }
        let class = self.class(through);
        let queue = &mut self.queues[class];
        queue.ends.push(Reverse(((queue.served + bytes.max(1) as f64).to_bits(), flow)));
        queue.began.insert(flow, queue.limited_ms.clone());
        self.classes[class].flows += 1;
        if let Err(place) = self.with_flows.binary_search(&class) {
            self.with_flows.insert(place, class);
        }
        self.is_stale = true;
    }

    fn class(&mut self, through: Vec<usize>) -> usize {
        if let Some(class) = self.class_of.get(&through) {
            return *class;
        }
        let class = self.classes.len();
        let limited_ms = vec![0.0; through.len() + 1];
        self.class_of.insert(through.clone(), class);
        self.classes.push(Class { through, flows: 0, rate: 0.0, limited_by: None });
        self.queues.push(Queue { limited_ms, ..Queue::default() });
        class
    }

    /// Milliseconds until the next one is done.
    pub(super) fn until_next_ms(&mut self) -> Option<f64> {
        self.refresh();
        let left = |class: &usize| {
            let queue = &self.queues[*class];
            let Reverse((end, _)) = queue.ends.peek()?;
            Some((f64::from_bits(*end) - queue.served).max(0.0) * 1000.0 / self.classes[*class].rate)
        };
        self.with_flows.iter().filter_map(left).min_by(f64::total_cmp)
    }

    fn refresh(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        share(&mut self.classes, &self.with_flows, &self.rates, self.stream);
        self.resources.iter_mut().for_each(|it| it.is_full = false);
        for class in &self.with_flows {
            self.classes[*class].limited_by.into_iter().for_each(|by| self.resources[by].is_full = true);
        }
    }

    /// So much time passes.
    pub(super) fn advance(&mut self, ms: f64) {
        self.refresh();
        for class in &self.with_flows {
            let (class, queue) = (&self.classes[*class], &mut self.queues[*class]);
            let bytes = class.rate * ms / 1000.0;
            queue.served += bytes;
            let by = class.limited_by.and_then(|by| class.through.iter().position(|it| *it == by));
            queue.limited_ms[by.unwrap_or(class.through.len())] += ms;
            for resource in &class.through {
                self.resources[*resource].bytes += bytes * class.flows as f64;
            }
        }
        for (it, rate) in self.resources.iter_mut().zip(&self.rates) {
            it.could_bytes += rate * ms / 1000.0;
            it.full_ms += if it.is_full { ms } else { 0.0 };
        }
    }

    /// One that is done, with what limited it for how long.
    pub(super) fn take_done(&mut self) -> Option<(Flow, Vec<(Resource, f64)>)> {
        let is_done = |class: &usize| {
            let Queue { ends, served, .. } = &self.queues[*class];
            ends.peek().is_some_and(|Reverse((end, _))| f64::from_bits(*end) - served < REST_BYTES)
        };
        let place = self.with_flows.iter().position(is_done)?;
        let at = self.with_flows[place];
        let queue = &mut self.queues[at];
        let Reverse((_, flow)) = queue.ends.pop()?;
        let began = queue.began.remove(&flow).unwrap_or_default();
        let class = &mut self.classes[at];
        class.flows -= 1;
        if class.flows == 0 {
            self.with_flows.remove(place);
        }
        self.is_stale = true;
        let spent = queue.limited_ms.iter().zip(began).map(|(now, then)| now - then).enumerate();
        let named = spent.filter(|(_, ms)| *ms > 0.0).map(|(by, ms)| {
            let resource = class.through.get(by).map(|by| self.resources[*by].resource.clone());
            (resource.unwrap_or(Resource::Stream), ms)
        });
        Some((flow, named.collect()))
    }

    /// Milliseconds until the line may have another rate, if it has hours.
    pub(super) fn until_hours_ms(&self, now_ms: f64) -> Option<f64> {
        let now = self.capacities.zero_ms + now_ms as u64;
        let limits = self.lines().flat_map(|(_, limits)| limits);
        let changes = limits.filter_map(|limit| limit.changes_after(now)).min()?;
        Some((changes - self.capacities.zero_ms) as f64 - now_ms)
    }

    /// Lines have the rates of this time.
    pub(super) fn set_hours(&mut self, now_ms: f64) {
        let rate = |limits: &[DayLimit]| rate_at(self.capacities, limits, now_ms as u64);
        let rates: Vec<(usize, f64)> = self
            .lines()
            .filter_map(|(resource, limits)| {
                let number = *self.number_of.get(&resource)?;
                Some((number, rate(limits).map_or(UNLIMITED, |rate| rate as f64)))
            })
            .collect();
        for (line, rate) in rates {
            self.is_stale |= std::mem::replace(&mut self.rates[line], rate) != rate;
        }
    }

    /// The line of all, and those that only some VMs share.
    fn lines(&self) -> impl Iterator<Item = (Resource, &[DayLimit])> {
        let lines = self.capacities.lines.iter();
        let lines = lines.map(|(name, limits)| (Resource::Line(name.clone()), limits.as_slice()));
        std::iter::once((Resource::Link, self.capacities.link.as_slice())).chain(lines)
    }

    /// Bytes that went through a resource so far; none of a datastore without a rate.
    pub(super) fn bytes(&self, resource: &Resource) -> f64 {
        let number = self.number_of.get(resource);
        number.map_or(0.0, |number| self.resources[*number].bytes)
    }

    /// What limits most transfers now.
    pub(super) fn limits_most(&self) -> Option<Resource> {
        let mut flows = vec![0; self.resources.len() + 1];
        for class in self.with_flows.iter().map(|class| &self.classes[*class]) {
            flows[class.limited_by.unwrap_or(self.resources.len())] += class.flows;
        }
        let (at, most) = flows.into_iter().enumerate().max_by_key(|(at, flows)| (*flows, Reverse(*at)))?;
        let named = || self.resources.get(at).map_or(Resource::Stream, |it| it.resource.clone());
        (most > 0).then(named)
    }

    /// What the resources with limits did.
    pub(super) fn uses(&self) -> Vec<ResourceUse> {
        let of = |it: &Shared| ResourceUse {
            resource: it.resource.clone(),
            bytes: it.bytes as u64,
            full_ms: it.full_ms as u64,
            part: if it.could_bytes > 0.0 { it.bytes / it.could_bytes } else { 0.0 },
        };
        let mut uses: Vec<ResourceUse> = self.resources.iter().filter(|it| it.has_limit).map(of).collect();
        uses.sort_by(|a, b| a.resource.cmp(&b.resource));
        uses
    }
}

/// The limit that holds at a moment of the virtual clock.
fn rate_at(capacities: &Capacities, limits: &[DayLimit], now_ms: u64) -> Option<u64> {
    limit_at(limits, (capacities.zero_ms + now_ms) / 1000)
}
