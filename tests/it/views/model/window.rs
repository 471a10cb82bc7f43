//! Model: windows, and arbitrary strides.

use stridemap::{Axis, ErrorKind};

use super::{Expected, Model, coordinates};

impl Model {
    pub(in super::super) fn unfold(&self, axis: Axis<'_>, size: usize, step: usize) -> Expected<Model> {
        let axis = self.axis(axis)?;
        if self.size.is_empty() {
            return self.with_axis(0, None).unfold(0.into(), size, step)?.select(0.into(), 0);
        }
        if step == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        let starts: Vec<usize> =
            (0..=self.size[axis]).step_by(step).filter(|start| start + size <= self.size[axis]).collect();
        if starts.is_empty() {
            return Err(ErrorKind::OutOfRange);
        }
        let mut dims = self.dims();
        dims[axis].0 = starts.len();
        dims.push((size, None));
        Ok(self.gathered(&dims, |at| {
            let mut source = at[..self.size.len()].to_vec();
            source[axis] = starts[at[axis]] + at[self.size.len()];
            source
        }))
    }

    pub(in super::super) fn sliding_window_view(
        &self,
        window: &[usize],
        axes: Vec<Axis<'_>>,
    ) -> Expected<Model> {
        let axes = axes.into_iter().map(|axis| Ok(self.dim(axis)?.0)).collect::<Expected<Vec<_>>>()?;
        if axes.len() != window.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        axes.into_iter()
            .zip(window)
            .try_fold(self.clone(), |view, (axis, &size)| view.unfold(axis.into(), size, 1))
    }

    pub(in super::super) fn as_strided(
        &self,
        size: &[usize],
        stride: &[isize],
        offset: Option<usize>,
    ) -> Expected<Model> {
        if size.len() != stride.len() {
            return Err(ErrorKind::InvalidArgument);
        }
        let offset = offset.unwrap_or_else(|| self.ids[0]);
        let id = |at: Vec<usize>| {
            let way: i128 = at.iter().zip(stride).map(|(&i, &step)| i as i128 * step as i128).sum();
            usize::try_from(offset as i128 + way).ok().filter(|&id| id < self.storage.len())
        };
        let ids: Option<Vec<usize>> = coordinates(size).map(id).collect();
        let ids = ids.filter(|_| offset <= self.storage.len()).ok_or(ErrorKind::OutOfRange)?;
        Ok(Model { size: size.to_vec(), names: vec![None; size.len()], ids, ..self.clone() })
    }
}
