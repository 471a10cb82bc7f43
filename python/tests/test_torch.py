"""State dicts, models and checkpoints come back with the values and the relations that they had."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from safetensors.torch import save_file as save_safetensors
from torch import nn

import stridemap
from stridemap.torch import load_checkpoint, load_file, load_model, save_checkpoint, save_file, save_model

DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    as_bytes = lambda x: x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)  # noqa: E731
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a), as_bytes(b))


def related(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return tensors of one storage, and one of another."""
    whole = (torch.arange(2400) % 5).to(torch.float32).to(dtype).view(40, 60)
    return {
        "whole": whole, "tied": whole, "transposed": whole.t(), "slice": whole[1:3, ::2], "row": whole[2],
        "scalar": whole[0, 1], "expanded": whole[:, :1].expand(40, 9), "other": whole.clone(),
        "empty": whole[:0],
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_that_share_memory_still_do(dtype: torch.dtype, path: Path) -> None:
    tensors = related(dtype)
    save_file(tensors, path)
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    base, old_base = loaded["whole"].data_ptr(), tensors["whole"].data_ptr()
    for name, tensor in tensors.items():
        assert same_bytes(loaded[name], tensor), name
        if name not in ("empty", "other"):
            assert loaded[name].stride() == tensor.stride(), name
            assert loaded[name].data_ptr() - base == tensor.data_ptr() - old_base, name
    assert loaded["other"].untyped_storage().data_ptr() != loaded["whole"].untyped_storage().data_ptr()
    stored = sum(file.stat().st_size for file in (path / "storages").glob("*.bin"))
    assert stored <= 2 * (tensors["whole"].nbytes + 64), "two storages"


def test_safetensors_refuses_what_comes_back_here(path: Path) -> None:
    tensors = related(torch.float32)
    with pytest.raises(RuntimeError, match="share memory"):
        save_safetensors({"whole": tensors["whole"], "tied": tensors["tied"]}, str(path) + ".safetensors")
    with pytest.raises(ValueError, match="non contiguous"):
        save_safetensors({"transposed": tensors["transposed"]}, str(path) + ".safetensors")


def test_what_the_guide_says_of_other_libraries(tmp_path: Path) -> None:
    tensors, large = related(torch.float32), torch.zeros(1_000_000)
    with pytest.raises(ValueError, match="non contiguous"):
        save_safetensors({"expanded": tensors["expanded"]}, tmp_path / "x.safetensors")
    save_safetensors({"slice": large[:10]}, tmp_path / "slice.safetensors")
    torch.save({"slice": large[:10]}, tmp_path / "slice.pt")
    assert (tmp_path / "slice.safetensors").stat().st_size < 1000
    assert (tmp_path / "slice.pt").stat().st_size > large.nbytes
    torch.save(tensors, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True)
    assert loaded["tied"].data_ptr() == loaded["whole"].data_ptr()
    assert loaded["transposed"].stride() == (1, 60) and loaded["expanded"].stride() == (60, 0)
    model = Tied()
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert len(file.keys()) == len(model.state_dict()) - 1


def test_only_the_bytes_that_are_reached_are_saved(path: Path) -> None:
    large = torch.zeros(1_000_000)
    save_file({"a": large[500_000:500_100:2], "b": large[500_050:500_060]}, path)
    assert sum(file.stat().st_size for file in (path / "storages").iterdir()) < 2000
    assert load_file(path)["b"].tolist() == [0.0] * 10


def test_failed_save_changes_nothing(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path)
    for wrong in (torch.ones(2, device="meta"), torch.eye(3).to_sparse(), [1.0]):
        with pytest.raises(TypeError, match="wrong"):
            save_file({"a": torch.zeros(2), "wrong": wrong}, path)  # type: ignore[dict-item]
    assert load_file(path)["a"].tolist() == [1.0, 1.0]
    conjugate = torch.tensor([1 + 2j]).conj()
    save_file({"c": conjugate, "n": conjugate.imag}, path, replace=True)
    assert load_file(path)["c"].tolist() == [1 - 2j] and load_file(path)["n"].tolist() == [-2.0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.norm = nn.BatchNorm1d(16)
        self.decoder = nn.Linear(16, 50, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.norm(self.layer(self.embedding(x)).mean(1)))


@pytest.mark.parametrize("assign", [False, True])
def test_model_comes_back_tied_and_computes_the_same(path: Path, assign: bool) -> None:
    torch.manual_seed(1)
    model, tokens = Tied().eval(), torch.randint(0, 50, (3, 7))
    save_model(model, path)
    other = Tied().eval()
    assert load_model(other, path, assign=assign) == ([], [])
    assert torch.equal(model(tokens), other(tokens))
    assert other.decoder.weight is other.embedding.weight and other.decoder.weight.requires_grad
    other.train()(tokens).sum().backward()
    torch.optim.SGD(other.parameters(), 0.1).step()
    assert torch.equal(load_file(path)["embedding.weight"], model.embedding.weight)
    smaller = nn.Linear(16, 50)
    with pytest.raises(RuntimeError):
        load_model(smaller, path)
    missing, unexpected = load_model(smaller, path, prefix="decoder.", strict=False)
    assert (missing, unexpected) == (["bias"], [])


def test_loading_a_model_takes_no_memory(path: Path) -> None:
    program = """
import sys, torch
from stridemap.torch import load_model
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:"))
torch.set_num_threads(1)
model = torch.nn.Linear(4096, 8192, bias=False, device="meta")
before = anonymous()
load_model(model, sys.argv[1], assign=True)
print(float(model.weight.detach().sum()), anonymous() - before)
"""
    save_file({"weight": torch.ones(8192, 4096)}, path)
    run = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    total, grown = run.stdout.split()
    assert float(total) == 8192 * 4096
    # In KiB. Pages of the file are not anonymous, and a copy of the elements would be.
    assert int(grown) < 16 << 10, grown


def test_prefix_of_a_path_and_a_store_made_again(path: Path) -> None:
    save_file({"w": torch.zeros(3)}, path, prefix="a.")
    save_file({"w": torch.ones(3)}, path, prefix="b.")
    assert sorted(load_file(path)) == ["a.w", "b.w"]
    with stridemap.open(path) as store:
        old = store["a.w"].torch()
    shutil.rmtree(path)
    save_file({"w": torch.ones(3)}, path, prefix="a.")
    with stridemap.open(path) as store:
        assert store["a.w"].torch().tolist() == [1, 1, 1] and old.tolist() == [0, 0, 0]
    save_file({"empty": torch.zeros(0, 3)}, path, replace=True)
    with torch.device("meta"):
        assert load_file(path)["empty"].shape == (0, 3)
    both = np.arange(10.0)
    save_file({"a": torch.from_numpy(both[:3]), "b": torch.from_numpy(both)}, path, replace=True)
    assert load_file(path)["b"].tolist() == list(range(10))


def test_what_cannot_be_saved_creates_no_store(path: Path) -> None:
    with pytest.raises(TypeError):
        save_file({"w": [1.0]}, path)
    assert not path.exists()
