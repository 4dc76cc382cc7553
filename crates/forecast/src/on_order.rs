//! VMs that wait for somebody to say that they move over.

use serde::{Deserialize, Serialize};

use crate::foresee::{Question, Told};
use crate::quantile::Spread;

/// VMs that move over only when `drover cutover` says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnOrder {
    /// How many.
    pub vms: usize,
    /// Until the last of them is ready for its cutover, and all others have arrived; absent if one never is.
    pub ready_s: Option<Spread>,
    /// How long a guest of them is down, the longest of each draw.
    pub down_s: Option<Spread>,
}

impl OnOrder {
    /// What of some VMs waits for an order, by what was drawn; nothing if none does.
    pub(crate) fn of(question: &Question, vms: &[usize], told: &[Vec<Told>]) -> Option<OnOrder> {
        let is_on_order = |at: usize| question.vms[at].is_on_order();
        let waits: Vec<usize> = vms.iter().copied().filter(|at| is_on_order(*at)).collect();
        if waits.is_empty() {
            return None;
        }
        let ready = |draw: &Vec<Told>| {
            let of = |at: &usize| if is_on_order(*at) { draw[*at].down } else { draw[*at].end };
            let moments = || vms.iter().map(of);
            // One that never is has no number.
            if moments().any(f32::is_nan) { f64::NAN } else { f64::from(moments().fold(0.0, f32::max)) }
        };
        let down = |draw: &Vec<Told>| {
            f64::from(waits.iter().map(|at| draw[*at].end - draw[*at].down).fold(f32::NAN, f32::max))
        };
        Some(OnOrder {
            vms: waits.len(),
            ready_s: Spread::of(told.iter().map(ready)),
            down_s: Spread::of(told.iter().map(down)),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::WarmWish;
    use crate::foresee::foresee_roughly;
    use crate::foresee::tests::question;

    #[test]
    fn what_waits_for_an_order_is_foreseen_until_it_is_ready_and_how_long_it_is_down() {
        let mut asked = question(4, 1, 20);
        assert_eq!(foresee_roughly(&asked).on_order, None);
        let manual = WarmWish { interval_ms: 60_000, on_order: true, ..WarmWish::default() };
        asked.vms[1].warm = Some(manual);
        asked.vms[2].warm = Some(WarmWish { on_order: false, ..manual });
        asked.plans.push("q".into());
        asked.vms[3].plan = 1;
        let forecast = foresee_roughly(&asked);
        let all = forecast.on_order.unwrap();
        let (vm, other) = (&forecast.vms[1], &forecast.vms[0]);
        assert_eq!((all.vms, vm.on_order, other.on_order), (1, true, false));
        assert_eq!(all.down_s, vm.downtime_s);
        let (ready, cutover) = (all.ready_s.unwrap(), vm.cutover_s.unwrap());
        assert!(ready.p50 >= cutover.p50 && ready.p50 <= forecast.makespan_s.p50, "{forecast:?}");
        let [Some(one), None] = forecast.plans_on_order[..] else { panic!("{:?}", forecast.plans_on_order) };
        assert_eq!(one.vms, 1);
        // Without the others it is ready as its cutover may begin.
        asked.vms = vec![asked.vms[1].clone()];
        let alone = foresee_roughly(&asked);
        assert_eq!(alone.on_order.unwrap().ready_s, alone.vms[0].cutover_s);
    }
}
