"""Batches of a `DataLoader` of PyTorch: tensors of stores are collated as tensors of PyTorch are.

Importing this module tells PyTorch so. `stridemap.open` does it, if PyTorch is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ._operators import as_torch
from ._snapshots import Names
from ._stridemap import Tensor


def _tensors(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    if all(isinstance(sample, Tensor) for sample in batch) and batch[0].dtype.isbuiltin == 1:
        arrays = [sample.numpy() for sample in batch]
        if len({(array.dtype, array.shape) for array in arrays}) == 1:
            # A tensor of PyTorch for each sample would take three times as long.
            return torch.from_numpy(np.stack(arrays))
    return collate([as_torch(sample) for sample in batch], collate_fn_map=collate_fn_map)


def _groups(batch: Sequence[Names], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """Return a dict of batches. PyTorch would update a copy of the first mapping, and so save the batch to its store."""
    names = list(batch[0])
    return {name: collate([sample[name] for sample in batch], collate_fn_map=collate_fn_map) for name in names}


default_collate_fn_map[Tensor] = _tensors
default_collate_fn_map[Names] = _groups
