//! Which of several hosts gets which VM. Pure: what hosts have and what VMs need in, places and reasons out.
//!
//! VMs that have a place keep it, whatever it takes. Then come those that are pinned, then the others, the largest first. Each goes to the
//! host that has the largest part of its own memory and pools left with it, so that hosts fill up evenly. The same input gives the same
//! places, in whatever order VMs are told.

use std::collections::{BTreeMap, BTreeSet};

use drover_types::Bytes;

/// A host that VMs may go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Why it takes no VM at all; absent if it does.
    pub closed: Option<String>,
    /// Memory that guests may still take, in bytes.
    pub memory_bytes: u64,
    /// Whether that is in huge pages, which are set aside for guests.
    pub has_huge_pages: bool,
    /// Free bytes of its pools, by name; one that cannot be used is not there.
    pub pools: BTreeMap<String, u64>,
    /// Storage that other hosts may have, too, by the names of the pools on it: what lies on it, by a word for all.
    pub shared: BTreeMap<String, String>,
}

impl Candidate {
    fn of_memory(&self) -> &'static str {
        if self.has_huge_pages { "of huge pages" } else { "of memory" }
    }
}

/// A VM that needs a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its name; no two have the same.
    pub name: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Bytes that it may take of pools, by host and then by pool.
    pub space: BTreeMap<String, BTreeMap<String, u64>>,
    /// The host that the plan names for it.
    pub pinned: Option<String>,
    /// The host that it went to before.
    pub kept: Option<String>,
    /// Hosts that cannot run it, and why.
    pub unfit: BTreeMap<String, String>,
    /// Groups whose VMs must be on different hosts.
    pub apart: BTreeSet<String>,
}

/// Where a VM goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Name of the host.
    pub host: String,
    /// Why it is that one.
    pub why: String,
}

/// Finds a host for each VM, in the order of `guests`; or tells what is wrong with each host.
pub fn place(hosts: &[Candidate], guests: &[Guest]) -> Vec<Result<Placed, String>> {
    let mut room = Room::new(hosts);
    let mut order: Vec<usize> = (0..guests.len()).collect();
    order.sort_by(|a, b| rank(&guests[*a]).cmp(&rank(&guests[*b])));
    let mut places: Vec<Option<Result<Placed, String>>> = guests.iter().map(|_| None).collect();
    for at in order {
        let guest = &guests[at];
        let placed = room.find(guest);
        if let Ok(placed) = &placed {
            room.take(&placed.host, guest);
        }
        places[at] = Some(placed);
    }
    places.into_iter().flatten().collect()
}

/// Those that have a place first, then those that may go to one only, then the largest.
fn rank(guest: &Guest) -> (bool, bool, std::cmp::Reverse<(u64, u64)>, &str) {
    let space = guest.space.values().map(|pools| sum(pools.values())).max().unwrap_or_default();
    let size = std::cmp::Reverse((guest.memory_bytes, space));
    (guest.kept.is_none(), guest.pinned.is_none(), size, &guest.name)
}

fn sum<'a>(bytes: impl Iterator<Item = &'a u64>) -> u64 {
    bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// What hosts have left.
struct Room<'a> {
    hosts: &'a [Candidate],
    left: Vec<Candidate>,
    /// By host and group, who of it is there.
    groups: BTreeMap<(&'a str, &'a str), &'a str>,
}

