"""Some elements of a tensor and a histogram, as HTML. Only a few elements of a large tensor are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _errors
from ._html import text

if TYPE_CHECKING:
    from ._stridemap import Tensor

#: The number of rows and columns of elements that are shown.
_ROWS, _COLUMNS = 6, 8

#: The number of elements that a histogram counts, and the number of its bars.
_MAX_SAMPLE, _MAX_BARS = 16384, 40


def elements(tensor: Tensor) -> str:
    """Return some elements of a tensor, and a histogram. Elements that are elsewhere are not requested."""
    if tensor._origin is not None and tensor._origin[2]["remote"]:
        return '<div class="sm-faint">The store is read from a URL: elements are not shown.</div>'
    if tensor.size == 0:
        return '<div class="sm-faint">There are no elements.</div>'
    try:
        return _cells(tensor) + (_histogram(tensor) if tensor.size > 1 else "")
    except _errors.Error as error:
        return f"<div>{text(str(error), 1000)}</div>"


def _values(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements as an array of a dtype of NumPy."""
    try:
        array = tensor.numpy()
    except _errors.DTypeError:
        array = tensor.astype("float32").numpy()
    # The dtypes of `ml_dtypes` have few functions.
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def _cells(tensor: Tensor) -> str:
    leading = (0,) * max(tensor.ndim - 2, 0)
    matrix = tensor[leading] if leading else tensor
    if matrix.ndim < 2:
        matrix = matrix.reshape(1, -1) if matrix.is_contiguous() else matrix.unsqueeze(0)
    rows, columns = matrix.shape
    shown = _values(matrix[:_ROWS, :_COLUMNS])
    more = "<td>…</td>" if columns > _COLUMNS else ""
    lines = ["".join(f"<td>{_shown(value)}</td>" for value in row) + more for row in shown.tolist()]
    if rows > _ROWS:
        lines.append("<td>…</td>" * (len(shown[0]) + bool(more)))
    place = f'<div class="sm-faint">at {text(str([*leading, ...]).replace("Ellipsis", "..."))}</div>' if leading else ""
    return f'{place}<table class="sm-cells">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def _shown(value: complex | bool) -> str:
    return str(value) if isinstance(value, bool | int) else text(f"{value:.5g}")


def _sample(tensor: Tensor) -> Tensor:
    """Return a view that has at most `_MAX_SAMPLE` elements, at equal distances, of all parts of a tensor."""
    left, steps = _MAX_SAMPLE, []
    for count in reversed(tensor.shape):
        taken = min(count, max(left, 1))
        step = -(-count // taken)
        steps.append(slice(None, None, step))
        left //= -(-count // step)
    sample: Tensor = tensor[tuple(reversed(steps))]
    return sample


def _histogram(tensor: Tensor) -> str:
    sample = _sample(tensor)
    values = _values(sample).reshape(-1)
    what = "elements" if sample.size == tensor.size else f"of {tensor.size:,} elements, in equal distances"
    if values.dtype.kind == "c":
        values, what = np.abs(values), f"magnitudes of {what}".replace("of of", "of")
    is_whole = values.dtype.kind in "biu"
    notes = [f"{values.size:,} {what}"]
    finite = values.astype(np.float64)
    for name, found in (("NaN", np.isnan(finite)), ("infinite", np.isinf(finite))):
        if found.any():
            notes.append(f"{int(found.sum()):,} {name}")
    finite = finite[np.isfinite(finite)]
    note = f'<div class="sm-faint">{", ".join(notes)}</div>'
    if finite.size == 0:
        return note
    low, high = float(finite.min()), float(finite.max())
    return f"{_bars(finite, low, high, is_whole)}<div class=\"sm-range\"><span>{low:.5g}</span><span>{high:.5g}</span></div>{note}"


def _bars(values: np.ndarray[Any, Any], low: float, high: float, is_whole: bool) -> str:
    """Return a histogram as SVG, with a bar for each of a few integers."""
    count = int(high - low) + 1 if is_whole and high - low < _MAX_BARS else _MAX_BARS
    # The difference of two finite numbers may be infinite.
    places = np.zeros(values.shape) if low == high else (values / 2 - low / 2) / (high / 2 - low / 2)
    bins = np.minimum((places * count).astype(np.int64), count - 1)
    counts = np.bincount(bins, minlength=count)
    tallest, width = counts.max(), 320 / count
    bars = [
        f'<rect x="{at * width:.2f}" y="{60 - height:.2f}" width="{width * 0.9:.2f}" height="{height:.2f}"/>'
        for at, height in enumerate(60 * counts / tallest)
        if height > 0
    ]
    return f'<svg viewBox="0 0 320 60" preserveAspectRatio="none" role="img" aria-label="histogram">{"".join(bars)}</svg>'
