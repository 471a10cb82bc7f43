"""Arrays of NumPy and tensors of PyTorch, from the memory of tensors and to new tensors."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from . import _errors
from ._stridemap import Lent, Tensor
from ._stridemap import Lock as _Lock

if TYPE_CHECKING:
    import torch

#: PyTorch's storages of files that are mapped, by device, inode, number of bytes and process.
TorchStorages = MutableMapping[tuple[int, int, int, int], "torch.UntypedStorage"]

#: Those that are in use. Tensors of one storage share it.
_torch_storages: TorchStorages = weakref.WeakValueDictionary()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of NumPy with this name, from `ml_dtypes` if NumPy has none.

    >>> numpy_dtype("float32")
    dtype('float32')
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        message = f"NumPy has no dtype {name}: install ml_dtypes, or use torch(), or view_dtype('uint8')"
        raise _errors.DTypeError(message) from None
    if not hasattr(ml_dtypes, name):
        raise _errors.DTypeError(f"NumPy and ml_dtypes have no dtype {name}: use view_dtype('uint8')")
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements as an array: of the mapped memory if possible, and otherwise a copy."""
    dtype = numpy_dtype(tensor.dtype)
    lent = tensor._lend() or tensor.copy()._lend()
    assert lent is not None, "memory can always be lent"
    array = np.asarray(lent)
    return array if array.dtype == dtype else array.view(dtype)


def to_array(tensor: Tensor, dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """Return an array as `numpy.asarray` requests it."""
    if copy is False and tensor._lend() is None:
        raise ValueError("the elements are not mapped, so an array needs a copy")
    array = to_numpy(tensor)
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"an array of {dtype} needs a copy: the elements are {tensor.dtype}")
        return array.astype(dtype)
    return array.copy() if copy else array


def to_torch(tensor: Tensor, storages: TorchStorages | None = None) -> torch.Tensor:
    """Return the elements as a tensor of PyTorch, without a copy if PyTorch can describe it.

    Tensors of one storage that are made with the same `storages` share one mapping, and so see each other's changes.
    """
    import torch

    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise _errors.DTypeError(f"PyTorch has no dtype {tensor.dtype}: use view_dtype('uint8')")
    if tensor.size == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")
    storages = _torch_storages if storages is None else storages
    storage = _torch_storage(tensor, storages) if min(tensor.stride(), default=0) >= 0 else None
    if storage is None:
        # A copy: in memory, mutable or live, on an external file, or with negative steps.
        whole = tensor.copy().view(-1) if tensor.ndim else tensor.copy()
        buffer = np.array(np.asarray(whole.view_dtype("uint8")._lend()))
        return torch.from_numpy(buffer).view(dtype).view(tensor.shape)
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset, tensor.shape, tensor.stride())


def _torch_storage(tensor: Tensor, storages: TorchStorages) -> torch.UntypedStorage | None:
    """Map the file of a storage for PyTorch.

    PyTorch has no read-only tensors, so the mapping is private: what is written to it changes this process's copy of a
    page, and never the file. `torch.load(mmap=True)` does the same.
    """
    import torch

    path = tensor._storage_path
    if path is None or tensor._lend() is None:
        return None
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    # Not by its path, at which there may be another store by now.
    key = (stat.st_dev, stat.st_ino, tensor.storage_nbytes, os.getpid())
    storage = storages.get(key)
    if storage is None:
        mapped = torch.UntypedStorage.from_file(path, shared=False, nbytes=tensor.storage_nbytes)
        storage = storages[key] = cast("torch.UntypedStorage", mapped)
    return storage


def to_dlpack(tensor: Tensor, **arguments: Any) -> Any:
    """Return a capsule of DLPack.

    PyTorch ignores that memory is read-only, so where it is loaded, the capsule is of a private mapping.
    """
    if "torch" in sys.modules:
        return to_torch(tensor).__dlpack__(**arguments)
    return to_numpy(tensor).__dlpack__(**arguments)


def elements_of(value: Any) -> tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the dtype, the size and the bytes of an array, a tensor of PyTorch, or what NumPy makes an array of."""
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        torch = sys.modules["torch"]
        whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        name = str(whole.dtype).removeprefix("torch.")
        # A dimension of size 1 can have any stride, which `view` would not accept.
        return name, tuple(whole.shape), whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "USVMm" and array.dtype.name not in _named():
        message = f"elements of dtype {array.dtype} cannot be saved; numbers and bools can"
        raise _errors.DTypeError(message)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _named() -> frozenset[str]:
    """Return the dtypes of `ml_dtypes`, whose kind in NumPy is that of raw bytes."""
    return frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"))


class LockedArray(np.ndarray[Any, Any]):
    """An array that can be written until its lock is released. Then its views become read-only too.

    Only views of this class are known: one made by `numpy.asarray` can still be written, without the lock.
    """

    _views: list[weakref.ref[LockedArray]] | None = None

    def __array_finalize__(self, parent: Any) -> None:
        views = getattr(parent, "_views", None)
        if views is not None and isinstance(self.base, LockedArray):
            self._views = views
            views.append(weakref.ref(self))


class Lock:
    """A lock on the elements of a mutable tensor, for `with`.

    With an exclusive lock, the value of `with` is an array that can be written. When the lock is released, the array and
    its views become read-only.
    """

    def __init__(self, tensor: Tensor, exclusive: bool) -> None:
        self._tensor, self._exclusive = tensor, exclusive
        self._held: _Lock | None = None
        self._views: list[weakref.ref[LockedArray]] = []

    def __enter__(self) -> np.ndarray[Any, Any]:
        if self._held is not None:
            raise RuntimeError("this lock is held already")
        held = self._tensor._lock(self._exclusive)
        try:
            array = self._map()
        except BaseException:
            held.release()
            raise
        self._held = held
        return array

    def flush(self) -> None:
        """Make all changes of the storage durable."""
        if self._held is None:
            raise RuntimeError("the lock is not held")
        self._held.flush()

    def __exit__(self, *_: object) -> None:
        for view in self._views:
            if (array := view()) is not None:
                array.flags.writeable = False
        self._views.clear()
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def _map(self) -> np.ndarray[Any, Any]:
        tensor, dtype = self._tensor, numpy_dtype(self._tensor.dtype)
        path = tensor._storage_path
        if tensor.size == 0 or path is None:
            array = np.empty(tensor.shape, dtype).view(LockedArray)
        else:
            access = mmap.ACCESS_WRITE if self._exclusive else mmap.ACCESS_READ
            with open(path, "r+b" if self._exclusive else "rb") as file:
                # The mapping lives as long as the array, so that no use of it can end the process.
                memory = mmap.mmap(file.fileno(), tensor.storage_nbytes, access=access)
            offset = tensor.storage_offset * tensor.itemsize
            array = LockedArray(tensor.shape, dtype, memory, offset, tensor.strides)
        array._views = self._views
        self._views.append(weakref.ref(array))
        return array
