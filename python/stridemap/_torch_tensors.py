"""Tensors of PyTorch, saved so that those that share memory still share it when they are loaded."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ._arrays import can_save, elements_of
from ._torch_storages import byte_range, overlapping

if TYPE_CHECKING:
    from ._store import Transaction

#: Tensors whose memory overlaps, each with its name.
Group = list[tuple[str, torch.Tensor]]

#: The size of the largest element, in bytes.
_MAX_ITEMSIZE = 16

#: The types of tensors whose elements are those in their storages.
_KNOWN = frozenset((torch.Tensor, torch.nn.Parameter))

#: The dtypes that NumPy has too. Their bytes take a third of the time.
_OF_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


@cache
def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in a store."""
    return str(dtype).removeprefix("torch.")


def why_not(tensor: torch.Tensor) -> str | None:
    """Return why the elements of a tensor cannot be saved, and what to do, or `None` if they can."""
    kind = type(tensor).__name__
    is_known = type(tensor) in _KNOWN
    if not is_known and is_lazy(tensor):
        return f"{kind} has no shape yet; call the model once before"
    if tensor.is_nested:
        return "it is a nested tensor; save the tensors of unbind()"
    if tensor.layout != torch.strided:
        return f"its layout is {tensor.layout}; save to_dense(), or its parts"
    if tensor.is_quantized:
        return "it is quantized; save dequantize(), or int_repr() and the parameters"
    if not can_save(dtype_name := name_of(tensor.dtype)):
        return f"elements of dtype {dtype_name} cannot be saved; convert them, or save view(torch.uint8)"
    if tensor.is_meta:
        return "it is on the device meta, so it has no elements"
    if tensor.numel() == 0:
        return None
    try:
        storage = tensor.untyped_storage()
        has_elements = storage.data_ptr() != 0 and storage.nbytes() >= _end_in_storage(tensor)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        has_elements = False
    if has_elements:
        return None
    if is_known:
        return "its storage was freed"
    if hasattr(tensor, "full_tensor"):
        return f"{kind} is a shard; save it with stridemap.torch.distributed, or save full_tensor()"
    return f"{kind} has no elements of its own; save the tensors that it is made of"


