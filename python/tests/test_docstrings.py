"""Every public function, class, method and property has an example in its docstring, and the examples are true.

`doctest` finds few of the docstrings that are written in Rust, so the public items are listed here. An example runs in an
empty directory, with the names of its module, and with these:

- `stridemap`, and `np` for NumPy;
- `store`, a new store in that directory, "x.smap", open for reading and writing;
- `x`, its only tensor: `store["x"]` has the integers 0 to 5, as "int64", in 2 rows.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stridemap

#: What needs no example: fields of results, which the examples of what returns them show, and xarray's own attributes.
NEEDLESS = {"stridemap.xarray:Backend.description"}

#: All modules, by their names. Those of an optional package that is not installed are missing.
MODULES: dict[str, ModuleType] = {}
for part in ("stridemap", *(part.name for part in pkgutil.walk_packages(stridemap.__path__, "stridemap."))):
    try:
        MODULES[part] = importlib.import_module(part)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("stridemap"):
            raise


def is_own(item: Any) -> bool:
    return (getattr(item, "__module__", None) or "").startswith("stridemap")


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class of the package adds or changes."""
    for owner in cls.__mro__:
        if not is_own(owner):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_") and (callable(member) or inspect.isdatadescriptor(member)):
                yield f"{owner.__name__}.{name}", member


def items(module: ModuleType) -> dict[str, Any]:
    """Return the public items of a module, and of the classes in it, by their names."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {}
    for name in names:
        item = getattr(module, name)
        if not is_own(item) or not (inspect.isroutine(item) or inspect.isclass(item)):
            continue
        # The base class of the exceptions has the example for all.
        is_exception = inspect.isclass(item) and issubclass(item, stridemap.Error)
        if is_exception and item is not stridemap.Error:
            continue
        found[name] = item
        if inspect.isclass(item) and not is_exception:
            found |= members(item)
    return found


def document(item: Any) -> str:
    """Return the docstring of an item itself: a member has none of a base class that it does not belong to."""
    return inspect.cleandoc(getattr(item, "__doc__", None) or "")


#: The public items of the modules that users import, by the names of both.
PUBLIC = {
    f"{name}:{key}": item
    for name, module in MODULES.items()
    if "._" not in name
    for key, item in items(module).items()
}


def test_every_public_item_has_an_example() -> None:
    assert "stridemap:Tensor.transpose" in PUBLIC
    missing = [name for name, item in PUBLIC.items() if name not in NEEDLESS and ">>>" not in document(item)]
    assert missing == []


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    with stridemap.open("x.smap", "x", durable=False) as store:
        store["x"] = np.arange(6).reshape(2, 3)
        yield {"stridemap": stridemap, "np": np, "store": store, "x": store["x"]}
    # The example of `stridemap.ray` starts Ray.
    if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():
        ray.shutdown()


def check(test: doctest.DocTest) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(test, out=said.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("name", [name for name, item in PUBLIC.items() if ">>>" in document(item)])
def test_example_is_true(name: str, names: dict[str, Any]) -> None:
    item = PUBLIC[name]
    module = inspect.getmodule(getattr(item, "fget", item)) or stridemap
    check(doctest.DocTestParser().get_doctest(document(item), {**vars(module), **names}, name, None, None))


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_other_items_are_true(name: str, names: dict[str, Any]) -> None:
    """The examples of modules, and of what is not public."""
    public = {document(item) for item in PUBLIC.values()}
    for test in doctest.DocTestFinder().find(MODULES[name], name):
        if test.examples and inspect.cleandoc(test.docstring) not in public:
            test.globs |= names
            check(test)
