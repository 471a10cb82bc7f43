//! Model: names of axes.

use std::collections::BTreeSet;

use stridemap::{ErrorKind, Tensor};

use super::{Expected, Model, Name};

fn are_distinct(names: &[Name]) -> Expected<()> {
    let given: Vec<&str> = names.iter().copied().flatten().collect();
    let is_distinct = given.iter().collect::<BTreeSet<_>>().len() == given.len();
    if is_distinct { Ok(()) } else { Err(ErrorKind::InvalidArgument) }
}

impl Model {
    pub(in super::super) fn rename(&self, names: &[Name]) -> Expected<Model> {
        are_distinct(names)?;
        Ok(Model { names: names.to_vec(), ..self.clone() })
    }

    pub(in super::super) fn refine_names(&self, names: &[Name]) -> Expected<Model> {
        let refined = self.rename(names)?;
        let is_refined = self.names.iter().zip(names).all(|(own, name)| own.is_none() || own == name);
        if is_refined { Ok(refined) } else { Err(ErrorKind::InvalidArgument) }
    }

    /// Reorders axes by name. Unknown names become new axes, and `...` is all others.
    pub(in super::super) fn align_to(&self, names: &[Name]) -> Expected<Model> {
        are_distinct(names)?;
        let absent = names.iter().filter(|&name| *name != Some("...") && !self.names.contains(name));
        let view = absent.fold(self.clone(), |view, &name| view.with_axis(0, name));
        let axis_of = |name: &Name| view.names.iter().position(|own| own == name);
        let listed: Vec<usize> = names.iter().filter_map(axis_of).collect();
        let rest: Vec<usize> = (0..view.size.len()).filter(|axis| !listed.contains(axis)).collect();
        let is_whole = rest.is_empty() || names.contains(&Some("..."));
        if names.contains(&None) || !is_whole {
            return Err(ErrorKind::InvalidArgument);
        }
        let places = names.iter().flat_map(|name| axis_of(name).map_or(rest.clone(), |axis| vec![axis]));
        Ok(view.reordered(&places.collect::<Vec<_>>()))
    }

    pub(in super::super) fn align_as(&self, other: &Tensor) -> Expected<Model> {
        let names = other.names();
        let owned =
            |name: &str| ["a", "b", "c", "d", "e", "f", "g", "h", "new"].into_iter().find(|&own| own == name);
        self.align_to(&names.iter().map(|name| owned((*name)?)).collect::<Vec<_>>())
    }
}
