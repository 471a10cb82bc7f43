"""The values of a checkpoint as JSON, and back.

Null, bools, texts, integers of 64 bits, finite numbers and lists are those of JSON. Everything else is an object with one
key, its kind. Tensors have a name instead of their elements. What a value becomes again depends on tables in this module
and on nothing else: no class or function is looked up by a name in a store, and no code in a store is run.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import math
import pathlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from . import _errors
from ._arrays import can_save, dtype_name, numpy_dtype
from ._torch_tensors import why_not

#: The largest integer that is a number in JSON.
_MAX_NUMBER = (1 << 63) - 1

#: The factories that a `defaultdict` may have.
_FACTORIES: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (int, float, str, list, dict, set)}

#: The classes of dicts, lists and other values that contain values.
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "torch.Size": torch.Size}
_SETS: dict[str, type] = {"set": set, "frozenset": frozenset}

#: The classes of values that are kept as texts, with what makes a text of a value, and a value of a text.
_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "float": (float, repr, float),
    "complex": (complex, repr, complex),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "bytearray": (bytearray, lambda value: base64.b64encode(value).decode(), lambda text: bytearray(base64.b64decode(text))),
    "Path": (type(pathlib.Path()), str, pathlib.Path),
    "PurePosixPath": (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    "PureWindowsPath": (pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
    "torch.dtype": (torch.dtype, dtype_name, lambda text: _checked(vars(torch).get(text), torch.dtype)),
    "torch.device": (torch.device, str, torch.device),
}

#: The names of classes, for what is looked up for each value.
_MAPPING_KINDS = {kind: name for name, kind in _MAPPINGS.items()}
_SEQUENCE_KINDS = {kind: name for name, kind in _SEQUENCES.items()}
_SET_KINDS = {kind: name for name, kind in _SETS.items()}
_TEXT_KINDS = {kind: name for name, (kind, _, _) in _TEXTS.items()}

#: The kinds of elements that a scalar of NumPy may have: all but objects and records.
_SCALARS = "biufcmMSU"


class Describer:
    """Describes a state. `tensors` has its tensors, by their names, which are key paths."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self._open: set[int] = set()

    def described(self, value: Any, key_path: str = "") -> Any:
        """Return a value for JSON. `key_path` is where it is in the state, with a "." at its end."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int and abs(value) <= _MAX_NUMBER or kind is float and math.isfinite(value):
            return value
        if (text := _TEXT_KINDS.get(kind)) is not None:
            return {text: _TEXTS[text][1](value)}
        if kind in (torch.Tensor, torch.nn.Parameter):
            named = self._tensor(value, key_path)
            return {"Parameter": [named, value.requires_grad]} if kind is torch.nn.Parameter else named
        if kind is np.ndarray:
            return {"ndarray": self._tensor(_shared(value, key_path), key_path)}
        if isinstance(value, np.generic) and (dtype := value.dtype) and _is_scalar(dtype):
            name = dtype.str if dtype.kind in "mMSU" else dtype.name
            return {"scalar": [name, base64.b64encode(value.tobytes()).decode()]}
        if kind is list or kind in _SEQUENCE_KINDS or kind in _SET_KINDS or kind in _MAPPING_KINDS or kind is collections.defaultdict:
            return self._container(value, key_path)
        raise _refused(value, key_path)

    def _container(self, value: Any, key_path: str) -> Any:
        if id(value) in self._open:
            raise ValueError(f"{_where(key_path)}: a checkpoint cannot hold what contains itself; save the parts")
        self._open.add(id(value))
        try:
            return self._parts(value, key_path)
        finally:
            self._open.remove(id(value))

    def _parts(self, value: Any, key_path: str) -> Any:
        kind = type(value)
        if kind in _SET_KINDS:
            # The order of a set differs between processes.
            return {_SET_KINDS[kind]: sorted((self._key(part, key_path) for part in value), key=repr)}
        if kind is list or kind in _SEQUENCE_KINDS:
            parts = [self.described(part, f"{key_path}{index}.") for index, part in enumerate(value)]
            return parts if kind is list else {_SEQUENCE_KINDS[kind]: parts}
        pairs = [[self._key(key, key_path), self.described(part, f"{key_path}{key}.")] for key, part in value.items()]
        if kind is collections.defaultdict:
            factory = value.default_factory
            name = getattr(factory, "__name__", None)
            if factory is not None and _FACTORIES.get(str(name)) is not factory:
                message = f"a checkpoint cannot hold a defaultdict of {name or repr(factory)}, only of {', '.join(_FACTORIES)}"
                raise TypeError(f"{_where(key_path)}: {message}; save dict(value)")
            return {"defaultdict": [name, pairs]}
        if attributes := getattr(value, "__dict__", None):
            # The versions of the modules in a state dict of a model.
            return {_MAPPING_KINDS[kind]: pairs, "attributes": self._attributes(attributes, key_path)}
        return {_MAPPING_KINDS[kind]: pairs}

    def _attributes(self, attributes: dict[str, Any], key_path: str) -> Any:
        if attributes.keys() != {"_metadata"}:
            message = f"a checkpoint cannot hold a dict with attributes of its own: {sorted(attributes)}; save dict(value)"
            raise TypeError(f"{_where(key_path)}: {message}")
        return self.described(attributes["_metadata"], f"{key_path}_metadata.")

    def _tensor(self, value: torch.Tensor, key_path: str) -> dict[str, str]:
        if (reason := why_not(value)) is not None:
            raise TypeError(f"{_where(key_path)}: {reason}")
        name = key_path.removesuffix(".")
        # Keys such as 1 and "1", or "a.b" and "a" with "b", have the same key path.
        while name in self.tensors:
            name += "'"
        self.tensors[name] = value
        return {"tensor": name}

    def _key(self, key: Any, key_path: str) -> Any:
        """Return a key of a dict, or a part of a set."""
        tensors: dict[str, torch.Tensor] = {}
        described = Describer(tensors).described(key, f"{key_path}{key}.")
        if tensors:
            raise TypeError(f"{_where(key_path)}: a checkpoint cannot hold a tensor as a key, or in a set; use a list")
        return described


def names(description: Any) -> set[str]:
    """Return the names of the tensors in a description."""
    if isinstance(description, list):
        return set().union(*map(names, description))
    if not isinstance(description, dict):
        return set()
    if isinstance(name := description.get("tensor"), str):
        return {name}
    return set().union(*map(names, description.values()))


def restored(description: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that has a description."""

    def value(found: Any) -> Any:
        if isinstance(found, list):
            return list(map(value, found))
        if not isinstance(found, dict):
            return found
        (kind, content), *others = found.items()
        if kind == "tensor":
            return tensors[content]
        if kind in _TEXTS:
            return _TEXTS[kind][2](content)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](map(value, content))
        if kind in _SETS:
            return _SETS[kind](map(value, content))
        if kind in _MAPPINGS:
            result = _MAPPINGS[kind]({value(key): value(part) for key, part in content})
            for _, attribute in others:
                result._metadata = value(attribute)
            return result
        match kind, content:
            case "defaultdict", [name, pairs]:
                factory = None if name is None else _FACTORIES[name]
                return collections.defaultdict(factory, {value(key): value(part) for key, part in pairs})
            case "Parameter", [tensor, requires_grad]:
                return torch.nn.Parameter(value(tensor), requires_grad)
            case "ndarray", tensor:
                return _array(value(tensor))
            case "scalar", [name, text]:
                dtype = numpy_dtype(name)
                if not _is_scalar(dtype):
                    raise ValueError(f"a scalar of dtype {name}")
                return np.ndarray((), dtype, base64.b64decode(text))[()]
        raise ValueError(f"{kind!r} is not a kind of value")

    try:
        return value(description)
    except (AttributeError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        message = f"load_checkpoint: the description of the checkpoint cannot be read: {error}; was it saved by a newer stridemap?"
        raise _errors.make("Corrupt", message) from error


def _is_scalar(dtype: np.dtype[Any]) -> bool:
    """Return whether a checkpoint can hold scalars of a dtype. Machines have different numbers of more than 8 bytes."""
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        return False
    return dtype.kind in _SCALARS or hasattr(ml_dtypes, dtype.name)


class _Writable:
    """The memory of an array, as if it could be written. PyTorch warns of tensors on other memory."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        found = array.__array_interface__
        self._array, self.__array_interface__ = array, {**found, "data": (found["data"][0], False)}


def _shared(array: np.ndarray[Any, Any], key_path: str) -> torch.Tensor:
    """Return an array as a tensor of PyTorch on the same memory, or on a copy if PyTorch has no such strides."""
    dtype = array.dtype
    if not dtype.isnative or not can_save(dtype.name) or not hasattr(torch, dtype.name):
        advice = "save value.tolist()" if dtype.kind in "OSUT" else "save value.astype('float64'), or as another dtype that PyTorch has"
        if dtype.kind in "mM":
            advice = "save value.view('int64'), and str(value.dtype)"
        elif dtype.names:
            advice = "save each field, such as value['x']"
        raise TypeError(f"{_where(key_path)}: a checkpoint cannot hold a numpy.ndarray of dtype {dtype.descr if dtype.names else dtype.str}; {advice}")
    carrier = array.view(np.dtype(f"u{dtype.itemsize}")) if hasattr(ml_dtypes, dtype.name) else array
    if any(step < 0 or step % carrier.itemsize for step in carrier.strides):
        carrier = carrier.copy()
    return torch.from_numpy(np.asarray(_Writable(carrier))).view(getattr(torch, dtype.name))


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor of PyTorch as an array on the same memory."""
    dtype = numpy_dtype(dtype_name(tensor.dtype))
    if not hasattr(ml_dtypes, dtype.name):
        return tensor.numpy()
    carrier = torch.uint8 if dtype.itemsize == 1 else torch.int16
    array: np.ndarray[Any, Any] = tensor.view(carrier).numpy().view(dtype)
    return array


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _where(key_path: str) -> str:
    return key_path.removesuffix(".") or "the state"


def _refused(value: Any, key_path: str) -> TypeError:
    """Return the error for a value that a checkpoint cannot hold."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, torch.Tensor) and (reason := why_not(value)) is not None:
        return TypeError(f"{_where(key_path)}: {reason}")
    advice = "convert it to a plain value or a tensor"
    for is_kind, way_out in (
        (isinstance(value, torch.Tensor), "save value.as_subclass(torch.Tensor), and make it again after loading"),
        (isinstance(value, np.ma.MaskedArray), "save value.filled(), and value.mask beside it"),
        (isinstance(value, np.ndarray), "save numpy.asarray(value), and make it again after loading"),
        (isinstance(value, enum.Enum), "save value.value"),
        (dataclasses.is_dataclass(value) and not isinstance(value, type), "save dataclasses.asdict(value)"),
        (isinstance(value, tuple) and hasattr(value, "_asdict"), "save value._asdict()"),
        (isinstance(value, np.longdouble | np.clongdouble), "save float(value) or complex(value)"),
        (isinstance(value, np.random.Generator), "save value.bit_generator.state"),
        (isinstance(value, np.random.RandomState | torch.Generator), "save value.get_state()"),
        (isinstance(value, random.Random), "save value.getstate()"),
        (hasattr(value, "state_dict") and not isinstance(value, type), "save value.state_dict()"),
        *((isinstance(value, base), f"save {base.__name__}(value)") for base in (dict, list, tuple, set, str, int, float)),
        (hasattr(value, "isoformat"), "save value.isoformat()"),
        (callable(value), "save its name, and look it up after loading"),
    ):
        if is_kind:
            advice = way_out
            break
    return TypeError(f"{_where(key_path)}: a checkpoint cannot hold {kind}; {advice}")
