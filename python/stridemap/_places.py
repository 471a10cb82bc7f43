"""Where `save_file` and `load_file` save and load, for NumPy and for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import _errors
from ._files import File
from ._groups import Group
from ._store import Store, Transaction, open

#: An open store, or a path. What is only read can also be an open file in another format, or its path.
Place = Store | File | str | os.PathLike[str]


def check_first(call: str, what: str, value: Any, *, is_right: bool) -> None:
    """Refuse a first argument that is not what comes first, as if arguments were exchanged.

    >>> check_first("save_model(model, place)", "the model", "x.smap", is_right=False)
    Traceback (most recent call last):
    TypeError: save_model(model, place): the model comes first, and the first argument is of type str
    """
    if not is_right:
        raise TypeError(f"{call}: {what} comes first, and the first argument is of type {type(value).__name__}")


def check_place(place: Any) -> None:
    """Refuse what is neither a store nor a path, such as a group."""
    if not isinstance(place, Store | File | str | os.PathLike):
        advice = f"; give the store, and prefix={place.prefix!r}" if isinstance(place, Group) else ""
        raise TypeError(f"the place is an open store or a path, not of type {type(place).__name__}{advice}")


@contextmanager
def writing(place: Place) -> Iterator[Store]:
    """Open a store to be changed."""
    check_place(place)
    if isinstance(place, File):
        raise _errors.make("ReadOnly", f"{place.path}: a file can only be read; save to a store, or see stridemap.export")
    if isinstance(place, Store):
        # What is replaced or removed is decided on what is there now.
        place.refresh()
        yield place
    else:
        if os.path.isfile(place):
            message = f"save to {os.fspath(place)!r}: this is a file, and a store is a directory; choose another path, or write a file with stridemap.export"
            raise _errors.make("AlreadyExists", message)
        with open(place, "a") as store:
            yield store


@contextmanager
def reading(place: Place) -> Iterator[Store | File]:
    """Open a store or a file to be read."""
    check_place(place)
    if isinstance(place, Store | File):
        yield place
    else:
        with open(place) as opened:
            yield opened


@contextmanager
def replacing(
    place: Place, prefix: str, names: Collection[str], metadata: Mapping[str, str] | None, replace: bool, action: str
) -> Iterator[tuple[Transaction, set[str]]]:
    """Begin a transaction that saves the tensors of a prefix: those of `names`, and no others.

    Yield it, and the names with the prefix. Removing others, or attributes of the prefix that are not in the
    `metadata`, must be allowed by `replace`.
    """
    for key, value in (metadata or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"metadata are texts, and the value of {key!r} is of type {type(value).__name__}")
    new = {prefix + name for name in names}
    with writing(place) as store, store.transaction() as txn:
        removed, attributes = set(txn._handle.names(prefix)) - new, txn.attrs_of(prefix)
        lost = set() if metadata is None else set(attributes) - metadata.keys()
        if not replace and (removed or lost):
            raise _errors.make("NameExists", _refusal(f"{action} to {store.path}", prefix, removed, lost))
        for name in removed:
            del txn[name]
        for key in lost:
            del attributes[key]
        attributes.update(metadata or {})
        yield txn, new


def ended(prefix: str) -> str:
    """Return a prefix with a separator at its end, so that "model1" is not a prefix of "model10.weight".

    >>> ended("model1"), ended("model1/"), ended("")
    ('model1.', 'model1/', '')
    """
    return prefix if not prefix or prefix.endswith((".", "/")) else f"{prefix}."


def _refusal(request: str, prefix: str, tensors: set[str], attributes: set[str]) -> str:
    """Return the message of an error that says what a save would remove."""
    request += f' with the prefix "{prefix}"' if prefix else ""
    what = " and ".join(_listed(kind, found) for kind, found in (("tensor", tensors), ("attribute", attributes)) if found)
    advice = f"choose {'another' if prefix else 'a'} prefix, or give replace=True to remove what is there"
    return f"{request}: it would remove {what}; {advice}"


def _listed(kind: str, found: set[str]) -> str:
    names = [f'"{name}"' for name in sorted(found)[:3]]
    if len(found) > len(names):
        names.append(f"{len(found) - len(names)} more")
    return f"{len(found)} {kind if len(found) == 1 else f'{kind}s'}: {', '.join(names)}"
