"""Tensors of a store as tensors of PyTorch, which map the files.

PyTorch has no read-only tensors, so the mappings are private: what is written to one changes this process's copy of a
page, and never the file. A tensor gets a storage of PyTorch with its own bytes and no others, cut out of the mapping.
`torch.load(mmap=True)` does the same. A storage of the whole file would be saved, sent and copied with each tensor, and
PyTorch would take it for shared memory.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from . import _errors
from ._arrays import open_storage
from ._stridemap import Tensor

#: PyTorch's storages: of a whole file, by device, inode, number of bytes and process, and of the bytes of a tensor, by
#: these and where they begin and end.
Storages = MutableMapping[tuple[int, ...], "torch.UntypedStorage"]

#: The storages that are in use. Tensors that are converted one by one share them.
in_use: Storages = weakref.WeakValueDictionary()

#: The size of a huge page on most processors, in bytes.
_HUGE_PAGE_BYTES = 2 << 20

#: `madvise` of the C library, and what asks it for huge pages.
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MADV_HUGEPAGE = 14

#: PyTorch parses a name of a device each time, and can have another device as its default.
_CPU = torch.device("cpu")


def overlapping(ranges: Sequence[tuple[Hashable, int, int]]) -> list[list[int]]:
    """Return the indices of ranges in groups: the ranges of one place that overlap, directly or through others.

    >>> overlapping([("a", 0, 4), ("a", 8, 9), ("b", 0, 4), ("a", 6, 10), ("a", 4, 6)])
    [[0], [1, 3], [2], [4]]
    """
    groups: list[list[int]] = []
    last, last_end = None, 0
    places = {place: number for number, place in enumerate(dict.fromkeys(place for place, _, _ in ranges))}
    order = sorted((places[place], start, end, index) for index, (place, start, end) in enumerate(ranges))
    for place, start, end, index in order:
        if groups and place == last and start < last_end:
            groups[-1].append(index)
            last_end = max(last_end, end)
        else:
            groups.append([index])
            last, last_end = place, end
    for group in groups:
        group.sort()
    return sorted(groups)


def byte_range(offset: int, shape: Sequence[int], stride: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return where the first element begins and the last one ends, in bytes. There are elements, in rising order."""
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return offset * itemsize, (offset + last + 1) * itemsize


def to_torch(
    tensors: Sequence[Tensor], storages: Storages, ids: Sequence[int | None] | None = None
) -> list[torch.Tensor]:
    """Return tensors of one store as tensors of PyTorch, without a copy if possible. Those that overlap share a storage.

    `ids` are the storages of tensors of a file, which have none in a store.
    """
    made: dict[int, torch.Tensor] = {}
    spans: dict[int, tuple[Hashable, int, int]] = {}
    for index, (tensor, other_id) in enumerate(zip(tensors, ids or [None] * len(tensors), strict=True)):
        storage_id = other_id if tensor.storage_id is None else tensor.storage_id
        if tensor.size == 0:
            made[index] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=_dtype(tensor), device="cpu")
        elif storage_id is None or _has_negative_stride(tensor):
            made[index] = _copied(tensor)
        else:
            spans[index] = (storage_id, *_span(tensor))
    indices = list(spans)
    for group in overlapping(list(spans.values())):
        members = [indices[position] for position in group]
        made |= zip(members, _group([tensors[index] for index in members], storages), strict=True)
    return [made[index] for index in range(len(tensors))]


def one(tensor: Tensor) -> torch.Tensor:
    """Return a tensor as one of PyTorch, as `to_torch` does, but faster. It shares storages that are in use."""
    found = tensor._file_range
    if found is not None and (storage := _part(tensor, found, in_use)) is not None:
        empty = torch.empty(0, dtype=_dtype(tensor), device=_CPU)
        return empty.set_(storage, 0, tensor.shape, tensor.stride())
    return to_torch([tensor], in_use)[0]


