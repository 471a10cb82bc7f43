"""Operators on tensors. The results are new arrays of NumPy, or tensors of PyTorch if the other operand is one.

`x += 1` changes a mutable tensor in place, under a lock. It never makes a new array, which would look as if it were saved.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _errors
from ._arrays import Lock, is_same, numpy_dtype, operand, to_numpy, without_mask
from ._stridemap import Tensor

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert")

#: Methods of arrays that change them in place. Those of PyTorch have a name that ends with "_".
_WRITING = ("fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort")

#: Tensors that were changed in place, by their identity. In `store["x"] += 1`, Python then assigns the tensor to its name.
_changed: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def is_changed_in_place(value: Any, current: Callable[[], Tensor | None]) -> bool:
    """Return whether a value is a tensor that an operator such as `+=` just changed, and that the store has already."""
    if not isinstance(value, Tensor) or _changed.pop(id(value), None) is not value:
        return False
    found = current()
    return found is not None and is_same(value, found)


def _binary(function: Callable[[Any, Any], Any], is_reflected: bool = False) -> Callable[[Tensor, Any], Any]:
    def method(tensor: Tensor, other: Any) -> Any:
        if "torch" in sys.modules and isinstance(other, sys.modules["torch"].Tensor):
            mine = as_torch(tensor)
        else:
            mine, other = to_numpy(tensor), operand(other)
        return function(other, mine) if is_reflected else function(mine, other)

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
    return lambda tensor: function(to_numpy(tensor))


def _in_place(function: Callable[[Any, Any], Any], symbol: str) -> Callable[[Tensor, Any], Tensor]:
    def method(tensor: Tensor, other: Any) -> Tensor:
        # Before the lock is taken: see `assign`.
        other = operand(without_mask(other, f"{symbol}="))
        try:
            with Lock(tensor, True) as array:
                function(array, other)
        except (_errors.ArgumentError, _errors.ReadOnlyError) as error:
            advice = f"x {symbol} ... is a new array, and store[name] = store[name] {symbol} ... saves one"
            raise _errors.make(error.kind, f"{symbol}=: {error}; {advice}") from None
        _changed[id(tensor)] = tensor
        return tensor

    return method


def _by_torch(
    cls: type, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
) -> Any:
    """Call a function of PyTorch, such as `torch.stack`, with tensors of PyTorch instead of these."""
    name = getattr(function, "__name__", "")
    writes = [(options or {}).get("out"), *(arguments[:1] if name.endswith("_") and not name.endswith("__") else ())]
    if any(map(_has_own, writes)):
        message = f"{name} would change a copy of this process, and not the store"
        raise TypeError(f"{message}; assign its result instead: store[name] = ..., or x[...] = ... if x is mutable")
    return function(*map(as_torch, arguments), **{key: as_torch(value) for key, value in (options or {}).items()})


def as_torch(value: Any) -> Any:
    """Return tensors as those of PyTorch, also in lists and tuples, and everything else as it is."""
    if isinstance(value, Tensor):
        numpy_dtype(value._dtype_name)  # It refuses packed numbers, with which PyTorch cannot calculate either.
        return value.torch()
    if isinstance(value, list | tuple):
        return [*map(as_torch, value)] if isinstance(value, list) else tuple(map(as_torch, value))
    return value


def _has_own(value: Any) -> bool:
    """Return whether a value is a tensor of a store, or contains one."""
    return isinstance(value, Tensor) or isinstance(value, list | tuple) and any(map(_has_own, value))


def _missing(tensor: Tensor, name: str) -> Any:
    """Refuse an attribute that does not exist, and say who has it."""
    message = f"'stridemap.Tensor' object has no attribute {name!r}"
    others: dict[str, type] = {"numpy": np.ndarray}
    if "torch" in sys.modules:
        others["torch"] = sys.modules["torch"].Tensor
    if not name.startswith("_") and (name.endswith("_") or name in _WRITING):
        advice = "store[name] = ... saves a result; x[...] = ... and with x.lock() as array: ... change a mutable tensor"
        raise AttributeError(f"{message}; {advice}", name=name, obj=tensor)
    found = [] if name.startswith("_") else [f"x.{other}().{name}" for other, kind in others.items() if hasattr(kind, name)]
    found += ["store.attrs_of(name)"] if name == "attrs" else []
    raise AttributeError(f"{message}; use {' or '.join(found)}" if found else message, name=name, obj=tensor)


def _attach() -> None:
    """Add the methods to the class, which is written in Rust."""
    methods: dict[str, Any] = {name: _binary(getattr(operator, name)) for name in _COMPARISONS}
    methods |= {name: _unary(getattr(operator, name)) for name in _UNARY}
    functions = {name: getattr(operator, f"__{name}__") for name in _SYMBOLS} | {"divmod": divmod}
    for name, function in functions.items():
        methods |= {name: _binary(function), f"r{name}": _binary(function, is_reflected=True)}
    for name, symbol in _SYMBOLS.items():
        methods[f"i{name}"] = _in_place(getattr(operator, f"__i{name}__"), symbol)
    for name, method in methods.items():
        method.__name__, method.__qualname__ = f"__{name}__", f"Tensor.__{name}__"
        setattr(Tensor, f"__{name}__", method)
    Tensor.__getattr__ = _missing  # type: ignore[attr-defined]
    Tensor.__torch_function__ = classmethod(_by_torch)  # type: ignore[attr-defined]


_attach()
