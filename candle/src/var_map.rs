//! Saving and loading the variables of a candle `VarMap`.

use std::sync::PoisonError;

use candle_core::Result;
use candle_nn::VarMap;
use stridemap::{ErrorKind, Snapshot, Transaction};

use crate::from_candle;
use crate::var_builder::{check_size, convert, load};

/// Saves every variable under its name, with `prefix` before it, in ascending order of name. The variables become
/// visible when the transaction commits.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, VarMap};
/// use stridemap::Store;
/// use stridemap_candle::{load_var_map, save_var_map};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::create(dir.path().join("model.smap"))?;
/// let variables = VarMap::new();
/// variables.get(2, "bias", Init::Const(3.), DType::F32, &Device::Cpu)?;
/// store.write(|txn| save_var_map(txn, "epoch.1.", &variables))?;
///
/// let restored = VarMap::new();
/// let bias = restored.get(2, "bias", Init::Const(0.), DType::F32, &Device::Cpu)?;
/// load_var_map(&store.snapshot(), "epoch.1.", &restored)?;
/// assert_eq!(bias.to_vec1::<f32>()?, [3., 3.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails if [`from_candle`] or [`Transaction::save`] fails.
pub fn save_var_map(txn: &mut Transaction<'_>, prefix: &str, variables: &VarMap) -> stridemap::Result<()> {
    let variables = variables.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut by_name: Vec<_> = variables.iter().collect();
    by_name.sort_unstable_by_key(|(name, _)| *name);
    for (name, variable) in by_name {
        let tensor = from_candle(variable.as_tensor()).map_err(|e| {
            stridemap::Error::new(ErrorKind::InvalidArgument, format!("save variable {name:?}: {e}"))
        })?;
        txn.save(&format!("{prefix}{name}"), &tensor)?;
    }
    Ok(())
}

/// Sets every variable to the tensor with its name, with `prefix` before it. The tensor is converted to the dtype and
/// device of the variable. If a tensor is missing or has a different size, no variable is set.
///
/// # Errors
/// Fails as getting a variable from a [`var_builder`](crate::var_builder) does.
pub fn load_var_map(snapshot: &Snapshot, prefix: &str, variables: &VarMap) -> Result<()> {
    let variables = variables.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Vec::new();
    for (name, variable) in variables.iter() {
        let name = format!("{prefix}{name}");
        let tensor = load(snapshot, &name)?;
        check_size(&tensor, &name, variable.shape())?;
        found.push((name, variable, tensor));
    }
    for (name, variable, tensor) in found {
        variable.set(&convert(&tensor, &name, variable.dtype(), variable.device())?)?;
    }
    Ok(())
}
