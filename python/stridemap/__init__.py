"""A memory-mapped tensor store: zero-copy arrays, views as headers, commits that survive a power cut.

A store is a directory of named tensors. A tensor is a header over a storage: dtype, size, stride and offset. Slices,
transposes and tied tensors can be saved as headers, without copying an element.
"""

from importlib.metadata import version as _version

from ._arrays import Lock
from ._attributes import Attributes
from ._errors import (
    ArgumentError,
    BusyError,
    ConflictError,
    DamagedError,
    DTypeError,
    Error,
    FileError,
    NameExistsError,
    NameNotFoundError,
    OutOfMemoryError,
    RangeError,
    ReadOnlyError,
    StateError,
    StoreExistsError,
    StoreNotFoundError,
)
from ._files import File
from ._groups import Group
from ._history import LogEntry, TagInfo
from ._interop import adopt, export, import_file
from ._remotes import Pruned, Pulled, Pushed, follow, prune, pull
from ._safe_open import safe_open
from ._snapshots import Change, SnapshotView
from ._store import Store, Transaction, open
from ._stridemap import LiveTensor, Tensor

__version__ = _version("stridemap")

__all__ = [
    "ArgumentError",
    "Attributes",
    "BusyError",
    "Change",
    "ConflictError",
    "DTypeError",
    "DamagedError",
    "Error",
    "File",
    "FileError",
    "Group",
    "LiveTensor",
    "Lock",
    "LogEntry",
    "NameExistsError",
    "NameNotFoundError",
    "OutOfMemoryError",
    "Pruned",
    "Pulled",
    "Pushed",
    "RangeError",
    "ReadOnlyError",
    "SnapshotView",
    "StateError",
    "Store",
    "StoreExistsError",
    "StoreNotFoundError",
    "TagInfo",
    "Tensor",
    "Transaction",
    "adopt",
    "export",
    "follow",
    "import_file",
    "open",
    "prune",
    "pull",
    "safe_open",
]


def __dir__() -> list[str]:
    """List what is public, for completion."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
