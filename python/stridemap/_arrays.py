"""Converts tensors to NumPy arrays and PyTorch tensors, and such arrays and tensors to elements that can be saved."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from . import _errors
from ._stridemap import Lent, LockHandle, Tensor


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of NumPy with this name, from `ml_dtypes` if NumPy has none.

    >>> numpy_dtype("float32"), numpy_dtype("bfloat16")
    (dtype('float32'), dtype(bfloat16))
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    if not hasattr(ml_dtypes, name):
        raise _errors.DTypeError(f"NumPy and ml_dtypes have no dtype {name}: use view_dtype('uint8')")
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, which may be a name or a dtype of NumPy or PyTorch.

    >>> dtype_name(np.float32), dtype_name("f4"), dtype_name("bfloat16")
    ('float32', 'float32', 'bfloat16')
    """
    if "torch" in sys.modules and isinstance(dtype, sys.modules["torch"].dtype):
        return str(dtype).removeprefix("torch.")
    try:
        name: str = np.dtype(dtype).name
        return name
    except TypeError:
        return str(dtype)


@cache
def can_save(dtype_name: str) -> bool:
    """Return whether a store has the dtype with this name."""
    try:
        Tensor._of_elements((dtype_name, (0,), np.empty(0, np.uint8)))
    except TypeError:
        return False
    return True


