"""Imports, adopts and exports files in other formats."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from . import _errors, _stridemap
from ._arrays import elements_of
from ._files import File
from ._groups import Group
from ._places import check_first, ended
from ._snapshots import Names, SnapshotView
from ._store import Store, Transaction, open
from ._stridemap import Tensor

#: What takes tensors: an open store, a transaction, or the path of a store, which is created if there is none.
Target = Store | Transaction | str | os.PathLike[str]

#: What has tensors: a store, a snapshot, an open file, any other mapping of names, or the path of a store or a file.
Source = Store | SnapshotView | File | Mapping[str, Any] | str | os.PathLike[str]


def import_file(
    file: str | os.PathLike[str],
    target: Target,
    *,
    prefix: str = "",
    replace: bool = False,
    skip_unreadable: bool = False,
    untyped: Any = None,
) -> None:
    """Copy the tensors of a file into a store, in one commit, each under its name after `prefix`.

    The file is a safetensors file, the index of a sharded model, a `.npy` or `.npz` of NumPy, a `.gguf` of llama.cpp, or a
    `.pt` of PyTorch, which is read as data: no code in it is run. The format is recognized from the contents. Tensors that
    share memory in a checkpoint share it in the store. Text, such as the metadata of a safetensors file, becomes attributes of the prefix.

    `target` is an open store, a transaction, or the path of a store, which is created if there is none. If the prefix
    does not end with "." or "/", a "." follows it. An existing tensor, or an attribute with another value, is replaced
    only if `replace` is true. What stridemap cannot hold, such as an array of objects, is left out if `skip_unreadable`
    is true. Otherwise, it is an error, and nothing is changed. `untyped` is the dtype of elements that NumPy wrote as
    bytes without a type, such as "float8_e4m3fn".

    >>> import tempfile, numpy, stridemap
    >>> folder = tempfile.mkdtemp()
    >>> numpy.save(folder + "/points.npy", numpy.arange(6).reshape(2, 3))
    >>> import_file(folder + "/points.npy", folder + "/x.smap", prefix="imported")
    >>> with stridemap.open(folder + "/x.smap") as store:
    ...     print(list(store), store["imported.points"].shape)
    ['imported.points'] (2, 3)
    """
    check_first("import_file(file, target)", "the path of the file", file, is_right=isinstance(file, str | os.PathLike))
    opened = _stridemap.open_file(os.path.abspath(os.fsdecode(file)), skip_unreadable, untyped)
    _add(opened, f"import {os.fsdecode(file)}", target, ended(prefix), replace, is_adopted=False)


def adopt(
    file: str | os.PathLike[str],
    target: Target,
    *,
    prefix: str = "",
    replace: bool = False,
    skip_unreadable: bool = False,
    untyped: Any = None,
) -> None:
    """Save headers of the tensors of a file, whose elements stay in the file. The arguments are those of `import_file`.

    No element is read, so this takes milliseconds for any size. The file must not change afterwards: if it does, reading
    raises a `StateError`. Open the store with `external="beside"` to read a file that is in the directory of the store or
    below it, and with `external="anywhere"` otherwise. An open store that is the target must be opened so, too.
    Compressed arrays and big-endian ones cannot be adopted.

    >>> import tempfile, numpy, stridemap
    >>> folder = tempfile.mkdtemp()
    >>> numpy.save(folder + "/points.npy", numpy.arange(6).reshape(2, 3))
    >>> adopt(folder + "/points.npy", folder + "/x.smap")
    >>> with stridemap.open(folder + "/x.smap", external="beside") as store:
    ...     print(store["points"].numpy()[1])
    [3 4 5]
    """
    check_first("adopt(file, target)", "the path of the file", file, is_right=isinstance(file, str | os.PathLike))
    opened = _stridemap.open_file(os.path.abspath(os.fsdecode(file)), skip_unreadable, untyped)
    _add(opened, f"adopt {os.fsdecode(file)}", target, ended(prefix), replace, is_adopted=True)


def _add(
    file: _stridemap.FileHandle, request: str, target: Target, prefix: str, replace: bool, is_adopted: bool
) -> None:
    with _changing(target) as txn:
        txn._handle.on_existing(replace)
        if is_adopted:
            txn._handle.adopt_file(file, prefix)
        else:
            txn._handle.import_file(file, prefix)
        _add_attributes(txn, request, file.attributes(), prefix, replace)


@contextmanager
def _changing(target: Target) -> Iterator[Transaction]:
    if isinstance(target, Store | Transaction):
        with target._change() as txn:
            yield txn
    else:
        # The caller named the file that is adopted.
        with open(target, "a", external="anywhere") as store, store.transaction() as txn:
            yield txn


def _add_attributes(txn: Transaction, request: str, new: Mapping[str, str], prefix: str, replace: bool) -> None:
    # Texts as they are in the store, so that what is JSON there is JSON again after an export.
    current = txn._handle.attributes(prefix) if new else {}
    differing = sorted(key for key in new.keys() & current.keys() if new[key] != current[key])
    if differing and not replace:
        owner = f'"{prefix}"' if prefix else "the store"
        message = f'{request}: {owner} has another value of the attribute "{differing[0]}"'
        raise _errors.make("NameExists", f"{message}; choose another prefix, or give replace=True")
    for key, text in new.items():
        txn._handle.set_attribute(prefix, key, text)


def export(
    source: Source,
    file: str | os.PathLike[str],
    *,
    names: str | Iterable[str] | None = None,
    prefix: str = "",
    order: Literal["C", "F"] = "C",
    compress: bool = False,
    max_shard_bytes: int | None = None,
    replace: bool = False,
) -> None:
    """Write tensors to a file: `.safetensors`, `.gguf`, `.npy`, `.npz`, or `.smap` for a copy of a store.

    `source` is a store, a snapshot, an open file, any other mapping of names to tensors or arrays, or the path of a store
    or a file. All its tensors are written, or those of `names`, or those whose names begin with `prefix`, without it. If
    the prefix does not end with "." or "/", a "." follows it. Attributes of the store, or of the prefix, become the metadata of a
    safetensors or GGUF file; a `.npy` file has one tensor. Elements are written in the order `order`, "C" or "F", which is
    for `.npy` and `.npz`. `compress` is for `.npz`. With `max_shard_bytes`, a safetensors model is split into files of at most
    so many bytes of elements, and `<file>.index.json` names them.

    The file appears under its name when it is complete and synced. An existing file is replaced only if `replace` is true,
    and not if it is a file that the store of the tensors uses in place: see `adopt`.

    >>> import tempfile, numpy, stridemap
    >>> folder = tempfile.mkdtemp()
    >>> with stridemap.open(folder + "/x.smap", "x") as store:
    ...     store["a"] = numpy.arange(6).reshape(2, 3)
    ...     store.save_view("a_t", store["a"].T)
    ...     export(store, folder + "/x.npz", names="a_t")
    >>> numpy.load(folder + "/x.npz")["a_t"][0]
    array([0, 3])
    """
    is_path = isinstance(source, str | os.PathLike) and not isinstance(file, str | os.PathLike)
    check_first("export(source, file)", "the store or the dict", source, is_right=not is_path)
    if order not in ("C", "F"):
        raise ValueError(f"order must be 'C' or 'F', and is {order!r}")
    path, prefix, chosen = os.fsdecode(file), ended(prefix), [names] if isinstance(names, str) else names
    extension = os.path.splitext(path)[1]
    unused = {
        "order": order != "C" and extension not in (".npy", ".npz"),
        "compress": compress and extension != ".npz",
        "max_shard_bytes": max_shard_bytes is not None and extension != ".safetensors",
        "names": bool(prefix) and chosen is not None,
        "prefix": bool(prefix) and extension == ".smap",
        "replace": replace and extension == ".smap",
    }
    for argument in (argument for argument, is_unused in unused.items() if is_unused):
        other = " with a prefix" if argument == "names" else f" to a {extension} file"
        raise _errors.make("InvalidArgument", f"export {path}: {argument} has no meaning{other}; leave it out")
    if isinstance(source, str | os.PathLike):
        with open(source) as opened:
            return export(
                opened, file, names=chosen, prefix=prefix, order=order, compress=compress,
                max_shard_bytes=max_shard_bytes, replace=replace,
            )  # fmt: skip
    if isinstance(source, Store):
        source = source.snapshot()
    if extension == ".smap":
        if not isinstance(source, SnapshotView):
            raise _errors.make("InvalidArgument", f"export {path}: only a store is copied to a store; see import_file")
        return source._handle.copy_to(path, None if chosen is None else list(chosen))
    wanted = [name for name in source if name.startswith(prefix)] if chosen is None else list(chosen)
    tensors = [(name.removeprefix(prefix), _tensor(name, source[name])) for name in wanted]
    if replace:
        _check_not_in_use(source, [tensor for _, tensor in tensors], path)
    match extension:
        case ".safetensors":
            metadata = _metadata(source, prefix)
            _stridemap.write_safetensors(path, tensors, metadata, max_shard_bytes, replace)
        case ".gguf":
            types = _types(source, wanted, prefix)
            _stridemap.write_gguf(path, tensors, _metadata(source, prefix), types, replace)
        case ".npy":
            if len(tensors) != 1:
                message = f"export {path}: a .npy file has one tensor, not {len(tensors)}"
                raise _errors.make("InvalidArgument", f"{message}; give the name of one, or write an .npz file")
            _stridemap.write_npy(path, tensors[0][1], order == "F", replace)
        case ".npz":
            for name, written in _stridemap.write_npz(path, tensors, order == "F", compress, replace):
                # A name of a member is a path for programs that unpack the file.
                warnings.warn(f'"{name}" is named "{written}" in {path}: as a path, it could lead anywhere', stacklevel=2)
        case _:
            extensions = ".safetensors, .gguf, .npy, .npz, or .smap for a copy of a store"
            advice = "; use torch.save" if extension in (".pt", ".pth") else ""
            message = f"export {path}: the extension selects the format, and must be {extensions}{advice}"
            raise _errors.make("InvalidArgument", message)


def _check_not_in_use(source: Mapping[str, Any], tensors: list[Tensor], path: str) -> None:
    """Refuse to replace a file whose bytes are those of tensors of a store. Its shards have its name and a number."""
    stem, extension = os.path.splitext(path)
    targets = [path, *glob.glob(f"{glob.escape(stem)}-*-of-*{glob.escape(extension)}")]
    existing = {_file_id(target): target for target in targets if os.path.exists(target)}
    if not existing:
        return
    # Tensors of a dict can be of any store.
    used = {tensor._file_id: tensor._origin[0] for tensor in tensors if tensor._origin is not None}
    while isinstance(source, Group):
        source = source._owner
    if isinstance(source, Transaction):
        # What it adopted is in no store yet.
        used |= {tensor._file_id: source._store.path for tensor in tensors}
        source = source._store
    source = source.snapshot() if isinstance(source, Store) else source
    if isinstance(source, SnapshotView):
        # Also files of names that are not exported.
        files = filter(os.path.exists, source._handle.files())
        used |= {_file_id(file): source._handle._origin[0] for file in files}
    for file_id in existing.keys() & used.keys():
        message = f"export {path}: {used[file_id]} has tensors whose elements are in {existing[file_id]}"
        raise _errors.make("InvalidArgument", f"{message}; choose another file")


def _file_id(path: str | os.PathLike[str]) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _metadata(source: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return the attributes as they are in the store: a text, or JSON after a mark."""
    return dict(source._handle.attributes(prefix)) if isinstance(source, Names) else {}


def _types(source: Mapping[str, Any], names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the types of tensors that their attributes name, such as "Q4_K", by their names in the file."""
    if not isinstance(source, Names):
        return {}
    found = {name.removeprefix(prefix): source._handle.attributes(name).get("gguf.type") for name in names}
    return {name: text for name, text in found.items() if text is not None}


def _tensor(name: str, value: Any) -> Tensor:
    """Return a tensor, in memory if the value is not one of a store or a file."""
    return value if isinstance(value, Tensor) else Tensor._of_elements(elements_of(value, f'export "{name}"'))


def to_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    inner = [(name, _tensor(name, value)) for name, value in tensors.items()]
    return _stridemap.safetensors_bytes(inner, dict(metadata or {}))


def of_bytes(data: bytes) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a file."""
    handle = _stridemap.open_bytes(data)
    return {name: handle.load(name) for name in handle.names()}
