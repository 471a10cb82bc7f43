use std::sync::PoisonError;

use candle_core::{Error, Result};
use candle_nn::VarMap;
use stridemap::{Snapshot, Transaction};

use crate::from_candle;
use crate::var_builder::{check_size, converted, load};

/// Saves every variable under its name, with `prefix` before it, by ascending name. They become visible when the
/// transaction commits.
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
/// let mut txn = store.begin()?;
/// save_var_map(&mut txn, "epoch.1.", &variables)?;
/// txn.commit()?;
///
/// let restored = VarMap::new();
/// let bias = restored.get(2, "bias", Init::Const(0.), DType::F32, &Device::Cpu)?;
/// load_var_map(&store.snapshot(), "epoch.1.", &restored)?;
/// assert_eq!(bias.to_vec1::<f32>()?, [3., 3.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`from_candle`] and of [`Transaction::save`].
pub fn save_var_map(txn: &mut Transaction<'_>, prefix: &str, variables: &VarMap) -> Result<()> {
    let variables = variables.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut by_name: Vec<_> = variables.iter().collect();
    by_name.sort_unstable_by_key(|(name, _)| *name);
    for (name, variable) in by_name {
        let tensor =
            from_candle(variable.as_tensor()).map_err(|e| e.context(format!("the variable {name:?}")))?;
        txn.save(&format!("{prefix}{name}"), &tensor).map_err(Error::wrap)?;
    }
    Ok(())
}

/// Sets every variable to the tensor of its name, with `prefix` before it, converted to its dtype, on its device. If
/// one is missing or has another size, none is set.
///
/// # Errors
/// Those of a [`var_builder`](crate::var_builder).
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
        variable.set(&converted(&tensor, &name, variable.dtype(), variable.device())?)?;
    }
    Ok(())
}