def rows(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the views of a tensor along its first dimension."""
    return (tensor[index] for index in range(len(tensor)))


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements as an array: of the mapped memory if possible, and otherwise a copy."""
    return tensor.numpy() if tensor._lend() is not None else tensor.copy().numpy()


def to_list(tensor: Tensor) -> Any:
    """Return the elements as nested lists: see `Tensor.tolist`."""
    return to_numpy(tensor).tolist()


def operand(value: Any) -> Any:
    """Return what NumPy calculates with: arrays of tensors, and everything else as it is."""
    if isinstance(value, Tensor):
        return to_numpy(value)
    if isinstance(value, tuple):
        return tuple(map(operand, value))
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        name, shape, flat = elements_of(value, "convert a tensor of PyTorch")
        return flat.view(numpy_dtype(name)).reshape(shape)
    return value


def is_same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same elements of the same storage, in the same order."""
    own, theirs = ((part._dtype_name, part.shape, part.stride(), part.storage_offset) for part in (tensor, other))
    return own == theirs and tensor.shares_storage(other)


def take(tensor: Tensor, subscript: Any) -> np.ndarray[Any, Any]:
    """Return a copy of the elements that a subscript with lists or masks selects, as NumPy does."""
    parts = operand(subscript)
    origin = tensor._origin
    # A store that verifies what it reads would read all elements to lend them.
    is_lent = (origin is None or not origin[2]["verify"]) and tensor._lend() is not None
    if tensor.ndim > 0 and not is_lent and (rows := _rows(tensor, parts)) is not None:
        # Not all elements are read.
        index = Tensor._of_elements(elements_of(rows, "index"))
        return tensor._rows(index).numpy().copy()
    selected: np.ndarray[Any, Any] = to_numpy(tensor)[parts]
    return selected


def _rows(tensor: Tensor, parts: Any) -> np.ndarray[Any, Any] | None:
    """Return the positions of the rows that a list or a mask selects, if it selects rows and nothing else."""
    if isinstance(parts, tuple):
        return None
    index = np.asarray(parts)
    if index.ndim != 1:
        return None
    if index.dtype == bool and len(index) == len(tensor):
        return np.flatnonzero(index)
    if index.dtype.kind not in "iu" or (index >= len(tensor)).any() or (index < -len(tensor)).any():
        return None
    return np.where(index < 0, index + len(tensor), index).astype(np.int64)


def assign(tensor: Tensor, subscript: Any, value: Any) -> None:
    """Change elements of a mutable tensor, under a lock taken for it."""
    # In `x[0] += 1`, Python assigns the changed part to itself. Another process may have changed it meanwhile.
    if isinstance(value, Tensor) and value.shares_storage(tensor):
        part = tensor[subscript]
        if isinstance(part, Tensor) and is_same(part, value):
            return
    # Before the lock is taken: the value may be on the same storage, which this thread could not lock again.
    value, subscript = operand(without_mask(value, "change elements")), operand(subscript)
    try:
        with Lock(tensor, True) as array:
            array[subscript] = value
    except _errors.ArgumentError as error:
        raise _errors.make(error.kind, f"change elements: {error}") from None


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


def open_storage(tensor: Tensor, flags: int) -> int | None:
    """Open the file of a storage. Return `None` if it is not at its path in the store."""
    path = tensor._storage_path
    if path is None:
        return None
    try:
        file = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    stat = os.fstat(file)
    if (stat.st_dev, stat.st_ino) != tensor._file_id:
        os.close(file)
        return None
    return file


def to_dlpack(tensor: Tensor, **arguments: Any) -> Any:
    """Return a capsule of DLPack.

    PyTorch ignores that memory is read-only. So if PyTorch is imported, the memory is a private mapping or a copy.
    """
    if arguments.get("copy") is False and tensor._lend() is None:
        raise BufferError("the elements are not mapped, so sharing them needs a copy")
    if "torch" in sys.modules:
        from . import _torch_storages

        if arguments.get("copy") is False and not _torch_storages.can_map(tensor):
            raise BufferError("PyTorch cannot map this tensor, so sharing the elements needs a copy")
        return tensor.torch().__dlpack__(**arguments)
    return to_numpy(tensor).__dlpack__(**arguments)


def of_dtype(numbers: Any, tensor: Tensor, action: str) -> Any:
    """Return numbers that have no dtype of their own, such as those of lists, as an array with the dtype of a tensor.

    What the dtype cannot hold stays as it is, and is refused later, as elements of a different dtype are.
    """
    numbers = without_mask(numbers, action)
    array, dtype = np.asarray(numbers), np.dtype(tensor.dtype)
    if array.dtype.kind not in "iufb" or (array.dtype.kind != "b" and dtype.kind == "b"):
        return numbers
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    return converted if dtype.kind not in "iu" or np.array_equal(converted, array) else numbers


def elements_of(value: Any, action: str) -> tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the dtype, the size and the bytes of an array, a tensor of PyTorch, or what NumPy makes an array of.

    `action` is what an error says was requested.
    """
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        from . import _torch_tensors

        return _torch_tensors.elements_of_plain(_torch_tensors.plain(action, value))
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    array = np.asarray(without_mask(value, action))
    if not can_save(array.dtype.name):
        advice = "numbers and bools can; convert them"
        if isinstance(value, Mapping):
            advice = "save what a mapping has by its names: store.update(...), or store.group('m.').update(...)"
        elif array.dtype.names:
            advice = "save each field, such as array['x']"
        elif array.dtype.kind in "mM":
            read = "store[name].numpy().view(store.attrs_of(name)['dtype'])"
            advice = f"save array.view('int64'), and store.attrs_of(name)['dtype'] = str(array.dtype), and read {read}"
        raise _errors.DTypeError(f"{action}: elements of dtype {array.dtype} cannot be saved; {advice}")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def without_mask(value: Any, action: str) -> Any:
    """Return a value for `numpy.asarray`, which would drop the mask of a masked array. Refuse masked arrays."""
    if isinstance(value, list | tuple):
        plain = (bool, int, float, complex)
        return [part if type(part) in plain else without_mask(part, action) for part in value]
    if not hasattr(value, "__array__") or isinstance(value, np.generic):
        return value
    # Dask's own conversion drops the mask.
    array = np.asanyarray(value.compute() if hasattr(value, "__dask_graph__") else value)
    if isinstance(array, np.ma.MaskedArray):
        advice = "save array.filled(...), or array.data and array.mask as two tensors"
        raise _errors.make("InvalidArgument", f"{action}: the mask of a masked array cannot be saved; {advice}")
    return array


class LockedArray(np.ndarray[Any, Any]):
    """An array of locked elements. When the lock is released, the array and its views become read-only.

    This applies only to views of this class. Other views, such as those of `numpy.asarray`, `torch.from_numpy` and
    `memoryview`, can still be written, without the lock. If the `Lock` and all its arrays are dropped before the lock is
    released, it is released then, with a `ResourceWarning`.
    """

    _lock: Lock | None = None

    def __array_finalize__(self, parent: Any) -> None:
        lock = getattr(parent, "_lock", None)
        if lock is not None and isinstance(self.base, LockedArray):
            lock._add(self)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return the result of a calculation as a plain array."""
        if array is self:
            return array
        plain = np.asarray(array)
        return plain[()] if return_scalar or plain.ndim == 0 else plain


class Lock:
    """A lock on the elements of a mutable tensor, for `with`.

    The value of `with` is an array of the elements, which can be written under an exclusive lock. When the lock is
    released, the array and its views become read-only.

    >>> store.save("w", [1, 2], kind="mutable")
    >>> with store["w"].lock() as array:
    ...     array[0] = 5
    >>> store["w"].tolist()
    [5, 2]
    """

    def __init__(self, tensor: Tensor, exclusive: bool) -> None:
        self._tensor, self._exclusive = tensor, exclusive
        self._held: LockHandle | None = None
        self._views: dict[int, weakref.ref[LockedArray]] = {}

    def __enter__(self) -> np.ndarray[Any, Any]:
        if self._held is not None:
            raise RuntimeError("this lock is held already")
        held = self._tensor._lock(self._exclusive)
        try:
            array = self._map()
        except BaseException:
            held.abandon()
            raise
        self._held = held
        return array

    @property
    def was_interrupted(self) -> bool:
        """Whether a change of the storage was interrupted before this lock was taken.

        Only the lock of `Tensor.allow_interrupted()` can be taken then. When it is released, and was exclusive, the
        elements count as whole, unless an exception ends the block.

        >>> store.save("w", [1, 2], kind="mutable")
        >>> lock = store["w"].lock()
        >>> with lock:
        ...     lock.was_interrupted
        False
        """
        if self._held is None:
            raise RuntimeError("the lock is not held")
        return self._held.was_interrupted

    def flush(self) -> None:
        """Make all changes of the storage durable.

        >>> store.save("w", [1, 2], kind="mutable")
        >>> lock = store["w"].lock()
        >>> with lock as array:
        ...     array[0] = 5
        ...     lock.flush()
        """
        if self._held is None:
            raise RuntimeError("the lock is not held")
        self._held.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        held, self._held = self._held, None
        try:
            # First, because others may lock and change the elements once the lock is released.
            for view in list(self._views.values()):
                if (array := view()) is not None:
                    array.flags.writeable = False
            self._views.clear()
        except BaseException:
            kind = BaseException
            raise
        finally:
            if held is not None:
                end = held.release if kind is None else held.abandon
                end()

    def _add(self, array: LockedArray) -> None:
        """Make an array read-only when the lock is released."""
        array._lock, views, key = self, self._views, id(array)
        views[key] = weakref.ref(array, lambda _: views.pop(key, None))

    def _map(self) -> np.ndarray[Any, Any]:
        tensor, dtype = self._tensor, self._tensor.dtype
        if tensor.size == 0:
            array = np.empty(tensor.shape, dtype).view(LockedArray)
        elif tensor._origin is not None and not tensor._origin[2]["mapped"]:
            # The store is not mapped, which the library allows for a shared lock only.
            copy = to_numpy(tensor)
            copy.flags.writeable = False
            return copy
        else:
            file = open_storage(tensor, os.O_RDWR if self._exclusive else os.O_RDONLY)
            if file is None:
                message = f"lock: {tensor._storage_path} is not the file of this tensor; open the store again"
                raise _errors.make("Stale", message)
            try:
                access = mmap.ACCESS_WRITE if self._exclusive else mmap.ACCESS_READ
                # The mapping lives as long as the array, so that no use of the array can end the process.
                memory = mmap.mmap(file, tensor.storage_nbytes, access=access)
            finally:
                os.close(file)
            # While this array exists, nothing can close the mapping.
            whole = np.frombuffer(memory, np.uint8)
            offset = tensor.storage_offset * tensor.itemsize
            array = LockedArray(tensor.shape, dtype, whole, offset, tensor.strides)
        self._add(array)
        return array
