"""Tensors of stores where PyTorch expects its own: batches of a `DataLoader`, and state dicts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

import stridemap
from stridemap.torch import load_file, save_model


class Samples(torch.utils.data.Dataset[Any]):
    """Samples as users make them: parts of tensors, in a dict and a tuple."""

    def __init__(self, store: stridemap.Store) -> None:
        self.x, self.label = store["x"], store["label"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index], "pair": (self.label[index], index)}


def fill(path: Path, kind: Any = "sealed") -> None:
    with stridemap.open(path, "x", durable=False) as store:
        store.save("x", np.arange(60, dtype=np.float32).reshape(10, 6), kind=kind)
        store.save("label", np.arange(10), kind=kind)


@pytest.mark.parametrize(
    ("kind", "mapped", "workers", "method"),
    [
        ("sealed", True, 0, None), ("sealed", False, 0, None), ("live", True, 0, None), ("mutable", True, 0, None),
        ("sealed", True, 2, "fork"), ("sealed", False, 2, "fork"), ("live", True, 2, "fork"), ("mutable", True, 2, "spawn"),
    ],
)  # fmt: skip
def test_batches_are_tensors_of_pytorch(kind: Any, mapped: bool, workers: int, method: str | None, path: Path) -> None:
    fill(path, kind)
    samples = Samples(stridemap.open(path, mapped=mapped))
    loader = DataLoader(samples, batch_size=4, num_workers=workers, multiprocessing_context=method, timeout=300 * bool(workers))
    batches = list(loader)
    assert all(type(batch["x"]) is torch.Tensor and batch["x"].dtype == torch.float32 for batch in batches)
    assert torch.cat([batch["x"] for batch in batches]).tolist() == np.arange(60.0).reshape(10, 6).tolist()
    assert [batch["pair"][0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch["pair"][1].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensor_is_a_data_set(path: Path) -> None:
    fill(path)
    [batch] = DataLoader(stridemap.open(path)["x"], batch_size=10)
    assert torch.equal(batch, stridemap.open(path)["x"].torch())


def test_batch_has_tensors_of_stores_and_of_pytorch(store: stridemap.Store) -> None:
    store["x"] = np.ones((2, 3), np.float32)
    row = store["x"][0]
    for batch in ([row, torch.zeros(3)], [torch.zeros(3), row]):
        assert default_collate(batch).sum() == 3
    with pytest.raises(RuntimeError, match="size"):
        default_collate([row, store["x"]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64, torch.uint16])
def test_batch_has_the_dtype_of_the_tensor(dtype: torch.dtype, store: stridemap.Store) -> None:
    rows = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype)
    store["x"] = rows
    batch = default_collate(list(store["x"]))
    assert batch.dtype == dtype and torch.equal(batch, rows)
    batch[0] = 1
    assert store["x"].numpy()[0].tolist() == [0, 1]
    assert torch.equal(default_collate([store["x"][0, 1], store["x"][1, 1]]), rows[:2, 1])


def test_batch_of_groups_is_a_dict_and_saves_nothing(store: stridemap.Store) -> None:
    store.update({"a.x": [1, 2], "b.x": [3, 4]})
    before = store.generation
    batch = default_collate([store["a."], store["b."]])
    assert type(batch) is dict and batch["x"].tolist() == [[1, 2], [3, 4]]
    assert store.generation == before and store["a.x"].tolist() == [1, 2]


def test_order_of_imports_does_not_matter(path: Path) -> None:
    fill(path)
    code = (
        "import stridemap, torch\n"
        f"x = stridemap.open({str(path)!r})['x']\n"
        "print(tuple(torch.utils.data.default_collate([x[0], x[1]]).shape))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(stridemap.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("(2, 6)\n", 0), done.stderr
    done = subprocess.run(
        [sys.executable, "-c", f"import stridemap, sys; stridemap.open({str(path)!r})['x'] + 1; assert 'torch' not in sys.modules"],
        env=environment, timeout=120, check=True,
    )  # fmt: skip


def test_state_dict_is_a_group_a_store_or_a_snapshot(store: stridemap.Store) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()

    saved = model()
    save_model(saved, store, prefix="a")
    for state in (store.group("a."), store["a."], store.snapshot().group("a."), stridemap.open(store.path).group("a.")):
        loaded = model()
        assert not loaded.load_state_dict(state).missing_keys
        assert all(map(torch.equal, loaded.state_dict().values(), saved.state_dict().values()))
        assert type(loaded[0].weight) is nn.Parameter and loaded[0].weight.requires_grad
    store.rename("a.0.weight", "a.0.w")
    with pytest.raises(RuntimeError, match=r'Missing key.*"0.weight"'):
        model().load_state_dict(store["a."])
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(5, 2).load_state_dict({"weight": store["a.0.w"], "bias": store["a.0.bias"]})


def test_parameters_are_tensors_of_pytorch(store: stridemap.Store) -> None:
    """PyTorch makes them of its own tensors only. So the mapped ones are assigned by `load_file`, or `load_model`."""
    save_model(nn.Linear(3, 2), store)
    with pytest.raises(AttributeError, match=r"no attribute 'detach'; use x.torch\(\).detach$"):
        nn.Parameter(store["weight"])
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(AttributeError, match=r"x.torch\(\).is_meta"):
        model.load_state_dict(store, assign=True)
    model.load_state_dict(load_file(store), assign=True)
    assert (model(torch.ones(1, 3)) == (store["weight"].sum(axis=1) + store["bias"])).all()


def test_attribute_of_arrays_and_tensors_says_who_has_it(store: stridemap.Store) -> None:
    x = stridemap.Tensor._of_elements(("uint8", [2], np.arange(2, dtype=np.uint8)))
    for name, use in (("argmax", "use x.numpy().argmax or x.torch().argmax"), ("cpu", "use x.torch().cpu"), ("tofile", "use x.numpy().tofile"), ("attrs", "use store.attrs_of(name)")):
        with pytest.raises(AttributeError, match=f"^'stridemap.Tensor' object has no attribute '{name}'; {use}$".replace("(", r"\(").replace(")", r"\)")):
            getattr(x, name)
    for name in ("shpae", "_cdata"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(x, name)
