"""`safe_open`, as in safetensors: tensors one by one, as those of PyTorch or NumPy."""

from __future__ import annotations

from typing import Any

from . import _errors
from ._places import Place, reading
from ._stridemap import Tensor

#: The names that safetensors has for dtypes.
_SAFETENSORS_NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
} | {
    f"{word}{width}": f"{letter}{width}"
    for word, letter, widths in (("float", "F", (16, 32, 64)), ("int", "I", (8, 16, 32, 64)), ("uint", "U", (8, 16, 32, 64)))
    for width in widths
}


class safe_open:
    """Open a store, or a safetensors file or another that `open` reads, for `with`, as `safetensors.safe_open` does.

    `framework` is "pt" for tensors of PyTorch, or "np" for arrays of NumPy. Tensors of PyTorch are moved to `device`. On the
    CPU, those of a store are mapped, and not read.

    >>> import tempfile, numpy
    >>> from stridemap.numpy import save_file
    >>> path = tempfile.mkdtemp() + "/x.smap"
    >>> save_file({"weight": numpy.arange(6).reshape(3, 2)}, path, metadata={"format": "np"})
    >>> with safe_open(path, framework="np") as f:
    ...     print(f.keys(), f.metadata(), f.get_tensor("weight")[0], f.get_slice("weight")[:, 1])
    ['weight'] {'format': 'np'} [0 1] [1 3 5]
    """

    def __init__(self, place: Place, framework: str = "pt", device: Any = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch", "np", "numpy"):
            raise _errors.make("InvalidArgument", f"safe_open: framework must be 'pt' or 'np', and is {framework!r}")
        self._is_torch, self._device = framework not in ("np", "numpy"), device
        self._context = reading(place)
        self._source = self._context.__enter__()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def keys(self) -> list[str]:
        """Return the names of the tensors.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     f.keys()
        ['x']
        """
        return list(self._source)

    def metadata(self) -> dict[str, str] | None:
        """Return the attributes of the store, or the metadata of the file, or `None` if there are none.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     print(f.metadata())
        None
        """
        return dict(self._source._handle.attributes("")) or None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor of PyTorch, or an array of NumPy.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     f.get_tensor("x")[1]
        array([3, 4, 5])
        """
        return self._converted(self._source[name])

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors, by name. Unlike those of `load_file`, tensors of a file that overlap are copied apart.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     {name: array.shape for name, array in f.get_tensors().items()}
        {'x': (2, 3)}
        """
        return {name: self.get_tensor(name) for name in self._source}

    def get_slice(self, name: str) -> Slice:
        """Return a tensor to be sliced: only the elements of a slice are read.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     f.get_slice("x")[1, :2]
        array([3, 4])
        """
        return Slice(self, self._source[name])

    def _converted(self, tensor: Tensor) -> Any:
        return tensor.torch().to(self._device) if self._is_torch else tensor.numpy()


class Slice:
    """A tensor that is not read until a subscript says what is needed. See `safe_open.get_slice`."""

    def __init__(self, opened: safe_open, tensor: Tensor) -> None:
        self._opened, self._tensor = opened, tensor

    def get_shape(self) -> list[int]:
        """Return the size of each dimension.

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     f.get_slice("x").get_shape()
        [2, 3]
        """
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the name that safetensors has for the dtype, such as "F32".

        >>> with stridemap.safe_open(store.path, "np") as f:
        ...     f.get_slice("x").get_dtype()
        'I64'
        """
        return _SAFETENSORS_NAMES.get(self._tensor._dtype_name, self._tensor._dtype_name)

    def __getitem__(self, subscript: Any) -> Any:
        found = self._tensor[subscript]
        if isinstance(found, Tensor):
            return self._opened._converted(found)
        # What lists and masks select is an array, whose dtype PyTorch may not know.
        return self._opened._converted(self._tensor)[subscript] if self._opened._is_torch else found
