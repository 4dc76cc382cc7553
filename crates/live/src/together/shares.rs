//! What each of several may have of one budget.

/// Shares of a budget, equal but for those that cannot use theirs: what these leave the others have. Their sum is never
/// more than the budget, and less than it by fewer bytes than there are shares unless all have what they can use.
pub(super) fn shares(budget: u64, caps: &[u64]) -> Vec<u64> {
    let mut by_cap: Vec<usize> = (0..caps.len()).collect();
    by_cap.sort_by_key(|one| caps[*one]);
    let mut shares = vec![0; caps.len()];
    let mut left = budget;
    let mut sharers = caps.len() as u64;
    for one in by_cap {
        shares[one] = caps[one].min(left / sharers);
        left -= shares[one];
        sharers -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn what_one_cannot_use_the_others_have() {
        assert_eq!(shares(90, &[1000, 1000, 1000]), [30, 30, 30]);
        assert_eq!(shares(90, &[1000, 10, 1000]), [40, 10, 40]);
        assert_eq!(shares(90, &[5, 10, 20]), [5, 10, 20]);
        assert_eq!(shares(7, &[9, 9]), [3, 4]);
        assert!(shares(7, &[]).is_empty());
    }
}
