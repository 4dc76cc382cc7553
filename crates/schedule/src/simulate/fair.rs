//! Max-min fair shares of transfers that go through several resources.

/// Relative difference up to which two levels are the same.
const SAME: f64 = 1e-9;

/// Transfers that go through the same resources, and so have the same rate.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// Resources, as indexes.
    pub(super) through: Vec<usize>,
    /// Transfers.
    pub(super) flows: usize,
    /// Bytes a second of each.
    pub(super) rate: f64,
    /// The resource that keeps it from being greater; absent: its own stream, or nothing.
    pub(super) limited_by: Option<usize>,
}

/// Gives those classes that have transfers their rates: all grow alike until a resource is full, which stops those that go through it.
///
/// `stream` is what one transfer can take at most.
pub(super) fn share(classes: &mut [Class], with_flows: &[usize], capacities: &[f64], stream: f64) {
    let mut left: Vec<f64> = capacities.to_vec();
    let mut flows = vec![0usize; capacities.len()];
    let mut up = vec![f64::INFINITY; capacities.len()];
    let mut growing: Vec<usize> = with_flows.to_vec();
    for class in &growing {
        classes[*class].through.iter().for_each(|resource| flows[*resource] += classes[*class].flows);
    }
    let mut level = 0.0;
    while !growing.is_empty() {
        let mut lowest = f64::INFINITY;
        for (up, (left, flows)) in up.iter_mut().zip(left.iter().zip(&flows)) {
            *up = if *flows == 0 { f64::INFINITY } else { left.max(0.0) / *flows as f64 };
            lowest = lowest.min(*up);
        }
        if level + lowest >= stream {
            for class in growing {
                (classes[class].rate, classes[class].limited_by) = (stream, None);
            }
            return;
        }
        let full = lowest * (1.0 + SAME);
        level += lowest;
        for (left, flows) in left.iter_mut().zip(&flows) {
            *left -= lowest * *flows as f64;
        }
        growing.retain(|class| {
            let class = &mut classes[*class];
            let by = class.through.iter().copied().find(|resource| up[*resource] <= full);
            if by.is_some() {
                (class.rate, class.limited_by) = (level, by);
                class.through.iter().for_each(|resource| flows[*resource] -= class.flows);
            }
            by.is_none()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(through: &[usize], flows: usize) -> Class {
        Class { through: through.to_vec(), flows, rate: 0.0, limited_by: None }
    }

    fn share_all(classes: &mut [Class], capacities: &[f64], stream: f64) {
        let with_flows: Vec<usize> = (0..classes.len()).filter(|class| classes[*class].flows > 0).collect();
        share(classes, &with_flows, capacities, stream);
    }

    fn rates(classes: &mut [Class], capacities: &[f64], stream: f64) -> Vec<f64> {
        share_all(classes, capacities, stream);
        classes.iter().map(|class| class.rate).collect()
    }

    #[test]
    fn what_one_cannot_use_the_others_have() {
        // Two hosts of 100 behind a line of 150: the one with four transfers is not what limits them.
        let mut classes = [class(&[0, 2], 1), class(&[1, 2], 4)];
        assert_eq!(rates(&mut classes, &[20.0, 100.0, 150.0], 80.0), [20.0, 25.0]);
        assert_eq!(classes.map(|class| class.limited_by), [Some(0), Some(1)]);
        assert_eq!(rates(&mut [class(&[0], 2)], &[1000.0], 80.0), [80.0]);
        assert_eq!(
            rates(&mut [class(&[0, 2], 1), class(&[1, 2], 4)], &[90.0, 99.0, 50.0], 80.0),
            [10.0, 10.0]
        );
    }

    #[test]
    fn no_resource_gives_more_than_it_has_and_each_transfer_is_limited_by_one_that_is_full() {
        for seed in 0..200 {
            let mut random = crate::random::Random::new(seed);
            let capacities: Vec<f64> = (0..8).map(|_| 1.0 + random.below(1000) as f64).collect();
            let mut any = || {
                let through: Vec<usize> = (0..8).filter(|_| random.below(3) == 0).collect();
                class(&through, random.below(9) as usize)
            };
            let mut classes: Vec<Class> = (0..20).map(|_| any()).collect();
            share_all(&mut classes, &capacities, 200.0);
            let used = |resource: usize| {
                let through = classes.iter().filter(|class| class.through.contains(&resource));
                through.map(|class| class.rate * class.flows as f64).sum::<f64>()
            };
            for (resource, capacity) in capacities.iter().enumerate() {
                assert!(used(resource) <= capacity * 1.000_001, "seed {seed}");
            }
            for class in classes.iter().filter(|class| class.flows > 0) {
                match class.limited_by {
                    Some(by) => assert!(used(by) >= capacities[by] * 0.999_999, "seed {seed}"),
                    None => assert_eq!(class.rate, 200.0, "seed {seed}"),
                }
            }
        }
    }
}
