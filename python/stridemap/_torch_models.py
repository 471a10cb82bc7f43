"""The parameters and buffers of a model of PyTorch, and which of them are tied."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

import numpy as np
import torch

from . import _torch_tensors
from ._arrays import elements_of


def named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model. Tied ones have several names."""
    return dict(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))


def grouped(model: torch.nn.Module) -> list[list[str]]:
    """Return the names of each parameter and buffer. Those with the same memory are tied, although they are two objects."""
    found: dict[Hashable, list[str]] = {}
    for name, tensor in named(model).items():
        key: Hashable = id(tensor)
        if _torch_tensors.why_not(tensor) is None and tensor.numel():
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        found.setdefault(key, []).append(name)
    return list(found.values())


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have equal elements. A NaN is equal to itself."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if (a.data_ptr(), a.stride()) == (b.data_ptr(), b.stride()):
        return True
    return torch.equal(a, b) or np.array_equal(elements_of(a, "compare")[2], elements_of(b, "compare")[2])
