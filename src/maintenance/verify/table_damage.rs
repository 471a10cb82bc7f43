//! What is wrong in a table: one item for each run of unreadable pages, and one for each readable node with errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use stridemap_format::{Error as FormatError, PAGE_BYTES, Rule};

/// The damage to a table, by the page at which it begins.
#[derive(Debug, Default)]
pub(crate) struct TableDamage(BTreeMap<u64, Item>);

#[derive(Debug)]
struct Item {
    /// The first error there. An error other than F-24 comes before F-24.
    error: FormatError,
    /// How many more errors there are in the node.
    more: u64,
    /// The length of a run of damaged pages. 0 for damage inside a node that can be read.
    pages: u64,
}

impl TableDamage {
    /// Adds an error in a node that can be read.
    pub(super) fn add(&mut self, page: u64, error: FormatError) {
        let error = error.at(page.saturating_mul(PAGE_BYTES as u64));
        match self.0.entry(page) {
            Entry::Vacant(place) => drop(place.insert(Item { error, more: 0, pages: 0 })),
            Entry::Occupied(mut place) => {
                let item = place.get_mut();
                item.more += 1;
                if item.error.rule() == Rule::EntryOrder && error.rule() != Rule::EntryOrder {
                    item.error = error;
                }
            }
        }
    }

    /// Adds an error that affects whole pages. If the run that ends directly before them has the same kind of error, it
    /// is extended instead.
    pub(super) fn add_pages(&mut self, page: u64, pages: u64, error: FormatError) {
        if let Some((start, run)) = self.0.range_mut(..page).next_back()
            && run.pages > 0
            && start + run.pages == page
            && run.error.rule() == error.rule()
        {
            run.pages += pages;
            return;
        }
        self.add(page, error);
        if let Some(item) = self.0.get_mut(&page) {
            item.pages = pages;
        }
    }

    /// Returns the first page of the damaged run that contains `page`, if there is one.
    pub(super) fn run_at(&self, page: u64) -> Option<u64> {
        let (start, item) = self.0.range(..=page).next_back()?;
        (page - start < item.pages).then_some(*start)
    }

    /// Whether there is damage in the node that begins at a page.
    pub(super) fn is_at(&self, page: u64) -> bool {
        self.0.contains_key(&page)
    }

    pub(super) fn first_page(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an error for each item, with the page at which it begins.
    pub(crate) fn errors(&self) -> impl Iterator<Item = (u64, FormatError)> {
        self.0.iter().map(|(&page, Item { error, more, pages })| {
            let rest = match (more, pages) {
                (0, 0 | 1) => return (page, error.clone()),
                (0, pages) => format!("{pages} pages from there on are like this"),
                (1, _) => "and one more fault in this node".to_owned(),
                (more, _) => format!("and {more} more faults in this node"),
            };
            let all = FormatError::new(error.rule(), format!("{}; {rest}", error.detail()));
            (page, all.at(error.offset_bytes().unwrap_or_default()))
        })
    }
}
