"""Arrays of NumPy by name, with the functions of `safetensors.numpy`.

Loaded arrays of a store are views of the mapped files. They are read-only: `array.copy()` can be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._interop import of_bytes, to_bytes
from ._places import Place, check_first, ended, reading, replacing
from ._progress import Progress, counter
from ._safe_open import safe_open

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

Array = np.ndarray[Any, Any]


def save_file(
    tensors: Mapping[str, Any],
    place: Place,
    metadata: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    replace: bool = False,
    progress: Progress | bool | None = None,
) -> None:
    """Save arrays in one commit, each under its name after `prefix`. The arguments are those of `stridemap.torch.save_file`.

    >>> import tempfile, stridemap
    >>> path = tempfile.mkdtemp() + "/x.smap"
    >>> save_file({"embedding": np.zeros((3, 4)), "bias": np.ones(2)}, path)
    >>> load_file(path)["bias"]
    array([1., 1.])
    >>> with stridemap.open(path) as store:
    ...     list(store)
    ['bias', 'embedding']
    """
    check_first("save_file(tensors, place)", "the dict", tensors, is_right=hasattr(tensors, "items"))
    prefix = ended(prefix)
    # What is not an array yet, such as a list, is small.
    sizes = {name: int(getattr(array, "nbytes", 0)) for name, array in tensors.items()}
    with (
        counter("save_file", progress, sum(sizes.values())) as count,
        replacing(place, prefix, tensors, metadata, replace, "save_file") as (txn, new),
    ):
        for name, array in tensors.items():
            txn.save(prefix + name, array, replace=prefix + name in new)
            count(sizes[name])


def load_file(place: Place, *, prefix: str = "") -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, by their names without it. Those of a store are mapped.

    `place` is an open store, or a path: of a store, or of a file that `stridemap.open` reads. If the prefix does not end
    with "." or "/", a "." follows it.

    >>> load_file(store)["x"][1]
    array([3, 4, 5])
    """
    prefix = ended(prefix)
    with reading(place) as source:
        return {name.removeprefix(prefix): source[name].numpy() for name in source if name.startswith(prefix)}


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays as the bytes of a safetensors file.

    >>> load(save({"x": np.arange(3)}))
    {'x': array([0, 1, 2])}
    """
    return to_bytes(tensors, metadata)


def load(data: bytes) -> dict[str, Array]:
    """Return the arrays in the bytes of a safetensors file, or of another file that `stridemap.open` reads.

    >>> load(save({"x": np.arange(3)}))["x"]
    array([0, 1, 2])
    """
    return {name: tensor.numpy() for name, tensor in of_bytes(data).items()}
