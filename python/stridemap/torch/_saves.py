"""Saves of `torch.distributed.checkpoint`, seen from the coordinator: which file each tensor is in, and the commit.

The coordinator holds a transaction while all ranks write into its files. A tensor of 4 MiB or more has a file of its own, and
the others share one. Beside the tensors, a save has these names:

- `distributed/description.json`: the keys of the tensors and of the other values, and their paths in the state dict;
- `distributed/values/` and a key: a value that is not a tensor, as the planner wrote it.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from .. import _errors
from .._arrays import can_save
from .._blocks import BlockFile, check_cover, open_to_write
from .._store import Store
from .._stridemap import Tensor

#: What the names of everything but the tensors begin with.
RESERVED = "distributed/"

#: What the names of values that are not tensors begin with.
VALUES = RESERVED + "values/"

#: The name of the description.
DESCRIPTION = RESERVED + "description.json"

#: The key of a description, by which it is recognized.
_KEY = "stridemap distributed checkpoint"

#: The size from which a tensor has a file of its own, in bytes. It is that of a storage of its own.
_OWN_FILE_BYTES = 4 << 20

#: Where the tensors of a shared file begin: at multiples of this.
_ALIGNMENT = 64


#: Where a value is in a state dict: the keys and positions that lead to it.
Path = tuple[str | int, ...]


@dataclass
class Description:
    """The keys of a save, with the paths of their values in the state dict."""

    tensors: dict[str, Path]
    values: dict[str, Path]


@dataclass
class Whole:
    """A whole tensor, and its chunks of all ranks."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: list[list[range]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Place:
    """Where in a file a whole tensor is, for the ranks that write its shards."""

    path: str
    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Save:
    """A save that ranks write. It ends with `commit` or `abandon`."""

    def __init__(self, place: Store | str | os.PathLike[str], tag: str | None, replace: bool, plans: list[SavePlan]) -> None:
        self.id = secrets.token_hex(8)
        self._files: list[BlockFile] = []
        self._places: dict[str, Place] = {}
        self._items = {item.index for plan in plans for item in plan.items}
        keys = {item.index.fqn for plan in plans for item in plan.items}
        tensors = _planned(item for plan in plans for item in plan.items)
        self._values = keys - tensors.keys()
        self._store, self._owns_store = open_to_write(place), not isinstance(place, Store)
        # What is replaced or removed is decided on what is there now.
        self._store.refresh()
        self._txn = self._store.transaction()
        self._txn.__enter__()
        try:
            if tag is not None:
                self._txn.tag(tag, replace=replace)
            self._check_names(tensors.keys(), replace)
            self._create_files(tensors)
        except BaseException:
            self.abandon()
            raise

    def _check_names(self, keys: Iterable[str], replace: bool) -> None:
        """Refuse to replace tensors that no distributed save has written, unless that is allowed."""
        for key in keys:
            if key.startswith(RESERVED):
                message = f'save "{key}": names that begin with "{RESERVED}" are those of the description; rename the key'
                raise _errors.make("InvalidArgument", message)
        last = described(self._txn)
        own = {DESCRIPTION, *last.tensors} if last else set()
        # The names are asked for one by one, so that commits of other names do not conflict.
        taken = sorted(key for key in {DESCRIPTION, *keys} - own if key in self._txn)
        if taken and not replace:
            message = f'the name "{taken[0]}" exists, and no distributed save has written it'
            advice = "save to another store, or give replace=True to replace it"
            raise _errors.make("NameExists", f"save to {self._store.path}: {message}; {advice}")

    def _create_files(self, tensors: Mapping[str, Whole]) -> None:
        offset, small = 0, []
        for key, tensor in tensors.items():
            if tensor.nbytes >= _OWN_FILE_BYTES:
                self._create_file([key], tensor.nbytes, tensors, [0])
            else:
                small.append((key, offset))
                offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if small:
            self._create_file([key for key, _ in small], offset, tensors, [at for _, at in small])

    def _create_file(self, keys: list[str], nbytes: int, tensors: Mapping[str, Whole], offsets: list[int]) -> None:
        file = BlockFile(self._store, (nbytes,), "uint8")
        self._files.append(file)
        # A name that the store refuses is an error now, before the ranks write.
        whole = next(name for number in itertools.count() if (name := f"{RESERVED}file{number}") not in self._txn)
        file.save(self._txn, whole)
        for key, offset in zip(keys, offsets, strict=True):
            tensor = tensors[key]
            place = self._places[key] = Place(file.path, offset, tensor.nbytes, tensor.dtype, tensor.shape)
            self._txn.save_view(key, _view(self._txn[whole], place))
        del self._txn[whole]

    def places_of(self, plan: SavePlan) -> dict[str, Place]:
        """Return the places of the tensors of which a rank has shards."""
        return {item.index.fqn: self._places[item.index.fqn] for item in plan.items if item.tensor_data is not None}

    def commit(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish what the ranks have written."""
        written = {result.index: result for of_rank in results for result in of_rank}
        if missing := sorted(map(_named, self._items - written.keys())):
            more = f", and {len(missing) - 1} others" if len(missing) > 1 else ""
            message = f"no rank has written {missing[0]}{more}; nothing is saved; save again"
            raise _errors.make("InvalidArgument", f"save to {self._store.path}: {message}")
        txn, last, new = self._txn, described(self._txn), self._description(metadata)
        if last:
            for stale in sorted({*_names(last)} - {*_names(new)}):
                if stale in txn:
                    del txn[stale]
        for index, result in written.items():
            if index.fqn in self._values:
                txn.save(VALUES + index.fqn, np.frombuffer(result.storage_data[1], np.uint8))
        text = json.dumps({_KEY: {"tensors": new.tensors, "values": new.values}}).encode()
        txn.save(DESCRIPTION, np.frombuffer(text, np.uint8))
        txn.commit()
        self._end()

    def _description(self, metadata: Metadata) -> Description:
        flattened = metadata.planner_data or {}
        found = Description({}, {})
        for key in metadata.state_dict_metadata:
            (found.values if key in self._values else found.tensors)[key] = flattened.get(key, (key,))
        return found

    def abandon(self) -> None:
        """Discard the save. The store is as it was."""
        if not self._txn._has_ended:
            self._txn.abort()
        self._end()

    def _end(self) -> None:
        for file in self._files:
            file.remove()
        if self._owns_store:
            self._store.close()


def _planned(items: Iterable[WriteItem]) -> dict[str, Whole]:
    """Return the tensors of a save by their keys. Each element must be in one chunk."""
    tensors: dict[str, Whole] = {}
    for item in items:
        if (data := item.tensor_data) is None:
            continue
        key, dtype, shape = item.index.fqn, data.properties.dtype, tuple(data.size)
        name = str(dtype).removeprefix("torch.")
        if not can_save(name):
            message = f"elements of dtype {name} cannot be saved; convert them, or save view(torch.uint8)"
            raise _errors.DTypeError(f'save "{key}": {message}')
        tensor = tensors.setdefault(key, Whole(dtype, shape))
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            ours, theirs = f"{tensor.dtype} of {list(tensor.shape)}", f"{dtype} of {list(shape)}"
            message = f"ranks have different tensors, {ours} and {theirs}; give all the same"
            raise _errors.make("DTypeMismatch", f'save "{key}": {message}')
        chunk = data.chunk
        tensor.chunks.append([range(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True)])
    for key, tensor in tensors.items():
        try:
            # Chunks without elements are those of ranks that have nothing of the tensor.
            check_cover([chunk for chunk in tensor.chunks if all(chunk)], tensor.shape)
        except _errors.ArgumentError as error:
            message = str(error).removeprefix("to_store: ").replace("block", "shard")
            raise _errors.make(error.kind, f'save "{key}": {message}') from None
    return tensors


def _view(whole: Tensor, place: Place) -> Tensor:
    part = whole[place.offset : place.offset + place.nbytes]
    return part.view_dtype(str(place.dtype).removeprefix("torch.")).view(list(place.shape))


def _named(index: MetadataIndex) -> str:
    return f'"{index.fqn}"' if index.offset is None else f'the shard of "{index.fqn}" at {list(index.offset)}'


def _names(description: Description) -> Iterator[str]:
    """Yield the names of what a save has in the store."""
    yield from description.tensors
    yield from (VALUES + key for key in description.values)


def described(names: Mapping[str, Tensor]) -> Description | None:
    """Return the description of the distributed save among some names, or `None` if there is none."""
    if DESCRIPTION not in names:
        return None
    tensor = names[DESCRIPTION]
    if tensor._dtype_name != "uint8" or tensor.ndim != 1:
        return None
    try:
        found = json.loads(tensor.copy().numpy().tobytes())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {_KEY}:
        return None
    try:
        tensors, values = ({key: tuple(path) for key, path in found[_KEY][part].items()} for part in ("tensors", "values"))
    except (AttributeError, KeyError, TypeError) as error:
        message = f"{DESCRIPTION} is not as stridemap writes it; remove it if you trust the tensors, and load them by their names"
        raise _errors.make("Corrupt", message) from error
    return Description(tensors, values)
