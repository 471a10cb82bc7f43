"""Code that was written for safetensors runs with the import changed, as far as the guide says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import stridemap
import stridemap.numpy
import stridemap.torch

#: The snippets in the README and the guide of safetensors, on the CPU.
GUIDE = {
    "save": """
import torch
from safetensors import safe_open
from safetensors.torch import save_file

tensors = {
   "weight1": torch.zeros((16, 16)),
   "weight2": torch.zeros((16, 16))
}
save_file(tensors, "model.safetensors")

tensors = {}
with safe_open("model.safetensors", framework="pt", device="cpu") as f:
   for key in f.keys():
       tensors[key] = f.get_tensor(key)
""",
    "slice": """
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

save_file({"embedding": torch.arange(6).reshape(2, 3), "attention": torch.zeros((2, 3))}, "model.safetensors")

tensors = {}
with safe_open("model.safetensors", framework="pt", device="cpu") as f:
    tensor_slice = f.get_slice("embedding")
    vocab_size, hidden_dim = tensor_slice.get_shape()
    tensor = tensor_slice[:, : hidden_dim - 1]
    part, row, dtype = tensor_slice[0:1], tensor_slice[1], tensor_slice.get_dtype()
    rest = tensor_slice[..., 1:]

loaded = load_file("model.safetensors")
""",
    "numpy": """
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

save_file({"a": np.zeros((2, 2)), "b": np.zeros((2, 3), dtype=np.uint8)}, "./model.safetensors", {"framework": "np"})
loaded = load_file("./model.safetensors")
with safe_open("model.safetensors", framework="numpy") as f:
    keys, a, metadata = sorted(f.keys()), f.get_tensor("a"), f.metadata()
""",
    "shared": """
import torch
from safetensors.torch import load_model, save_model

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(100, 100)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))

model = Model()
save_model(model, "model.safetensors")
missing, unexpected = load_model(model, "model.safetensors")
missing, unexpected = list(missing), list(unexpected)
""",
    "metadata": """
import torch
from safetensors import safe_open
from safetensors.torch import save_file

save_file({"embedding": torch.zeros((2, 2))}, "model.safetensors", metadata={"format": "pt"})
with safe_open("model.safetensors", framework="pt") as f:
    metadata, tensors = f.metadata(), f.get_tensors()
""",
}

DOCUMENTED: list[Callable[..., Any]] = [
    getattr(module, name)
    for module in (safetensors.torch, safetensors.numpy)
    for name in ("save_file", "load_file", "save", "load", "save_model", "load_model")
    if hasattr(module, name)
]


def docstring_snippets() -> dict[str, str]:
    found = {}
    for function in DOCUMENTED:
        for block in re.findall(r"```python\n(.*?)```", inspect.getdoc(function) or "", re.DOTALL):
            found[f"{function.__module__}.{function.__name__}"] = block
    return found


def result(snippet: str, library: str) -> dict[str, object]:
    """Run a snippet. Return what its variables are, with tensors and arrays as lists."""
    names: dict[str, object] = {}
    exec(re.sub(r"(from|import) safetensors\b", rf"\1 {library}", snippet), names)

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in sorted(value.items())}
        return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor | np.ndarray) else value

    kinds = (dict, list, str, int, torch.Tensor, np.ndarray)
    return {name: plain(value) for name, value in names.items() if isinstance(value, kinds) and name != "__builtins__"}


@pytest.mark.parametrize("snippet", [*GUIDE, *docstring_snippets()])
def test_snippets_of_safetensors_run_with_the_import_changed(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for library in ("safetensors", "stridemap"):
        (tmp_path / library / "my_folder").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / library)
        safetensors.torch.save_file({"embedding": torch.arange(4)}, "my_folder/bert.safetensors")
        found[library] = result((GUIDE | docstring_snippets())[snippet], library)
        for name in ("byte_data", "data"):
            if isinstance(data := found[library].pop(name, None), bytes):
                found[library][name] = {key: tensor.tolist() for key, tensor in safetensors.torch.load(data).items()}
    assert found["stridemap"] == found["safetensors"]


def test_docstrings_of_safetensors_have_snippets() -> None:
    assert len(docstring_snippets()) >= 8


@pytest.fixture(params=["store", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tensors, path = {"w": torch.arange(6.0).view(2, 3), "n": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "x.safetensors"
    save = stridemap.torch.save_file if request.param == "store" else safetensors.torch.save_file
    save(tensors, path, {"format": "pt"})
    return path


def test_safe_open_opens_stores_and_files_alike(opened: Path) -> None:
    with stridemap.safe_open(opened) as file:
        assert sorted(file.keys()) == ["n", "w"] and file.metadata() == {"format": "pt"}
        assert file.get_tensor("w").tolist() == [[0, 1, 2], [3, 4, 5]] and file.get_tensor("n").dtype == torch.bfloat16
        part = file.get_slice("w")
        assert part.get_shape() == [2, 3] and part.get_dtype() == "F32" and file.get_slice("n").get_dtype() == "BF16"
        assert part[:, 1:].tolist() == [[1, 2], [4, 5]] and part[1].tolist() == [3, 4, 5] and part[1, 2].item() == 5
        with pytest.raises(KeyError):
            file.get_tensor("x")
    with pytest.raises(ValueError, match="closed"):
        file.keys()
    with stridemap.safe_open(opened, framework="np") as file:
        assert isinstance(file.get_tensor("w"), np.ndarray) and file.get_slice("w")[0].tolist() == [0, 1, 2]
    with stridemap.safe_open(opened, "pt", "meta") as file:
        assert file.get_tensor("w").device.type == file.get_slice("w")[0].device.type == "meta"
    with pytest.raises(ValueError, match="framework must be 'pt' or 'np', and is 'tf'"):
        stridemap.safe_open(opened, framework="tf")


def test_safe_open_of_an_open_store_leaves_it_open(store: stridemap.Store) -> None:
    store["x"] = [1, 2]
    with stridemap.safe_open(store, "np") as file:
        assert file.keys() == ["x"] and file.metadata() is None
    assert store["x"].numpy().tolist() == [1, 2]


def test_every_dtype_has_the_name_that_safetensors_gives_it(tmp_path: Path) -> None:
    names = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16"]
    names += ["float32", "float64", "bool", "complex64", *(f"{word}{size}" for word in ("int", "uint") for size in (8, 16, 32, 64))]
    tensors = {name: torch.zeros(2, dtype=torch.uint8).to(getattr(torch, name)) for name in names}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as theirs, stridemap.safe_open(tmp_path / "x.safetensors") as ours:
        for name in names:
            assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype(), name


def test_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(4), "y": torch.ones(2, 2)}
    assert safetensors.torch.load(stridemap.torch.save(tensors, {"a": "b"}))["y"].tolist() == [[1, 1], [1, 1]]
    assert stridemap.torch.load(safetensors.torch.save(tensors))["x"].tolist() == [0, 1, 2, 3]
    loaded = stridemap.numpy.load(stridemap.numpy.save({"x": np.arange(3)}))
    assert loaded["x"].tolist() == [0, 1, 2]
    (tmp_path / "x").write_bytes(stridemap.torch.save(tensors, {"a": "b"}))
    with safetensors.safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == {"a": "b"}
    for data in (b"", b"short", b"\xff" * 100):
        with pytest.raises(ValueError, match="bytes"):
            stridemap.torch.load(data)