impl<'a> Room<'a> {
    fn new(hosts: &'a [Candidate]) -> Room<'a> {
        Room { hosts, left: hosts.to_vec(), groups: BTreeMap::new() }
    }

    fn find(&self, guest: &Guest) -> Result<Placed, String> {
        if let Some(host) = &guest.kept {
            return Ok(Placed { host: host.clone(), why: "it went there before".into() });
        }
        if let Some(host) = &guest.pinned {
            return self.pinned(host, guest);
        }
        let judged: Vec<(usize, Result<f64, String>)> =
            (0..self.hosts.len()).map(|at| (at, self.judge(at, guest))).collect();
        let fitting = judged.iter().filter(|(_, judged)| judged.is_ok()).count();
        let best = judged.iter().filter_map(|(at, judged)| Some((*at, *judged.as_ref().ok()?)));
        // The first of equals, as the plan names them.
        let best = best.reduce(|best, other| if other.1 > best.1 { other } else { best });
        let Some((at, _)) = best else {
            let why = judged.iter().filter_map(|(at, judged)| {
                Some(format!("{}: {}", self.hosts[*at].name, judged.as_ref().err()?))
            });
            return Err(why.collect::<Vec<_>>().join("; "));
        };
        let why = match (fitting, self.hosts.len()) {
            (1, 1) => "the only host".to_string(),
            (1, all) => format!("the only one of {all} hosts that fits"),
            (fitting, _) => format!("most room left of {fitting} hosts that fit"),
        };
        let host = &self.left[at];
        let memory = host.memory_bytes.saturating_sub(guest.memory_bytes);
        let why = format!("{why}; then {} {} free", Bytes(memory), host.of_memory());
        Ok(Placed { host: host.name.clone(), why })
    }

    fn pinned(&self, host: &str, guest: &Guest) -> Result<Placed, String> {
        let placed = Placed { host: host.to_string(), why: "the plan names it".into() };
        let Some(at) = self.hosts.iter().position(|it| it.name == host) else {
            return Err(format!("{host}: it is none of the plan's hosts"));
        };
        // One that is away may be back before the VM's turn comes.
        if self.hosts[at].closed.is_some() {
            return Ok(placed);
        }
        self.judge(at, guest).map(|_| placed).map_err(|why| format!("{host}: {why}"))
    }

    /// The smallest part of what the host had that would be left; or why it cannot take the VM.
    fn judge(&self, at: usize, guest: &Guest) -> Result<f64, String> {
        let (had, left) = (&self.hosts[at], &self.left[at]);
        if let Some(why) = had.closed.as_ref().or(guest.unfit.get(&had.name)) {
            return Err(why.clone());
        }
        for group in &guest.apart {
            if let Some(other) = self.groups.get(&(had.name.as_str(), group.as_str())) {
                return Err(format!("{other} is there, which it is to be apart from"));
            }
        }
        let short = |what: &str, left: u64, need: u64| {
            format!("{} {what} free, and it needs {}", Bytes(left), Bytes(need))
        };
        let mut part = share(left.memory_bytes, guest.memory_bytes, had.memory_bytes)
            .ok_or_else(|| short(had.of_memory(), left.memory_bytes, guest.memory_bytes))?;
        for (pool, need) in guest.space.get(&had.name).into_iter().flatten() {
            let Some(free) = left.pools.get(pool) else {
                return Err(format!("it has no usable pool {pool}"));
            };
            let of_pool = share(*free, *need, had.pools[pool])
                .ok_or_else(|| short(&format!("of pool {pool}"), *free, *need))?;
            part = part.min(of_pool);
        }
        Ok(part)
    }

    fn take(&mut self, host: &str, guest: &'a Guest) {
        let Some(at) = self.hosts.iter().position(|it| it.name == host) else { return };
        let left = &mut self.left[at];
        left.memory_bytes = left.memory_bytes.saturating_sub(guest.memory_bytes);
        for (pool, need) in guest.space.get(host).into_iter().flatten() {
            self.take_of_pool(at, pool, *need);
        }
        let hosts = self.hosts;
        for group in &guest.apart {
            self.groups.insert((hosts[at].name.as_str(), group.as_str()), &guest.name);
        }
    }
}

impl Room<'_> {
    fn take_of_pool(&mut self, at: usize, pool: &str, need: u64) {
        let storage = self.hosts[at].shared.get(pool);
        for (it, left) in self.left.iter_mut().enumerate() {
            let Candidate { pools, shared, .. } = left;
            for (name, free) in pools {
                let is_there = match storage {
                    Some(storage) => shared.get(name) == Some(storage),
                    None => it == at && name == pool,
                };
                if is_there {
                    *free = free.saturating_sub(need);
                }
            }
        }
    }
}

