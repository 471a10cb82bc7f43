use crate::error::{Error, Result};

/// Returns the error for a name that is not among `tensors`.
pub(crate) fn not_found<'a, I, T>(action: &str, name: &str, tensors: impl Fn(&'a str) -> Result<I>) -> Error
where
    I: Iterator<Item = Result<(String, T)>>,
{
    let names = tensors("").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.0));
    Error::name_not_found(action, name, names)
}
