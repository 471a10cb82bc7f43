"""Datasets of xarray in stores: each variable is a tensor, whose dimensions have names.

`xarray.open_dataset(path, engine="stridemap")` opens a dataset that `to_store` saved, and any other store. Variables are
read when they are needed: they are read-only views of the mapped files, and `chunks` makes them arrays of Dask. The
further arguments of this engine are:

- `group`: the variables are the tensors whose names begin with the group and a `/`. Without a group, these are the
  tensors that have no `/` in their names.
- `at` and `mapped`: see `stridemap.open`. The path may be a URL to which a store was pushed.

Attributes are JSON. A text that is not JSON is an attribute as it is. Times and texts are encoded as in netCDF files (CF
conventions), by xarray. A dimension without a name in the store is named after its variable: `x_dim_0`.

>>> import tempfile, numpy as np, xarray
>>> path = tempfile.mkdtemp() + "/weather.smap"
>>> days = np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")
>>> dataset = xarray.Dataset({"rain": ("day", [0.5, 2.0], {"unit": "mm"})}, {"day": days})
>>> to_store(dataset, path)
>>> opened = xarray.open_dataset(path, engine="stridemap")
>>> opened.identical(dataset), opened["rain"].sel(day="2026-01-02").item()
(True, 2.0)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.common import WritableCFDataStore
from xarray.backends.store import StoreBackendEntrypoint
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder
from xarray.conventions import encode_dataset_coordinates
from xarray.core import indexing

from . import _errors
from ._arrays import numpy_dtype
from ._blocks import BlockFile, open_to_write
from ._history import At
from ._store import Store, Transaction, only_store, open
from ._stridemap import Tensor

__all__ = ["Backend", "to_store"]

#: Attributes of tensors that are not attributes of variables. The names of the dimensions, if one is not an identifier, and
#: "S1" if the bytes are characters of texts.
_DIMENSIONS, _DTYPE = "_ARRAY_DIMENSIONS", "_ARRAY_DTYPE"

Place = Store | str | os.PathLike[str]


def to_store(dataset: xarray.Dataset, place: Place, group: str = "", *, replace: bool = False) -> None:
    """Save a dataset in one commit: its variables as tensors, and its attributes as those of the store or the group.

    A store is created if there is none at the path. If the group has tensors, this is refused, unless `replace` is true:
    then they are removed. Arrays of Dask are computed block by block, and never whole in memory.

    >>> import tempfile, xarray
    >>> path = tempfile.mkdtemp() + "/x.smap"
    >>> to_store(xarray.Dataset({"x": (("row", "column"), [[1, 2], [3, 4]])}), path, "first")
    >>> open(path)["first/x"].names
    ['row', 'column']
    """
    if isinstance(dataset, xarray.DataArray):
        raise TypeError("to_store: a DataArray is one variable; save array.to_dataset(name=...)")
    prefix = _prefix(group)
    encoded, attributes = _encoded(dataset)
    store = open_to_write(place)
    files: dict[str, BlockFile] = {}
    try:
        _compute(store, encoded, files)
        with store.transaction(exclusive=True) as txn:
            _clear(txn, prefix, replace)
            for name, variable in encoded.items():
                _save(txn, prefix + name, variable, files.get(name))
            _set_attributes(txn, prefix, attributes)
    finally:
        for file in files.values():
            file.remove()
        if store is not place:
            store.close()


def _prefix(group: str) -> str:
    return f"{group.strip('/')}/" if group.strip("/") else ""


def _name(name: object) -> str:
    if not isinstance(name, str) or "/" in name or not name:
        raise _errors.make("InvalidArgument", f"to_store: the name of a variable is a text without '/', and not {name!r}")
    return name


class _Encoder(WritableCFDataStore):
    """Encodes variables as xarray does for netCDF files, except that a store has bools."""

    def encode_variable(self, variable: xarray.Variable, name: Any = None) -> xarray.Variable:
        if variable.attrs.get("dtype") == "bool" and variable.dtype == np.dtype(np.int8):
            attributes = {key: value for key, value in variable.attrs.items() if key != "dtype"}
            variable = xarray.Variable(variable.dims, variable.data.astype(np.bool_), attributes)
        coders: list[Any] = [EncodedStringCoder(allows_unicode=False), CharacterArrayCoder()]  # type: ignore[no-untyped-call]
        for coder in coders:
            variable = coder.encode(variable, name=name)
        return variable


def _encoded(dataset: xarray.Dataset) -> tuple[dict[str, xarray.Variable], Mapping[Any, Any]]:
    """Return variables with dtypes and attributes that can be saved, and the attributes of the dataset."""
    variables, attributes = encode_dataset_coordinates(dataset)
    variables = {_name(name): variable.copy(deep=False) for name, variable in variables.items()}
    for variable in variables.values():
        if variable.dtype.kind == "f":
            # NaN needs no attribute that says so.
            variable.encoding = {"_FillValue": None, **variable.encoding}
    encoder: Any = _Encoder()
    encoded, attributes = encoder.encode(variables, attributes)
    return dict(encoded), attributes


def _compute(store: Store, variables: Mapping[str, xarray.Variable], files: dict[str, BlockFile]) -> None:
    """Write arrays of Dask to files, in parallel."""
    arrays = {name: variable.data for name, variable in variables.items() if hasattr(variable.data, "__dask_graph__")}
    if not arrays:
        return
    import dask.array as da

    for name, array in arrays.items():
        is_text = array.dtype == np.dtype("S1")
        arrays[name] = array.view(np.uint8) if is_text else array
        files[name] = BlockFile(store, array.shape, np.uint8 if is_text else array.dtype)
    targets: Any = [files[name] for name in arrays]
    da.store(list(arrays.values()), targets, lock=False)


def _clear(txn: Transaction, prefix: str, replace: bool) -> None:
    found = [name for name in txn if _is_in(name, prefix)]
    if found and not replace:
        where = f"the group {prefix[:-1]!r}" if prefix else "the store"
        message = f"to_store: {where} has {found[0]!r} already; give replace=True to remove its {len(found)} tensors"
        raise _errors.make("NameExists", message)
    for name in found:
        txn.attrs_of(name).clear()
        del txn[name]
    if replace:
        txn.attrs_of(prefix).clear()


def _is_in(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and "/" not in name[len(prefix) :]


def _save(txn: Transaction, name: str, variable: xarray.Variable, file: BlockFile | None) -> None:
    attributes = dict(variable.attrs)
    if file is not None:
        file.save(txn, name)
    else:
        values = variable.values
        txn.save(name, values.view(np.uint8) if values.dtype == np.dtype("S1") else values)
    if variable.dtype == np.dtype("S1"):
        attributes[_DTYPE] = "S1"
    dims = [str(dim) for dim in variable.dims]
    named = [dim if dim.isascii() and dim.isidentifier() else None for dim in dims]
    if any(named):
        txn.save_view(name, txn[name].refine_names(*named))
    if None in named:
        attributes[_DIMENSIONS] = dims
    _set_attributes(txn, name, attributes)


def _set_attributes(txn: Transaction, scope: str, attributes: Mapping[Any, Any]) -> None:
    texts = {}
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise TypeError(f"to_store: the name of an attribute of {scope!r} is a str, not {type(key).__name__}: {key!r}")
        try:
            texts[key] = json.dumps(value, default=_plain, ensure_ascii=False)
        except TypeError as error:
            raise TypeError(f"to_store: the attribute {key!r} of {scope!r} cannot be saved: {error}") from None
    txn.attrs_of(scope).update(texts)


def _plain(value: Any) -> Any:
    """Return a value of NumPy as one of Python, for JSON."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        plain = value.tolist()
        return plain.decode() if isinstance(plain, bytes) else plain
    raise TypeError(f"JSON has numbers, texts, lists and dicts of them, and no {type(value).__name__}")


