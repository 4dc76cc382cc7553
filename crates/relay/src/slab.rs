//! Places for connections, each with a key that no later connection of the place has. Pure.

/// Names a place and who is in it: 31 bits of generation, 32 of place, and one bit for the caller's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    place: u32,
    generation: u32,
}

impl Key {
    /// As a number, with one bit of the caller's.
    pub(crate) fn token(self, bit: bool) -> u64 {
        (u64::from(self.generation) << 33) | (u64::from(self.place) << 1) | u64::from(bit)
    }

    /// From such a number.
    pub(crate) fn of(token: u64) -> (Key, bool) {
        let key = Key { place: ((token >> 1) & 0xffff_ffff) as u32, generation: (token >> 33) as u32 };
        (key, token & 1 == 1)
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// Values under keys.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

/// Generations have 31 bits.
const GENERATIONS: u32 = 0x7fff_ffff;

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            u32::try_from(self.places.len() - 1).unwrap_or_else(|_| panic!("more places than 32 bits name"))
        });
        let slot = &mut self.places[place as usize];
        slot.value = Some(value);
        Key { place, generation: slot.generation }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.place as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let place = &mut self.places[key.place as usize];
        place.generation = (place.generation + 1) & GENERATIONS;
        self.free.push(key.place);
        place.value.take()
    }

    /// Changes the value under a key, if there is one.
    pub(crate) fn replace(&mut self, key: Key, change: impl FnOnce(T) -> T) {
        if self.get_mut(key).is_some() {
            let place = &mut self.places[key.place as usize];
            place.value = place.value.take().map(change);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let full = self.places.iter().enumerate().filter(|(_, place)| place.value.is_some());
        full.map(|(at, place)| Key { place: at as u32, generation: place.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_one_who_has_gone_finds_nobody() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.len(), slab.get_mut(a).copied()), (2, Some('a')));
        assert_eq!(slab.remove(a), Some('a'));
        let c = slab.insert('c');
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.iter_mut().map(|it| *it).collect::<String>(), "cb");
        assert_eq!(slab.keys(), [c, b]);
        slab.replace(a, |_| 'x');
        slab.replace(c, |it| it.to_ascii_uppercase());
        assert_eq!(slab.get_mut(c), Some(&mut 'C'));
    }

    #[test]
    fn a_token_reads_back() {
        for (place, generation) in [(0, 0), (7, 1), (u32::MAX, GENERATIONS)] {
            let key = Key { place, generation };
            for bit in [false, true] {
                assert_eq!(Key::of(key.token(bit)), (key, bit));
            }
        }
    }
}
