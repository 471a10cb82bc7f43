"""Operators on tensors: with numbers, arrays and tensors of PyTorch, and in place."""

from __future__ import annotations

import collections
import operator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import stridemap

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


@pytest.mark.parametrize("kind", ["sealed", "mutable", "live"])
@pytest.mark.parametrize("name", [*BINARY, *BITS, "divmod"])
def test_results_are_those_of_numpy(name: str, kind: Any, store: stridemap.Store) -> None:
    act = divmod if name == "divmod" else getattr(operator, name)
    array = np.arange(1, 10).reshape(3, 3)
    store.save("x", array, kind=kind)
    x = store["x"]
    others = [array.T, array[0].tolist(), array.astype(np.int8), x.T, x[0]]
    others += [] if name == "matmul" else [2, np.int64(3), True]
    others += [] if name in BITS else [array / 2, np.float32(1.5) if name != "matmul" else array * 1j]
    for other in others:
        if name in ("floordiv", "mod", "divmod") and np.iscomplexobj(other):
            continue
        plain = other.numpy() if isinstance(other, stridemap.Tensor) else other
        for found, expected in ((act(x, other), act(array, plain)), (act(other, x), act(plain, array))):
            np.testing.assert_array_equal(found, expected, strict=True)
            assert not any(isinstance(part, stridemap.Tensor) for part in (found if name == "divmod" else [found]))
    assert np.array_equal(x.numpy(), array)


def test_one_operand_is_enough(store: stridemap.Store) -> None:
    array = np.array([[-1.5, 2], [0, 3]])
    store.update(x=array, flags=array > 0, scalar=2.5)
    x, flags = store["x"], store["flags"]
    assert (-x).tolist() == (-array).tolist() and (+x).tolist() == array.tolist() and abs(x.T).tolist() == abs(array.T).tolist()
    assert (~flags).tolist() == (~(array > 0)).tolist() and x[~flags & (x < 0)].tolist() == [-1.5]
    assert (flags & [True, False]).tolist() == [[False, False], [False, False]]
    found = store["scalar"] * 2
    assert found == 5 and isinstance(found, np.float64)
    array += store["scalar"]
    assert array.tolist() == [[1, 4.5], [2.5, 5.5]]


@pytest.mark.parametrize("name", SMALL)
def test_small_floats(name: str, store: stridemap.Store) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    store.save("x", np.ones(3, dtype), kind="mutable")
    x = store["x"]
    for found, expected in ((x + 1, 2), (2 * x, 2), (-x, -1), (x / 2, 0.5), (x**2, 1), (x - x, 0)):
        assert found.dtype == dtype and found.tolist() == [expected] * 3
    x += 1
    x[0] *= 2
    assert store["x"].tolist() == [4, 2, 2]


def test_what_cannot_be_calculated_is_a_type_error(store: stridemap.Store) -> None:
    store["x"] = np.arange(3)
    packed = stridemap.Tensor._of_elements(("float4_e2m1fn_x2", [8], np.arange(8, dtype=np.uint8)))
    for act in (
        lambda: packed + 1, lambda: 1 - packed, lambda: -packed, lambda: packed + torch.ones(8),
        lambda: torch.ones(8) * packed,
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"view_dtype\('uint8'\)"):
            act()
    for other in ("text", None, object()):
        for wrong in (lambda: store["x"] + other, lambda: other * store["x"]):  # noqa: B023
            with pytest.raises(TypeError):
                wrong()
    with pytest.raises(ValueError, match="broadcast"):
        store["x"] + [1, 2]
    with pytest.raises(TypeError):
        pow(store["x"], 2, 3)


