//! What is wrong in a table: one item for each run of damaged or unread pages, and one for each readable node with
//! errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use stridemap_format::{Error as FormatError, Rule};

use crate::error::Error;

/// The damage to a table, by the page at which it begins.
#[derive(Debug, Default)]
pub(crate) struct TableDamage(BTreeMap<u64, Item>);

#[derive(Debug)]
struct Item {
    /// The first error there: a broken rule, or why the pages could not be read. An error other than F-24 comes before F-24.
    error: Error,
    /// How many more errors there are in the node.
    more: u64,
    /// The length of a run of pages. 0 for damage inside a node that can be read.
    pages: u64,
}

impl TableDamage {
    /// Adds an error in a node that can be read.
    pub(super) fn add(&mut self, page: u64, error: Error) {
        let is_order = |error: &Error| error.format_error().is_some_and(|e| e.rule() == Rule::EntryOrder);
        match self.0.entry(page) {
            Entry::Vacant(place) => drop(place.insert(Item { error, more: 0, pages: 0 })),
            Entry::Occupied(mut place) => {
                let item = place.get_mut();
                item.more += 1;
                if is_order(&item.error) && !is_order(&error) {
                    item.error = error;
                }
            }
        }
    }

    /// Adds an error that affects whole pages. If the run that ends directly before them breaks the same rule, or could
    /// not be read either, it is extended instead.
    pub(super) fn add_pages(&mut self, page: u64, pages: u64, error: Error) {
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

    /// Returns the first page of the run that contains `page`, if there is one.
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
    pub(crate) fn errors(&self) -> impl Iterator<Item = (u64, Error)> {
        self.0.iter().map(|(&page, Item { error, more, pages })| {
            let (Some(path), Some(broken)) = (error.broken_path(), error.format_error()) else {
                return (page, error.clone());
            };
            let rest = match (more, pages) {
                (0, 0 | 1) => return (page, error.clone()),
                (0, pages) => format!("{pages} pages from there on are like this"),
                (1, _) => "and one more fault in this node".to_owned(),
                (more, _) => format!("and {more} more faults in this node"),
            };
            let all = FormatError::new(broken.rule(), format!("{}; {rest}", broken.detail()));
            (page, Error::corrupt(path, all.at(broken.offset_bytes().unwrap_or_default())))
        })
    }
}