/// The part of `had` that is left after `need` is taken of `left`; nothing if that is too little.
fn share(left: u64, need: u64, had: u64) -> Option<f64> {
    let rest = left.checked_sub(need)?;
    Some(if had == 0 { 1.0 } else { rest as f64 / had as f64 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn host(name: &str, memory: u64, images: u64) -> Candidate {
        let pools = [("images".to_string(), images * GIB)].into();
        Candidate { name: name.into(), memory_bytes: memory * GIB, pools, ..Candidate::default() }
    }

    fn guest(name: &str, memory: u64, images: u64) -> Guest {
        let of_host = |host: &str| (host.to_string(), [("images".to_string(), images * GIB)].into());
        let space = ["a", "b", "c"].map(of_host).into();
        Guest { name: name.into(), memory_bytes: memory * GIB, space, ..Guest::default() }
    }

    fn hosts_of(places: &[Result<Placed, String>]) -> Vec<&str> {
        places.iter().map(|place| place.as_ref().map_or("-", |placed| &placed.host)).collect()
    }

    #[test]
    fn hosts_fill_up_evenly_by_what_is_scarcest() {
        let hosts = [host("a", 16, 100), host("b", 16, 100)];
        let guests = [guest("w1", 4, 10), guest("w2", 4, 10), guest("w3", 4, 10), guest("w4", 4, 10)];
        assert_eq!(hosts_of(&place(&hosts, &guests)), ["a", "b", "a", "b"]);
        // Much memory is of no use where the pool is nearly full.
        let hosts = [host("a", 64, 12), host("b", 16, 100)];
        let places = place(&hosts, &guests[..2]);
        assert_eq!(hosts_of(&places), ["b", "b"]);
        let why = &places[1].as_ref().unwrap().why;
        assert_eq!(why, "most room left of 2 hosts that fit; then 8 GiB of memory free");
    }

    #[test]
    fn storage_that_hosts_share_is_counted_once() {
        let shared =
            |host: Candidate| Candidate { shared: [("images".into(), "nas:/vms".into())].into(), ..host };
        let guests = [guest("w1", 1, 60), guest("w2", 1, 60)];
        let hosts = [shared(host("a", 16, 100)), shared(host("b", 16, 100))];
        let told = place(&hosts, &guests).remove(1).unwrap_err();
        assert!(told.contains("b: 40 GiB of pool images free, and it needs 60 GiB"), "{told}");
        let hosts = [host("a", 16, 100), host("b", 16, 100)];
        assert_eq!(hosts_of(&place(&hosts, &guests)), ["a", "b"]);
    }

    #[test]
    fn each_reason_why_there_is_no_place_is_told() {
        let closed = Candidate { closed: Some("it does not answer".into()), ..host("c", 64, 500) };
        let hosts = [host("a", 2, 100), host("b", 16, 5), closed];
        let told = place(&hosts, &[guest("w", 4, 10)]).remove(0).unwrap_err();
        assert!(told.contains("a: 2 GiB of memory free, and it needs 4 GiB"), "{told}");
        assert!(told.contains("b: 5 GiB of pool images free, and it needs 10 GiB"), "{told}");
        assert!(told.contains("c: it does not answer"), "{told}");
        let mut unfit = guest("w", 1, 1);
        unfit.unfit.insert("a".into(), "it offers no UEFI firmware".into());
        let places = place(&hosts, &[unfit]);
        assert_eq!(hosts_of(&places), ["b"]);
        assert!(places[0].as_ref().unwrap().why.contains("the only one of 3 hosts that fits"));
    }

    #[test]
    fn pinned_kept_and_parted_vms_go_where_they_must() {
        let hosts = [host("a", 16, 100), Candidate { closed: Some("away".into()), ..host("b", 16, 100) }];
        let mut guests = [guest("w1", 1, 1), guest("w2", 1, 1), guest("w3", 1, 1), guest("w4", 64, 1)];
        guests[0].pinned = Some("b".into());
        guests[1].kept = Some("b".into());
        guests[2].pinned = Some("x".into());
        guests[3].pinned = Some("a".into());
        let places = place(&hosts, &guests);
        // It may be back when the turn of those comes that must go there; what is too small stays so.
        assert_eq!(hosts_of(&places), ["b", "b", "-", "-"]);
        let hosts = [host("a", 16, 100), host("b", 16, 100)];
        let mut guests = [guest("db1", 1, 1), guest("db2", 1, 1), guest("db3", 1, 1)];
        guests.iter_mut().for_each(|guest| guest.apart = ["db*".to_string()].into());
        let places = place(&hosts, &guests);
        assert_eq!(hosts_of(&places), ["a", "b", "-"]);
        let told = places[2].as_ref().unwrap_err();
        assert!(told.contains("a: db1 is there, which it is to be apart from"), "{told}");
    }

    fn any_hosts() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0u64..40, 0u64..200, proptest::bool::weighted(0.15));
        proptest::collection::vec(one, 1..4).prop_map(|all| {
            let named = all.into_iter().zip(["a", "b", "c"]);
            let host = |((memory, images, closed), name): ((u64, u64, bool), &str)| Candidate {
                closed: closed.then(|| "closed".to_string()),
                ..host(name, memory, images)
            };
            named.map(host).collect()
        })
    }

    fn any_guests() -> impl Strategy<Value = Vec<Guest>> {
        let name = || proptest::option::weighted(0.1, proptest::sample::select(vec!["a", "b", "c"]));
        let one = (1u64..16, 0u64..60, name(), name(), proptest::option::weighted(0.3, 0u8..2));
        proptest::collection::vec(one, 0..12).prop_map(|all| {
            let made =
                all.into_iter().enumerate().map(|(at, (memory, images, pinned, unfit, group))| Guest {
                    pinned: pinned.map(str::to_string),
                    unfit: unfit.into_iter().map(|host| (host.to_string(), "unfit".to_string())).collect(),
                    apart: group.into_iter().map(|group| group.to_string()).collect(),
                    ..guest(&format!("w{at}"), memory, images)
                });
            made.collect()
        })
    }

    proptest! {
        #[test]
        fn no_host_gets_more_than_it_has_and_nobody_is_left_out_whom_one_could_take(
            hosts in any_hosts(), guests in any_guests()
        ) {
            let places = place(&hosts, &guests);
            prop_assert_eq!(places.len(), guests.len());
            let on = |host: &str| -> Vec<&Guest> {
                let there = guests.iter().zip(&places);
                there.filter(|(_, place)| place.as_ref().is_ok_and(|it| it.host == host)).map(|(guest, _)| guest).collect()
            };
            let memory = |guests: &[&Guest]| guests.iter().map(|it| it.memory_bytes).sum::<u64>();
            let images = |host: &str, guests: &[&Guest]| guests.iter().map(|it| it.space[host]["images"]).sum::<u64>();
            for host in hosts.iter().filter(|host| host.closed.is_none()) {
                let there = on(&host.name);
                prop_assert!(memory(&there) <= host.memory_bytes);
                prop_assert!(images(&host.name, &there) <= host.pools["images"]);
                for (at, guest) in there.iter().enumerate() {
                    prop_assert!(!guest.unfit.contains_key(&host.name));
                    prop_assert!(there[..at].iter().all(|other| other.apart.is_disjoint(&guest.apart)));
                }
            }
            for (guest, place) in guests.iter().zip(&places) {
                match (place, &guest.pinned) {
                    (Ok(place), Some(pinned)) => prop_assert_eq!(&place.host, pinned),
                    (Ok(place), None) => {
                        prop_assert!(hosts.iter().any(|it| it.name == place.host && it.closed.is_none()));
                    }
                    // What is left at the end is no more than there was when its turn came.
                    (Err(_), None) => for host in hosts.iter().filter(|host| host.closed.is_none()) {
                        let there = on(&host.name);
                        let fits = memory(&there) + guest.memory_bytes <= host.memory_bytes
                            && images(&host.name, &there) + guest.space[&host.name]["images"] <= host.pools["images"]
                            && !guest.unfit.contains_key(&host.name)
                            && there.iter().all(|other| other.apart.is_disjoint(&guest.apart));
                        prop_assert!(!fits, "{} would fit on {}", guest.name, host.name);
                    },
                    (Err(_), Some(_)) => {}
                }
            }
        }

        #[test]
        fn places_depend_on_no_order_and_are_kept_once_they_are_found(hosts in any_hosts(), guests in any_guests()) {
            let places = place(&hosts, &guests);
            let mut turned = guests.clone();
            turned.reverse();
            let mut other = place(&hosts, &turned);
            other.reverse();
            prop_assert_eq!(&places, &other);
            // Whatever became of the hosts since.
            let mut kept = guests.clone();
            for (guest, place) in kept.iter_mut().zip(&places) {
                guest.kept = place.as_ref().ok().map(|it| it.host.clone());
            }
            let empty: Vec<Candidate> = hosts.iter().map(|it| Candidate { memory_bytes: 0, ..it.clone() }).collect();
            for ((before, after), guest) in places.iter().zip(place(&empty, &kept)).zip(&kept) {
                if guest.kept.is_some() {
                    prop_assert_eq!(&before.as_ref().unwrap().host, &after.unwrap().host);
                }
            }
        }
    }
}
