"""Sums, means, extremes and deviations of tensors, with the arguments of NumPy's functions.

`numpy.sum(x)` calls `x.sum`, with all arguments of its own. The library summarizes all elements at once; NumPy does the
rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._arrays import to_numpy
from ._stridemap import Tensor


def sum(tensor: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
    """Return the sum: see `Tensor.sum`."""
    return _by_numpy(np.sum, tensor, axis, out, dtype=dtype, **options)


def mean(tensor: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
    """Return the mean: see `Tensor.mean`."""
    if not _is_whole(tensor, axis, dtype, out, options):
        return _by_numpy(np.mean, tensor, axis, out, dtype=dtype, **options)
    _, nan, positive, negative, _, _, mean, _ = tensor._moments()
    if nan or (positive and negative):
        return np.float64(math.nan)
    return np.float64(math.inf if positive else -math.inf if negative else mean)


def std(tensor: Tensor, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, **options: Any) -> Any:
    """Return the standard deviation: see `Tensor.std`."""
    if not _is_whole(tensor, axis, dtype, out, options):
        return _by_numpy(np.std, tensor, axis, out, dtype=dtype, ddof=ddof, **options)
    count, nan, positive, negative, _, _, _, deviation = tensor._moments()
    if nan or positive or negative or count <= ddof:
        return np.float64(math.nan)
    # The library has that of a sample, and none for one element.
    return np.float64((deviation or 0.0) * math.sqrt((count - 1) / (count - ddof)))


def min(tensor: Tensor, axis: Any = None, out: Any = None, **options: Any) -> Any:
    """Return the lowest element: see `Tensor.min`."""
    if _is_whole(tensor, axis, None, out, options):
        _, nan, positive, negative, lowest, _, _, _ = tensor._moments()
        return _extreme(tensor, nan, -math.inf if negative else math.inf if lowest is None and positive else lowest)
    return _by_numpy(np.min, tensor, axis, out, **options)


def max(tensor: Tensor, axis: Any = None, out: Any = None, **options: Any) -> Any:
    """Return the highest element: see `Tensor.max`."""
    if _is_whole(tensor, axis, None, out, options):
        _, nan, positive, negative, _, highest, _, _ = tensor._moments()
        return _extreme(tensor, nan, math.inf if positive else -math.inf if highest is None and negative else highest)
    return _by_numpy(np.max, tensor, axis, out, **options)


def _is_whole(tensor: Tensor, axis: Any, dtype: Any, out: Any, options: dict[str, Any]) -> bool:
    """Return whether the library can summarize what is asked for: all elements, of real numbers, at least one."""
    is_plain = axis is None and dtype is None and out is None and not options
    return is_plain and tensor.size > 0 and tensor.dtype.kind != "c"


def _extreme(tensor: Tensor, nan_count: int, extreme: Any) -> Any:
    return np.array(math.nan if nan_count else extreme, tensor.dtype)[()]


def _by_numpy(function: Any, tensor: Tensor, axis: Any, out: Any, **options: Any) -> Any:
    array = to_numpy(tensor)
    # NumPy would add small floats as they are, and lose most of a long sum.
    is_small = array.dtype == np.float16 or array.dtype.isbuiltin != 1
    if "dtype" in options and options["dtype"] is None:
        options["dtype"] = np.float32 if is_small and array.dtype.kind in "fV" else None
    return function(array, axis=axis, out=out, **options)
