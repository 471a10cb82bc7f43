//! Which tags to keep.

use std::collections::BTreeSet;
use std::time::Duration;

use super::history::TagInfo;
use crate::error::{Error, ErrorKind, Result};

/// Which tags [`Store::retain`](crate::Store::retain) keeps: those that at least one of the rules keeps. The order of
/// tags is that of their generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Keeps this many of the last tags.
    pub keep_last: Option<usize>,
    /// Keeps the tags whose generations were published within this duration before that of the last tag. Clocks jump: a
    /// tag is kept, too, if its time is not between the times of the tags before and after it.
    pub keep_within: Option<Duration>,
    /// Keeps the last tag of each period of this many generations.
    pub keep_every: Option<u64>,
}

impl Retention {
    /// Returns the tags that [`Store::retain`](crate::Store::retain) would remove, of those for which `is_candidate` holds.
    /// `tags` ascend by generation, as those of [`Store::tags`](crate::Store::tags) do.
    ///
    /// ```
    /// # use stridemap::Store;
    /// use stridemap::history::Retention;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("x.smap"))?;
    /// store.tag("a")?;
    /// store.tag("b")?;
    /// let policy = Retention { keep_last: Some(1), ..Retention::default() };
    /// assert_eq!(policy.removes(store.tags()?, |_| true)?[0].name, "a");
    /// assert_eq!(store.tags()?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a policy without a rule, or with a count of 0.
    pub fn removes(
        &self,
        mut tags: Vec<TagInfo>,
        is_candidate: impl Fn(&str) -> bool,
    ) -> Result<Vec<TagInfo>> {
        let why = match self {
            Retention { keep_last: None, keep_within: None, keep_every: None } => "has no rule",
            Retention { keep_last: Some(0), .. } => "has keep_last: 0, which keeps no tag",
            Retention { keep_every: Some(0), .. } => "has keep_every: 0; the least is 1, which keeps all",
            _ => "",
        };
        if !why.is_empty() {
            let message = format!("retain: the policy {why}; say which tags to keep, or remove tags by name");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        tags.retain(|tag| is_candidate(&tag.name));
        let first_kept = tags.len().saturating_sub(self.keep_last.unwrap_or_default());
        let recent = self.keep_within.map(|within| recent(&tags, within));
        let mut periods = BTreeSet::new();
        let mut removed = Vec::new();
        for (index, tag) in tags.into_iter().enumerate().rev() {
            let is_recent = recent.as_ref().is_some_and(|recent| recent.contains(&index));
            let is_last_of_period =
                self.keep_every.is_some_and(|every| periods.insert(tag.generation / every));
            if index < first_kept && !is_recent && !is_last_of_period {
                removed.push(tag);
            }
        }
        removed.reverse();
        Ok(removed)
    }
}

/// Returns the indices of the tags within a duration before the last one, and of those whose time is out of order.
fn recent(tags: &[TagInfo], within: Duration) -> BTreeSet<usize> {
    let Some(last) = tags.last() else { return BTreeSet::new() };
    let mut latest_before = Vec::new();
    for tag in tags {
        let before = latest_before.last().copied().unwrap_or(tag.time);
        latest_before.push(tag.time.max(before));
    }
    let mut earliest_after = last.time;
    let mut kept = BTreeSet::new();
    for (index, (tag, latest)) in tags.iter().zip(&latest_before).enumerate().rev() {
        earliest_after = earliest_after.min(tag.time);
        let is_in_order = tag.time >= *latest && tag.time <= earliest_after;
        let is_old = last.time.duration_since(tag.time).is_ok_and(|age| age > within);
        if !is_in_order || !is_old {
            kept.insert(index);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn tags(seconds: &[u64]) -> Vec<TagInfo> {
        let tag = |(index, &seconds): (usize, &u64)| TagInfo {
            name: format!("t{index}"),
            generation: index as u64 + 2,
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            message: None,
        };
        seconds.iter().enumerate().map(tag).collect()
    }

    fn removed(policy: &Retention, seconds: &[u64]) -> Vec<String> {
        let removed = policy.removes(tags(seconds), |name| name != "t1").unwrap();
        removed.into_iter().map(|tag| tag.name).collect()
    }

    #[test]
    fn rules_keep_tags_independently() {
        let policy = Retention { keep_last: Some(1), keep_every: Some(4), ..Retention::default() };
        // Generations 2 to 8: 3, 7 and 8 are the last of their four; t1, of generation 3, is no candidate.
        assert_eq!(removed(&policy, &[0, 1, 2, 3, 4, 5, 6]), ["t2", "t3", "t4"]);
    }

    #[test]
    fn clock_that_jumped_keeps_what_it_dates() {
        let policy = Retention { keep_within: Some(Duration::from_secs(2)), ..Retention::default() };
        assert_eq!(removed(&policy, &[0, 1, 2, 3, 4, 5, 6]), ["t0", "t2", "t3"]);
        // t3 says that it is later than t4.
        assert_eq!(removed(&policy, &[0, 1, 2, 99, 4, 5, 100]), ["t0", "t2"]);
    }

    #[test]
    fn policy_without_a_rule_or_with_a_count_of_zero_is_refused() {
        let none = Retention::default();
        let last = Retention { keep_last: Some(0), keep_every: Some(1), ..none };
        let every = Retention { keep_last: Some(1), keep_every: Some(0), ..none };
        for (policy, why) in [(none, "no rule"), (last, "keep_last: 0"), (every, "keep_every: 0")] {
            let refused = policy.removes(tags(&[0]), |_| true).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }
}