def moved(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors on a device. Those that share a storage share one there, too.

    >>> x = torch.arange(6.0)
    >>> [a, b] = moved([x[:2], x[1:]], torch.device("meta"))
    >>> a.device, b.storage_offset(), a.untyped_storage()._cdata == b.untyped_storage()._cdata
    (device(type='meta'), 1, True)
    """
    if device.type == "cpu":
        return list(tensors)
    storages: dict[int, torch.UntypedStorage] = {}
    result = []
    for tensor in tensors:
        whole = tensor.untyped_storage()
        if (storage := storages.get(whole._cdata)) is None:
            flat = torch.empty(0, dtype=torch.uint8).set_(whole)
            storage = storages[whole._cdata] = flat.to(device).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        result.append(empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return result


def can_map(tensor: Tensor) -> bool:
    """Return whether `to_torch` maps the tensor, or has nothing to copy."""
    if tensor.size == 0:
        return True
    found = tensor._file_range
    return found is not None and _part(tensor, found, {}) is not None


def _group(tensors: list[Tensor], storages: Storages) -> list[torch.Tensor]:
    """Return tensors of one storage that overlap as tensors of PyTorch that share one."""
    starts, ends = zip(*map(_span, tensors), strict=True)
    # Offsets in the storage of PyTorch are in elements. The size of each dtype is a power of two.
    start, end = min(starts), max(ends)
    start -= start % max(tensor.itemsize for tensor in tensors)
    storage = _mapped(tensors, start, end, storages)
    if storage is None:
        if len(tensors) == 1:
            return [_copied(tensors[0])]
        narrow = min(tensors, key=lambda tensor: tensor.itemsize)
        flat = narrow.as_strided([(end - start) // narrow.itemsize], [1], start // narrow.itemsize)
        storage = _copied(flat).untyped_storage()

    def of_storage(tensor: Tensor) -> torch.Tensor:
        empty = torch.empty(0, dtype=_dtype(tensor), device="cpu")
        offset = tensor.storage_offset - start // tensor.itemsize
        return empty.set_(storage, offset, tensor.shape, tensor.stride())

    return [of_storage(tensor) for tensor in tensors]


def _span(tensor: Tensor) -> tuple[int, int]:
    return byte_range(tensor.storage_offset, tensor.shape, tensor.stride(), tensor.itemsize)


def _has_negative_stride(tensor: Tensor) -> bool:
    """Return whether a stride is negative, which PyTorch does not support."""
    return min(tensor.stride(), default=0) < 0


def _mapped(tensors: Sequence[Tensor], start: int, end: int, storages: Storages) -> torch.UntypedStorage | None:
    """Return bytes of the storage of these tensors as a storage of PyTorch, or `None` if PyTorch cannot map its file."""
    first = tensors[0]
    if first._file_id is None or any(tensor._lend() is None for tensor in tensors):
        return None
    return _part(first, (*first._file_id, first.storage_nbytes, start, end), storages)


def _part(tensor: Tensor, found: tuple[int, int, int, int, int], storages: Storages) -> torch.UntypedStorage | None:
    """Return bytes of the file of a tensor, as `Tensor._file_range` has them, as a storage of PyTorch."""
    device, inode, storage_nbytes, start, end = found
    key = (device, inode, storage_nbytes, os.getpid())
    whole = storages.get(key)
    if whole is None:
        file = open_storage(tensor, os.O_RDONLY)
        if file is None:
            return None
        try:
            name = f"/proc/self/fd/{file}"
            from_file = torch.UntypedStorage.from_file
            opened = cast("torch.UntypedStorage", from_file(name, shared=False, nbytes=storage_nbytes))
        finally:
            os.close(file)
        _prefer_huge_pages(opened)
        # Another thread may have mapped it meanwhile.
        whole = storages.setdefault(key, opened)
    part = storages.get((*key, start, end))
    # `share_memory_` moves a storage out of the mapping.
    if part is None or (part.data_ptr(), part.nbytes()) != (whole.data_ptr() + start, end - start):
        part = storages[(*key, start, end)] = cast("torch.UntypedStorage", whole[start:end])
    return part


def _prefer_huge_pages(mapped: torch.UntypedStorage) -> None:
    """Ask the kernel to read a large file in huge pages, as the library does for its own mappings."""
    if mapped.nbytes() >= _HUGE_PAGE_BYTES:
        # A kernel without huge pages refuses.
        _madvise(mapped.data_ptr(), mapped.nbytes(), _MADV_HUGEPAGE)


def _copied(tensor: Tensor) -> torch.Tensor:
    """Return a copy of the elements. Copied are tensors in memory or not mapped, on a mutable or live storage or an
    external file, or with a negative stride."""
    whole = tensor.copy().view(-1)
    buffer = np.array(np.asarray(whole.view_dtype("uint8")._lend()))
    return torch.from_numpy(buffer).view(_dtype(tensor)).view(tensor.shape)


def _dtype(tensor: Tensor) -> torch.dtype:
    dtype = getattr(torch, tensor._dtype_name, None)
    if not isinstance(dtype, torch.dtype):
        raise _errors.DTypeError(f"PyTorch has no dtype {tensor._dtype_name}: use view_dtype('uint8')")
    return dtype