def test_with_a_tensor_of_pytorch_pytorch_calculates(store: stridemap.Store) -> None:
    store["x"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, weight = store["x"], torch.ones(2, 3, requires_grad=True)
    for act in (operator.sub, operator.mul, operator.eq, operator.lt, operator.truediv, lambda a, b: a @ b.T):
        for found, expected in ((act(x, weight), act(x.torch(), weight)), (act(weight, x), act(weight, x.torch()))):
            assert isinstance(found, torch.Tensor) and torch.equal(found, expected)
    (x * weight + (weight - x)).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == (store["x"] + 1).tolist()

    state = same = torch.zeros(2, 3)
    state += x
    state[0] = x[1]
    assert state is same and state.tolist() == [[3, 4, 5], [3, 4, 5]]
    assert torch.stack([x, x]).shape == (2, 2, 3) and torch.cat((x[0], torch.ones(1)), dim=0).tolist() == [0, 1, 2, 1]
    assert torch.nn.functional.linear(torch.ones(3), x).tolist() == [3, 12] and torch.add(x, 1, alpha=2)[0, 0] == 2
    store["half"] = torch.ones(2, dtype=torch.bfloat16)
    assert (store["half"] + torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="size"):
        x + torch.ones(7)
    with pytest.raises(RuntimeError, match="device"):
        (x + torch.ones(3, device="meta")).to("cpu")


def test_mutable_tensors_are_changed_in_place(store: stridemap.Store) -> None:
    array = np.arange(6.0).reshape(2, 3)
    store.save("x", array.copy(), kind="mutable")
    before, x = store.generation, store["x"]
    same = x
    x += 1
    x -= torch.ones(3)
    x[0] *= [1, 2, 3]
    x[:, ::-1] -= x[0]
    x[x > 3] = 0
    x.T[1] += 5
    x **= 2
    array[0] *= [1, 2, 3]
    array[:, ::-1] -= array[0].copy()
    array[array > 3] = 0
    array[:, 1] += 5
    array **= 2
    assert x is same and x.numpy().tolist() == array.tolist() and store.generation == before
    store.save("flags", [1, 2], kind="mutable")
    flags = store["flags"]
    flags |= 4
    flags[0] <<= 2
    flags[1:] %= 4
    assert flags.tolist() == [20, 2]


def test_name_of_a_mutable_tensor_is_changed_in_place(store: stridemap.Store) -> None:
    store.save("x", [1, 2], kind="mutable")
    store.save("g.x", [1, 2], kind="mutable")
    before = store.generation
    store["x"] += 1
    store["g."]["x"] *= 2
    store["x"][0] += 1
    assert store["x"].tolist() == [3, 3] and store["g.x"].tolist() == [2, 4] and store.generation == before
    with store.transaction() as txn:
        txn["x"] -= 1
    with store["x"].lock(), store["g.x"].lock():  # they are mutable still
        pass
    assert store["x"].tolist() == [2, 2]
    # What is assigned otherwise is saved, as before.
    x = store["x"]
    x += 1
    store["y"] = x
    with pytest.raises(ValueError, match="sealed"):
        store["y"][0] = 1
    store["x"] = store["x"]
    with pytest.raises(ValueError, match="sealed"):
        store["x"][0] = 1
    assert store["x"].tolist() == store["y"].tolist() == [3, 3]


def test_part_that_is_assigned_to_itself_is_not_written_back(store: stridemap.Store) -> None:
    """Between both steps of `x[0] += 1`, another process can change the element."""
    store.save("x", [1, 2], kind="mutable")
    x = store["x"]
    part = x[0]
    part += 1
    with stridemap.open(store.path, "r+", durable=False) as other, other["x"].lock() as array:
        array += 5
        with pytest.raises(TimeoutError):
            x[1] = 0
        x[0] = part
    assert x.tolist() == [7, 7]


def test_other_tensors_are_never_changed_in_memory_only(path: Path, store: stridemap.Store) -> None:
    store["x"] = [1, 2]
    store.save("live", [1, 2], kind="live")
    store.save("mutable", [1, 2], kind="mutable")
    sealed, live, memory = store["x"], store["live"], store["x"].copy()
    with pytest.raises(ValueError, match=r"^\+=: .*sealed.*; x \+ ... is a new array, and store\[name\] = store\[name\] \+ ..."):
        sealed += 1
    with pytest.raises(ValueError, match="sealed"):
        store["x"] += 1
    with pytest.raises(ValueError, match="sealed"):
        store["x"][0] -= 1
    with pytest.raises(ValueError, match=r"live\(\)"):
        live *= 2
    with pytest.raises(ValueError, match="in memory"):
        memory @= 2
    with stridemap.open(store.path) as reading, pytest.raises(PermissionError, match="mode 'r'"):
        reading["mutable"][0] += 1
    store["x"] = store["x"] + 1
    assert store["x"].tolist() == [2, 3] and store["mutable"].tolist() == [1, 2]


def test_change_in_place_that_is_refused_changes_nothing_and_releases_the_lock(store: stridemap.Store) -> None:
    store.save("x", [1, 2], kind="mutable")
    x = store["x"]
    with pytest.raises(TypeError, match="Cannot cast"):
        x /= 2
    with pytest.raises(ValueError, match="broadcast"):
        x += [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="masked"):
        x += np.ma.masked_array([1, 2], [True, False])
    x += x
    assert x.tolist() == [2, 4]


def test_function_that_would_write_to_a_copy_is_refused(store: stridemap.Store) -> None:
    store.save("m", np.arange(3.0), kind="mutable")
    m, other = store["m"], torch.zeros(3, dtype=torch.float64)
    for write in (
        lambda: torch.add(other, 1, out=m),
        lambda: torch._foreach_add_([m], 1),
        lambda: torch.max(other, 0, out=(m, other)),
    ):
        with pytest.raises(TypeError, match="would change a copy of this process, and not the store"):
            write()
    for call in (lambda: torch.nn.init.zeros_(m), lambda: m.mul_(2), lambda: m.fill(1)):
        with pytest.raises(AttributeError, match=r"store\[name\] = ... saves a result; .*change a mutable tensor"):
            call()
    assert store["m"].tolist() == [0, 1, 2]
    # What changes a tensor of PyTorch is not refused.
    other.add_(m)
    torch.add(m, 1, out=other)
    assert other.tolist() == [1, 2, 3]


def test_function_of_pytorch_takes_a_namedtuple(store: stridemap.Store) -> None:
    store["x"] = np.arange(2.0)
    pair = collections.namedtuple("pair", "first second")(store["x"], store["x"])
    assert torch.stack(pair).tolist() == [[0, 1], [0, 1]]
