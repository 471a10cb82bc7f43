"""Shards of tensors in the files of a save, and in tensors that are loaded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from types import TracebackType

import torch
from torch.distributed.checkpoint.planner import WriteItem

from .. import _errors, _torch_storages, _torch_tensors
from .._arrays import open_storage
from .._blocks import write_at
from .._stridemap import Tensor
from ._saves import Place


class ShardFiles:
    """The files of a save, opened by a rank that writes shards. The end of the `with` block closes them."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._opened: dict[str, tuple[int, torch.Tensor]] = {}

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        opened, self._opened = self._opened, {}
        # On a network file system, other machines see what has been written when the file is closed.
        for file, _ in opened.values():
            os.close(file)

    def write(self, item: WriteItem, shard: torch.Tensor) -> int:
        """Write a shard to its place in the whole tensor. Return its size in bytes."""
        key, place = item.index.fqn, self._places[item.index.fqn]
        assert item.tensor_data is not None
        chunk = item.tensor_data.chunk
        action = f'save the shard of "{key}" at {list(chunk.offsets)}'
        shard = _torch_tensors.plain(action, shard)
        if (shard.dtype, shard.shape) != (place.dtype, chunk.sizes):
            planned, found = f"{place.dtype} of {list(chunk.sizes)}", f"{shard.dtype} of {list(shard.shape)}"
            message = f"the plan has {planned}, and the state dict {found}; change tensors before the save"
            raise _errors.make("DTypeMismatch", f"{action}: {message}")
        if shard.numel() == 0:
            return 0
        file, whole = self._open(place.path)
        target = whole[place.offset : place.offset + place.nbytes].view(place.dtype).view(place.shape)
        for axis, (start, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            target = target.narrow(axis, start, size)
        if target.is_contiguous() and _is_flat(shard):
            # Faster than through the mapping, which the kernel would fill page by page.
            write_at(file, _bytes(shard), target.data_ptr() - whole.data_ptr())
        else:
            target.copy_(shard)
        return shard.nbytes

    def _open(self, path: str) -> tuple[int, torch.Tensor]:
        if path not in self._opened:
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError as error:
                message = "this rank does not see the file of the coordinator, or the save has ended"
                advice = "put the store on a file system that all ranks share, under one path"
                raise _errors.make("Io", f"write to {path}: {message}; {advice}", error.errno) from None
            try:
                self._opened[path] = file, torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
            except BaseException:
                os.close(file)
                raise
        return self._opened[path]


def announce(block: Tensor) -> None:
    """Have the kernel read the first MiB of a block of a tensor of a store ahead, as many as it likes, and nothing else."""
    # This must not lend the elements: if they are verified, that reads them, and waits for it.
    if not block.nbytes or not block.is_contiguous() or (file := open_storage(block, os.O_RDONLY)) is None:
        return
    try:
        os.posix_fadvise(file, block.storage_offset * block.itemsize, block.nbytes, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)


def read(block: Tensor, target: torch.Tensor, storages: _torch_storages.Storages) -> None:
    """Copy a block of a tensor of a store into a tensor. `storages` are the mappings of earlier blocks."""
    found = block._file_range
    is_flat = found is not None and _is_flat(target) and block.is_contiguous()
    file = open_storage(block, os.O_RDONLY) if is_flat else None
    if found is None or file is None:
        target.copy_(_torch_storages.to_torch([block], storages)[0])
        return
    # A page fault in a mapping, and a read that the kernel takes for one of many, would also read what other ranks need.
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        _read(file, target, found[3])
    finally:
        os.close(file)


def _is_flat(tensor: torch.Tensor) -> bool:
    """Return whether the elements are in the memory of this process, one after the other."""
    return tensor.is_contiguous() and tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()


def _bytes(tensor: torch.Tensor) -> memoryview:
    # A dimension of size 1 can have any stride, which `view` would not accept.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _read(file: int, tensor: torch.Tensor, offset: int) -> None:
    rest = _bytes(tensor)
    while rest:
        count = os.preadv(file, [rest], offset)
        if not count:
            raise EOFError(f"the file of the tensor ends at byte {offset}; stridemap verify says what is damaged")
        rest, offset = rest[count:], offset + count