def _value(value: Any) -> Any:
    """Return the value of an attribute. What another program saved need not be a text, and a text need not be JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


class _Array(BackendArray):
    """A tensor that xarray reads in part. Pickled, it is a handle."""

    def __init__(self, tensor: Tensor, is_text: bool) -> None:
        self.tensor, self.shape = tensor, tensor.shape
        self.dtype = np.dtype("S1") if is_text else numpy_dtype(str(tensor.dtype))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray[Any, Any]:
        part: Tensor = self.tensor[key]
        array = part.numpy()
        return array if array.dtype == self.dtype else array.view(self.dtype)


class _DataStore(AbstractDataStore):
    """The variables of a group, for xarray to decode."""

    def __init__(self, store: Store, group: str, is_own: bool) -> None:
        self._store, self._prefix, self._is_own = store, _prefix(group), is_own
        self._snapshot = store.snapshot()

    def get_variables(self) -> dict[str, xarray.Variable]:
        start = len(self._prefix)
        names = [name for name in self._snapshot if _is_in(name, self._prefix)]
        return {name[start:]: self._variable(name, name[start:]) for name in names}

    def _variable(self, name: str, own_name: str) -> xarray.Variable:
        tensor = self._snapshot[name]
        attributes = {key: _value(text) for key, text in self._snapshot.attrs_of(name).items()}
        is_text = attributes.pop(_DTYPE, None) == "S1" and tensor.itemsize == 1
        known = attributes.pop(_DIMENSIONS, None)
        if not (isinstance(known, list) and len(known) == tensor.ndim):
            known = [f"{own_name}_dim_{axis}" for axis in range(tensor.ndim)]
        dims = [str(one if own is None else own) for own, one in zip(tensor.names, known, strict=True)]
        return xarray.Variable(dims, indexing.LazilyIndexedArray(_Array(tensor, is_text)), attributes)

    def get_attrs(self) -> dict[str, Any]:
        return {key: _value(text) for key, text in self._snapshot.attrs_of(self._prefix).items()}

    def get_encoding(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self._is_own:
            self._store.close()


class Backend(BackendEntrypoint):
    """The engine "stridemap" of `xarray.open_dataset`: see the module.

    >>> import xarray
    >>> xarray.backends.list_engines()["stridemap"]
    <Backend>
      Open stores of stridemap
    """

    description = "Open stores of stridemap"

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: bool = True,
        decode_times: bool = True,
        concat_characters: bool = True,
        decode_coords: bool = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | None = None,
        decode_timedelta: bool | None = None,
        group: str = "",
        at: At | None = None,
        mapped: bool = True,
    ) -> xarray.Dataset:
        """Open a dataset. `xarray.open_dataset` calls this.

        >>> import tempfile, stridemap, xarray
        >>> with stridemap.open(tempfile.mkdtemp() + "/x.smap", "x") as store:
        ...     store["x"] = [1, 2, 3]
        ...     print(dict(Backend().open_dataset(store.path).sizes))
        {'x_dim_0': 3}
        """
        is_own = not isinstance(filename_or_obj, Store)
        opened = open(filename_or_obj, at=at, mapped=mapped) if is_own else filename_or_obj
        store = only_store(opened, "open_dataset")
        found = _DataStore(store, group, is_own)
        try:
            if found._prefix and not store.group(found._prefix) and not store.attrs_of(found._prefix):
                raise _errors.make("NameNotFound", f"open_dataset: {store.path} has no group {group!r}")
            return StoreBackendEntrypoint().open_dataset(
                found,
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                decode_coords=decode_coords,
                drop_variables=drop_variables,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )
        except BaseException:
            found.close()
            raise

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether the path ends with `.smap`, so that `xarray.open_dataset` needs no `engine`.

        >>> Backend().guess_can_open("s3://bucket/x.smap"), Backend().guess_can_open("x.nc")
        (True, False)
        """
        if isinstance(filename_or_obj, str | os.PathLike):
            return os.fspath(filename_or_obj).rstrip("/").endswith(".smap")
        return isinstance(filename_or_obj, Store)
