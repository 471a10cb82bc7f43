"""Views agree with PyTorch and NumPy on the chains of `tests/data`, and their arrays with the elements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stridemap

DATA = Path(__file__).parents[2] / "tests" / "data"


def apply(x: stridemap.Tensor, op: str, args: dict[str, Any]) -> stridemap.Tensor:
    """Call the operation of a step. Some have arguments with other names here, as in PyTorch or NumPy."""
    args = dict(args)
    part = args.pop("index", None) if op != "select" else None
    match op:
        case "mT" | "real" | "imag":
            return getattr(x, op)
        case "squeeze_all":
            return x.squeeze()
        case "view" | "reshape":
            return getattr(x, op)(args["shape"])
        case "expand":
            return getattr(x, op)(args["size"])
        case "permute" | "flip":
            return getattr(x, op)(*args["dims"])
        case "as_strided":
            return x.as_strided(args["size"], args["stride"], args["offset"])
        case "view_dtype":
            return x.view_dtype(args["dtype"])
        case "sliding_window_view":
            return x.sliding_window_view(args["window"], args["dim"])
        case "unfold":
            return x.unfold(args["dim"], args["size"], args["step"])
        case "chunk":
            return x.chunk(args["parts"], args["dim"])[part]
        case "tensor_split":
            return x.tensor_split(args["parts"], args["dim"])[part]
        case _:
            view = getattr(x, op)(**args)
            return view if part is None else view[part]


def check_header(x: stridemap.Tensor, step: dict[str, Any], engine: str) -> None:
    assert list(x.shape) == step["size"]
    for own, expected, n in zip(x.stride(), step["stride"], step["size"], strict=True):
        # NumPy does not normalize the strides of dimensions of size 1.
        assert own == expected or engine == "numpy" and n == 1
    assert x.size == 0 or x.storage_offset == step["offset"]


@pytest.mark.parametrize("file", ["torch_views.jsonl", "torch_more_views.jsonl"])
def test_chains_of_views_agree_with_pytorch(file: str, path: Path) -> None:
    chains = [json.loads(line) for line in (DATA / file).read_text().splitlines()]
    with stridemap.open(path, "x", durable=False) as store:
        # A commit each: small tensors of one commit share a storage, and the offsets of the chains begin at 0.
        for n in sorted({chain["storage_len"] for chain in chains}):
            store[str(n)] = np.arange(n)
        checked = 0
        for chain in chains:
            x = base = store[str(chain["storage_len"])].as_strided(chain["base"]["size"], chain["base"]["stride"], 0)
            for step in chain["steps"]:
                if step.get("refused"):
                    with pytest.raises((stridemap.Error, IndexError, TypeError)):
                        apply(x, step["op"], step["args"])
                    continue
                x = apply(x, step["op"], step["args"])
                check_header(x, step, chain["engine"])
                checked += 1
            assert x.size == 0 or x.shares_storage(base) == chain["shared"]
            array = x.numpy()
            if "bytes" in chain:
                assert array.tobytes().hex() == chain["bytes"]
            else:
                assert array.reshape(-1).tolist() == chain["values"]
            if x.size and x.shares_storage(base):
                lowest = base.numpy().__array_interface__["data"][0]
                address = array.__array_interface__["data"][0]
                assert address == lowest + x.storage_offset * x.itemsize
                assert array.strides == x.strides or array.flags.c_contiguous
    assert checked > 1000


def test_subscripts_are_those_of_numpy(store: stridemap.Store) -> None:
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    store["x"] = array
    x = store["x"]
    for subscript in (
        np.s_[1], np.s_[-1, 2], np.s_[::-1], np.s_[..., ::-2], np.s_[:, None, 1:], np.s_[5:], np.s_[1, 2, 3],
        np.s_[None], np.s_[()], np.s_[..., None, -1], np.s_[True:], np.s_[-(10**30):10**30],
    ):  # fmt: skip
        assert np.array_equal(x[subscript].numpy(), array[subscript]), subscript
        assert x[subscript].shape == array[subscript].shape
    for wrong, error in (
        ([0, 2], IndexError), ("a", TypeError), (1.5, TypeError), (2, IndexError), (np.s_[0, 0, 0, 0], IndexError),
        (np.s_[::0], ValueError), (np.array([True] * 3), IndexError), (10**30, IndexError), (True, TypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            x[wrong]
    assert x[np.int64(1)].shape == (3, 4)
    assert x.T.shape == (4, 3, 2)
    assert [row.item() for row in store["x"][0, 0]] == [0, 1, 2, 3]


def test_dimensions_can_be_given_separately_or_as_one_sequence(store: stridemap.Store) -> None:
    store["x"] = np.zeros((2, 3, 4))
    x = store["x"]
    assert x.permute(2, 0, 1).shape == x.permute([2, 0, 1]).shape == (4, 2, 3)
    assert x.view(6, 4).shape == x.view((6, 4)).shape == x.view(-1, 4).shape == (6, 4)
    assert x.view(-1).shape == (24,)
    assert x.expand(5, 2, 3, 4).stride() == (0, 12, 4, 1)
