"""Shards of tensors in the files of a save, and in tensors that are loaded."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from types import TracebackType

import torch
from torch.distributed.checkpoint.planner import WriteItem

from .. import _errors, _torch_tensors
from ._saves import Place


class ShardFiles:
    """The files of a save, opened by a rank that writes shards. The end of the `with` block waits until they are on disk."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._opened: dict[str, tuple[int, torch.Tensor]] = {}

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                for file, _ in self._opened.values():
                    # Other machines, and the coordinator, see what is on disk.
                    os.fdatasync(file)
        finally:
            for file, _ in self._opened.values():
                os.close(file)
            self._opened = {}

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
        if target.is_contiguous() and shard.is_contiguous() and shard.device.type == "cpu":
            # Faster than through the mapping, which the kernel would fill page by page.
            _write(file, shard, target.data_ptr() - whole.data_ptr())
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


def _write(file: int, tensor: torch.Tensor, offset: int) -> None:
    # A dimension of size 1 can have any stride, which `view` would not accept.
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    rest = flat.numpy().data
    while rest:
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count