def plain(action: str, tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return a tensor whose elements are those in its storage. The `action`, on what has a `name`, is for the error if there
    are none.
    """
    if reason := why_not(tensor):
        raise TypeError(f"{action}: {reason}" if name is None else f'{action} "{name}": {reason}')
    # Most tensors are plain already, and a model can have very many.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def groups_of(tensors: Mapping[str, torch.Tensor]) -> list[Group]:
    """Return the tensors in groups whose memory does not overlap."""
    entries: Group = []
    starts: list[int] = []
    ends: list[int] = []
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a str, not {type(name).__name__}: {name!r}")
        if not isinstance(value, torch.Tensor):
            raise TypeError(f'save "{name}": it is not a tensor but {type(value).__name__}')
        tensor = plain("save", value, name)
        entries.append((name, tensor))
        start, end = span(tensor) if tensor.numel() else (0, 0)
        starts.append(start)
        ends.append(end)
    # In most models none overlap. Very many tuples that are made to find the groups would have Python's collector run.
    if _are_apart(starts, ends):
        return [[entry] for entry in entries]
    spans = zip(starts, ends, strict=True)
    places: list[tuple[Hashable, int, int]] = [
        (tensor.device if end else name, start, end) for (name, tensor), (start, end) in zip(entries, spans, strict=True)
    ]
    return [[entries[index] for index in group] for group in overlapping(places)]


def _are_apart(starts: list[int], ends: list[int]) -> bool:
    """Return whether no two ranges of addresses overlap, even if they were of one device."""
    first, last = np.array(starts, np.uint64), np.array(ends, np.uint64)
    order = np.argsort(first)
    return not (last[order][:-1] > first[order][1:]).any()


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses where the first element begins and the last one ends."""
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    start, end = byte_range(0, tensor.shape, tensor.stride(), tensor.itemsize)
    return tensor.data_ptr() + start, tensor.data_ptr() + end


def _end_in_storage(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return int(tensor.storage_offset()) * tensor.itemsize + tensor.nbytes
    return byte_range(int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.itemsize)[1]


def save(txn: Transaction, group: Group, replaceable: Container[str]) -> None:
    """Save the tensors of a group: their bytes once, and a header each. Only names in `replaceable` are replaced."""
    if len(group) == 1 and group[0][1].is_contiguous():
        ((name, tensor),) = group
        txn._handle.on_existing(name in replaceable)
        txn._handle.save(name, elements_of_plain(tensor), "sealed")
        return
    if (found := _aligned_span(group)) is None:
        for entry in group:
            save(txn, [entry], replaceable)
        return
    start, end = found
    memory = _memory(group, start, end)
    storage = txn._handle.stage(elements_of(memory, f'save "{group[0][0]}"'))
    for name, tensor in group:
        txn._handle.on_existing(name in replaceable)
        offset = (tensor.data_ptr() - start) // tensor.itemsize
        txn._handle.save_header(name, (name_of(tensor.dtype), tuple(tensor.shape), tensor.stride(), offset), storage)


def elements_of_plain(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the dtype, the size and the bytes of a plain tensor."""
    whole = (tensor if tensor.is_cpu else tensor.cpu()).contiguous()
    if (dtype := whole.dtype) in _OF_NUMPY:
        flat = whole.numpy().reshape(-1).view(np.uint8)
    else:
        # A dimension of size 1 can have any stride, which `view` would not accept.
        flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()
    return name_of(dtype), whole.shape, flat


def copied(groups: list[Group]) -> list[Group]:
    """Return copies of tensors in memory of this process, which overlap as the tensors do."""
    return [part for group in groups for part in _copied(group)]


def _copied(group: Group) -> list[Group]:
    cpu = torch.device("cpu")
    if len(group) == 1 and group[0][1].is_contiguous():
        ((name, tensor),) = group
        return [[(name, tensor.to(cpu, copy=True))]]
    if (found := _aligned_span(group)) is None:
        return [[(name, tensor.contiguous().to(cpu, copy=True))] for name, tensor in group]
    start, end = found
    storage = _memory(group, start, end).to(cpu, copy=True).untyped_storage()
    copies = []
    for name, tensor in group:
        empty = torch.empty(0, dtype=tensor.dtype, device=cpu)
        offset = (tensor.data_ptr() - start) // tensor.itemsize
        copies.append((name, empty.set_(storage, offset, tensor.shape, tensor.stride())))
    return [copies]


def _aligned_span(group: Group) -> tuple[int, int] | None:
    """Return where the memory of a group begins and ends, or `None` if no tensor can be described from its beginning."""
    starts, ends = zip(*(span(tensor) for _, tensor in group), strict=True)
    # A header has its offset in elements.
    for start in range(min(starts), min(starts) - _MAX_ITEMSIZE, -1):
        if not any((tensor.data_ptr() - start) % tensor.itemsize for _, tensor in group):
            return start, max(ends)
    return None


def _memory(group: Group, start: int, end: int) -> torch.Tensor:
    """Return the bytes between two addresses: of a storage that has all of them, or copied from those of the group."""

    def of_storage(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        storage = tensor.untyped_storage()
        empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return empty.set_(storage, start - storage.data_ptr(), (end - start,), (1,))

    for _, tensor in group:
        first, nbytes = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if first <= start and end <= first + nbytes:
            return of_storage(tensor, start, end)
    whole = torch.zeros(end - start, dtype=torch.uint8, device=group[0][1].device)
    for _, tensor in group:
        own_start, own_end = span(tensor)
        whole[own_start - start : own_end - start] = of_storage(tensor, own_start, own_end)
    return whole
