"""Files in other formats as mappings of names to tensors, read in place."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from . import _attributes, _errors, _stridemap
from ._snapshots import Names, checked_name

#: The maximum number of names in a warning about what cannot be read.
_MAX_SHOWN = 3


class File(Names):
    """An open file in another format: a mapping of names to tensors that cannot be changed. See `open`.

    Elements are read when an array of them is needed, and are never mapped: another program may change the file. If it
    does, reading raises a `StateError`. The names are in the order of the file.

    >>> import tempfile, numpy, stridemap
    >>> path = tempfile.mkdtemp() + "/x.npz"
    >>> numpy.savez(path, a=numpy.arange(6).reshape(2, 3), b=numpy.zeros(2))
    >>> with stridemap.open(path) as file:
    ...     print(file.format, list(file), file["a"][1].numpy())
    npz ['a', 'b'] [3 4 5]
    """

    def __init__(self, path: str) -> None:
        opened = _stridemap.open_file(path, True, None)
        self._path, self._skipped = path, opened.skipped()
        self._opened: _stridemap.FileHandle | None = opened
        if self._skipped and not opened.names() and not opened.attributes():
            raise _errors.make("BadFile", self._skipped[0][1])

    @property
    def _handle(self) -> _stridemap.FileHandle:
        if self._opened is None:
            raise ValueError("the file is closed")
        return self._opened

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Tensors of it stay valid. Closing it again does nothing.

        >>> np.save("x.npy", [1, 2])
        >>> file = stridemap.open("x.npy")
        >>> file.close()
        """
        self._opened = None

    @property
    def closed(self) -> bool:
        """Whether the file is closed.

        >>> np.save("x.npy", [1, 2])
        >>> with stridemap.open("x.npy") as file:
        ...     file.closed
        False
        """
        return self._opened is None

    @property
    def path(self) -> str:
        """The path of the file.

        >>> np.save("x.npy", [1, 2])
        >>> os.path.basename(stridemap.open("x.npy").path)
        'x.npy'
        """
        return self._path

    @property
    def format(self) -> str:
        """The format, which is recognized from the contents: safetensors, shard-index, npy, npz, pytorch
        or gguf.

        >>> np.save("x.npy", [1, 2])
        >>> stridemap.open("x.npy").format
        'npy'
        """
        return self._handle.format

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What is in the file besides its tensors: attributes, which cannot be changed.

        These are the metadata of a safetensors or GGUF file, and the plain values of a checkpoint, by key path.

        >>> stridemap.export(store, "x.safetensors")
        >>> dict(stridemap.open("x.safetensors").attrs)
        {}
        """
        return _attributes.fixed(self._handle.attributes())

    def attrs_of(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of a tensor: in a GGUF file, the type of one that no dtype describes. Others have none.

        >>> stridemap.export({"x": np.ones(2, np.float32)}, "x.gguf")
        >>> dict(stridemap.open("x.gguf").attrs_of("x"))
        {}
        """
        return _attributes.fixed(self._handle.attributes(checked_name(name)))

    @property
    def skipped(self) -> dict[str, str]:
        """What cannot be read and was left out: the reasons, by name.

        >>> np.save("x.npy", [1, 2])
        >>> stridemap.open("x.npy").skipped
        {}
        """
        return dict(self._skipped)

    def __reduce__(self) -> tuple[Any, ...]:
        return File, (self._path,)

    def __repr__(self) -> str:
        return "<stridemap.File, closed>" if self.closed else f"<stridemap.File {self._path!r}, {self.format}>"


def open_file(path: str | os.PathLike[str]) -> File:
    """Open a file. Warn about what cannot be read."""
    file = File(os.path.abspath(os.fsdecode(path)))
    if skipped := file.skipped:
        names = ", ".join(f'"{name}"' for name in list(skipped)[:_MAX_SHOWN])
        more = f" and {len(skipped) - _MAX_SHOWN} more" if len(skipped) > _MAX_SHOWN else ""
        reason = next(iter(skipped.values()))
        warnings.warn(f"not readable in {file.path}: {names}{more}: {reason}; see File.skipped", stacklevel=3)
    return file
