"""The exceptions of the package. Each is also one of Python's own, so that callers can catch what they expect."""

from __future__ import annotations

import errno
from typing import Any


class Error(Exception):
    """An error of the library. The message states the request, the current state, and what to do.

    >>> try:
    ...     store["y"]
    ... except KeyError as error:
    ...     print(type(error).__name__, error.kind)
    NameNotFoundError NameNotFound
    """

    #: The kind of error, such as "NameNotFound": the name of the library's `ErrorKind` in Rust.
    kind: str = "InvalidArgument"

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else ""


class NameNotFoundError(Error, KeyError):
    """The store has no tensor, or no tag, with this name."""

    kind = "NameNotFound"

    #: Where the name was looked up, until somebody reads the message: similar names take longer to find than that.
    _looked_up: tuple[Any, str] | None = None

    @classmethod
    def of(cls, names: Any, name: str) -> NameNotFoundError:
        """Return the error for a name that a store, a snapshot or a transaction does not have."""
        error = cls(f'load "{name}": no tensor with this name')
        error._looked_up = (names, name)
        return error

    def __str__(self) -> str:
        looked_up, self._looked_up = self._looked_up, None
        if looked_up is not None:
            names, name = looked_up
            try:
                names._handle.load(name)
            except NameNotFoundError as error:
                self.args = error.args
            except Exception:
                pass  # The store was closed, or the transaction has ended.
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        str(self)
        reduced: tuple[Any, ...] = super().__reduce__()  # type: ignore[assignment]
        return reduced


class NameExistsError(Error, ValueError):
    """A tensor or a tag with this name exists, and the change does not replace it."""


class StoreNotFoundError(Error, FileNotFoundError):
    """There is no store and no file at the path."""


class StoreExistsError(Error, FileExistsError):
    """The path of a new store or file already exists."""


class DamagedError(Error, ValueError):
    """The bytes are damaged, are not those of a store, or have a format version that is not supported."""


class DTypeError(Error, TypeError):
    """The dtype does not match, or is not supported."""


class RangeError(Error, IndexError):
    """An axis, an index or a range is out of bounds."""


class BusyError(Error, TimeoutError):
    """Another process or thread holds the lock."""


class ReadOnlyError(Error, PermissionError):
    """The store cannot be changed, an external file may not be opened, or files on a network file system not mapped."""


class FileError(Error, OSError):
    """The operating system returned an error."""


class MissingFileError(FileError, FileNotFoundError):
    """There is no such file, or no such directory."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory for the result."""


class StateError(Error, RuntimeError):
    """The handle is no longer valid, a commit has an unknown result, an external file has changed, or a change was interrupted."""


class ConflictError(StateError):
    """Another commit changed what this one depends on, or a generation is gone. Nothing was changed: read again."""


class ArgumentError(Error, ValueError):
    """An argument is not valid, or the tensor or its storage does not allow the request."""


#: The classes of the kinds that are not an `ArgumentError`.
_CLASSES: dict[str, type[Error]] = {
    "Io": FileError,
    "NotFound": StoreNotFoundError,
    "AlreadyExists": StoreExistsError,
    "NotAStore": DamagedError,
    "UnsupportedVersion": DamagedError,
    "Corrupt": DamagedError,
    "BadFile": DamagedError,
    "NameNotFound": NameNotFoundError,
    "NameExists": NameExistsError,
    "DTypeMismatch": DTypeError,
    "OutOfRange": RangeError,
    "OutOfMemory": OutOfMemoryError,
    "Busy": BusyError,
    "ReadOnly": ReadOnlyError,
    "NotAllowed": ReadOnlyError,
    "ExternalChanged": StateError,
    "Stale": StateError,
    "Conflict": ConflictError,
    "CommitUnknown": StateError,
    "Poisoned": StateError,
    "Interrupted": StateError,
}

#: The `errno` of errors that do not come from the operating system, by kind.
_NUMBERS = {
    "NotFound": errno.ENOENT,
    "AlreadyExists": errno.EEXIST,
    "Busy": errno.ETIMEDOUT,
    "ReadOnly": errno.EACCES,
    "NotAllowed": errno.EACCES,
}

#: Words of Rust in messages of the library, and what replaces them here. Longer ones are before those that they contain.
_WORDS = {
    "StoreOptions::external(ExternalFiles::Beside) (--external beside)": "external='beside'",
    "StoreOptions::external(ExternalFiles::Anywhere) (--external anywhere)": "external='anywhere'",
    "use open, or StoreOptions::allow_network_mapping if only one machine writes it": "open the store with mapped=False",
    "open it with open_mapped": "open it with mapped=True",
    "open_mapped ": "open ",
    ", remove that tensor first, or replace it, with Transaction::on_existing": ", remove that tensor first, or give replace=True",
    ", remove that tag first, or replace it, with Transaction::on_existing": ", remove that tag first, or give replace=True",
    "use save_as with StorageKind::Mutable to make a copy that can be locked": (
        "save the name again with other elements, or with kind='mutable' to change them in place"
    ),
    "read and write its elements with as_live": "read and write its elements with live()",
    "lock_exclusive: ": "lock: ",
    "lock_shared: ": "lock(exclusive=False): ",
    "the file already exists, and may not be replaced": "the file already exists; give replace=True to replace it",
    "state their type (--untyped, or ForeignOptions::untyped)": "state their type (untyped=..., of import_file)",
    "say so (--untyped, or ForeignOptions::untyped)": "say so (untyped='bfloat16', of import_file)",
    "with Store::materialize or stridemap materialize": "with the command stridemap materialize",
    "no tag, handle or snapshot keeps it": "no tag, store or snapshot keeps it",
    "retain: the policy has no rule; say which tags to keep, or remove": "prune: no rule keeps a tag; give keep_last, keep_within or keep_every, or remove",
    "use save_as with StorageKind::Mutable to make": "save it with kind=\"mutable\" to make",
    "use save_as with StorageKind::Live to make": "save it with kind=\"live\" to make",
    "use save_as, which makes": "save the tensor again, which makes",
    "clone_data makes": "copy() makes",
    "allow_interrupted; dropping an exclusive guard that was taken through it ends": "allow_interrupted(); releasing an exclusive lock of it ends",
    "exclusive guard of the storage; use that guard, or drop it first": "exclusive lock of the storage; use its array, or release it first",
    "shared guard of the storage; drop it first": "shared lock of the storage; release it first",
    "a guard of the storage": "a lock of the storage",
    "the guard was taken": "the lock was taken",
    "this thread has an appender for the storage, or a transaction that has appended to it; drop the appender, or commit or drop the transaction, first": "this thread has a transaction that has appended to the storage; commit or abort it first",
}


def make(kind: str, message: str, number: int | None = None) -> Error:
    """Return the exception for a kind of error of the library. `number` is the `errno` of the operating system."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    missing = kind == "Io" and number == errno.ENOENT
    error = MissingFileError(message) if missing else _CLASSES.get(kind, ArgumentError)(message)
    error.kind = kind
    if isinstance(error, OSError):
        error.errno = _NUMBERS.get(kind) if number is None else number
    return error
