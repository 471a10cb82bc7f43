"""A tensor is used as an array: its dtype, comparisons, numbers, reductions, lists and masks, and changes in place."""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import stridemap

NAMES = ["bool", "uint8", "uint64", "int8", "int64", "float16", "float32", "float64", "complex64", "complex128"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if name in SMALL else np.dtype(name)


def saved(store: stridemap.Store, value: Any, kind: Any = "sealed") -> stridemap.Tensor:
    store.save("x", value, kind=kind)
    return store["x"]


@pytest.mark.parametrize("name", NAMES + SMALL)
def test_dtype_is_that_of_numpy(name: str, store: stridemap.Store) -> None:
    x = saved(store, np.ones(3, dtype_of(name)))
    assert isinstance(x.dtype, np.dtype) and x.dtype == name == x.dtype.name and x.dtype == x.numpy().dtype
    assert x.dtype is x[1:].dtype and x.dtype != "int16" and np.empty(2, x.dtype).dtype == x.dtype
    assert x.view_dtype("uint8").dtype == np.uint8 and store["x"].astype(x.dtype).dtype == x.dtype
    store.create("y", (2,), x.dtype)
    assert store["y"].dtype == x.dtype


def test_dtype_is_used_by_functions_of_numpy(store: stridemap.Store) -> None:
    x = saved(store, np.ones(3, np.float32))
    assert np.result_type(x, np.int64) == np.float64 and np.dtype(x) == np.float32
    assert np.empty_like(x).dtype == np.float32 and np.zeros(3, x).dtype == np.float32
    assert x.torch().dtype == torch.float32


def test_packed_numbers_have_no_dtype_and_the_error_says_what_to_do(store: stridemap.Store) -> None:
    x = saved(store, stridemap.Tensor._of_elements(("float4_e2m1fn_x2", [8], np.arange(8, dtype=np.uint8))))
    for act in (lambda: x.dtype, x.numpy, x.tolist, x.sum, lambda: x == 1):
        with pytest.raises(TypeError, match=r"view_dtype\('uint8'\)"):
            act()
    assert x.view_dtype("uint8").tolist() == list(range(8))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("kind", ["sealed", "mutable", "live"])
def test_comparisons_are_those_of_numpy(name: str, kind: str, store: stridemap.Store) -> None:
    array, compare = np.arange(6).reshape(2, 3), getattr(operator, name)
    x = saved(store, array, kind)
    for other in (3, 2.5, np.int64(4), [1, 2, 3], array[::-1], array.T[:, :1].T):
        found = compare(x, other)
        assert isinstance(found, np.ndarray) and found.dtype == bool and np.array_equal(found, compare(array, other))
    assert np.array_equal(compare(x, x[0]), compare(array, array[0]))
    assert np.array_equal(compare(x, torch.from_numpy(array) + 1), compare(array, array + 1))
    assert np.array_equal(compare(array, x[::-1]), compare(array, array[::-1]))
    with pytest.raises(ValueError, match="broadcast"):
        compare(x, [1, 2])


def test_comparison_is_never_silently_false(store: stridemap.Store) -> None:
    x = saved(store, [1.0, 2.0])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x == x)
    assert (x == None).tolist() == [False, False] and (x != None).all()  # noqa: E711
    with pytest.raises(TypeError):
        x < "text"  # noqa: B015
    assert hash(x) == hash(x) and {x: 1}[x] == 1 and x in [x]
    bf16 = saved(store, torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    assert (bf16 == torch.tensor([1.0, 3.0], dtype=torch.bfloat16)).tolist() == [True, False]


def test_one_element_is_a_number(store: stridemap.Store) -> None:
    for value in (3, 2.5, True, np.float16(1.5), ml_dtypes.bfloat16(2)):
        for shape in ((), (1,), (1, 1)):
            x = saved(store, np.full(shape, value))
            number = x.item()
            assert (float(x), int(x), complex(x), bool(x)) == (float(value), int(value), complex(value), bool(value))
            assert math.sqrt(x) == math.sqrt(number) and x.tolist() == np.full(shape, value).tolist()
    x = saved(store, np.float64(3.14159))
    assert f"{x:.2f} {x:>8.1e}" == "3.14  3.1e+00" and f"{x}" == str(x)
    index = saved(store, np.uint8(2))
    assert operator.index(index) == 2 and list(range(index)) == [0, 1] and "abc"[index] == "c"
    assert store["x"].dtype == "uint8" and np.arange(5)[index] == 2
    for wrong in (lambda: operator.index(x), lambda: float(saved(store, 1j)), lambda: operator.index(saved(store, True))):
        with pytest.raises(TypeError):
            wrong()


def test_several_elements_are_not_a_number(store: stridemap.Store) -> None:
    x = saved(store, np.arange(3))
    for convert in (float, int, complex, operator.index, math.sqrt, range, "{:.2f}".format):
        with pytest.raises(TypeError, match="3"):
            convert(x)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x[:0])
    assert x.tolist() == [0, 1, 2] and x[:0].tolist() == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", ["sum", "mean", "min", "max", "std"])
def test_reductions_agree_with_numpy(name: str, operation: str, store: stridemap.Store) -> None:
    array = (np.arange(60).reshape(3, 4, 5) * 7 % 13).astype(name)
    x, reduce = saved(store, array), getattr(np, operation)
    views = [(x, array), (x[::2, ::-1], array[::2, ::-1]), (x.T, array.T), (x[0, 0, 0], array[0, 0, 0])]
    views += [(x[1].expand(4, 4, 5), np.broadcast_to(array[1], (4, 4, 5)))]
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    for view, same in views:
        tolerance = 1e-5 if name in ("float16", "float32", "complex64") else 1e-12
        np.testing.assert_allclose(getattr(view, operation)(), reduce(same.astype(wide)), rtol=tolerance)
        np.testing.assert_array_equal(reduce(view), getattr(view, operation)())
        for axis in range(view.ndim):
            found = getattr(view, operation)(axis=axis)
            np.testing.assert_allclose(found, reduce(same, axis=axis), rtol=1e-2 if name == "float16" else 1e-6)
    assert getattr(x, operation)(axis=(0, 2), keepdims=True).shape == (1, 4, 1) and getattr(x, operation)(1).shape == (3, 5)
    if operation in ("min", "max"):
        assert getattr(x, operation)().dtype == array.dtype


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_are_added_without_losing_most_of_the_sum(name: str, store: stridemap.Store) -> None:
    x = saved(store, np.ones((2, 5000), dtype_of(name)))
    assert x.sum() == 10_000 and x.sum(axis=1).tolist() == [5000, 5000] and x.mean() == 1 and x.std() == 0
    assert x.mean(axis=0).tolist() == [1] * 5000 and x.max() == x.min() == 1 and x.max().dtype == x.dtype


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16"])
def test_reductions_of_numbers_that_are_not_finite_agree_with_numpy(name: str, store: stridemap.Store) -> None:
    inf, nan = math.inf, math.nan
    for numbers in ([1, inf, 2], [1, -inf, 2], [inf, -inf], [nan, 1], [nan, inf, 1], [inf], [-inf, -inf], [nan], [3]):
        x = saved(store, np.array(numbers, dtype_of(name)))
        with np.errstate(invalid="ignore"):
            for operation in ("sum", "mean", "min", "max", "std"):
                expected = getattr(np, operation)(np.array(numbers, np.float64))
                np.testing.assert_equal(float(getattr(x, operation)()), float(expected), f"{operation} {numbers}")


def test_extremes_of_large_integers_are_exact(store: stridemap.Store) -> None:
    x = saved(store, np.array([2**64 - 1, 2**64 - 3], np.uint64))
    assert x.max() == 2**64 - 1 and x.min() == 2**64 - 3 and x.max() - x.min() == 2
    x = saved(store, np.array([-(2**63), 2**63 - 1]))
    assert (x.min(), x.max(), x.sum()) == (-(2**63), 2**63 - 1, -1)


def test_deviation_has_the_divisor_that_is_asked_for(store: stridemap.Store) -> None:
    array = np.array([1.0, 2.0, 4.0])
    x = saved(store, array)
    for ddof in (0, 1, 2, 0.5):
        assert math.isclose(x.std(ddof=ddof), array.std(ddof=ddof)) and math.isclose(np.std(x, ddof=ddof), x.std(ddof=ddof))
    assert math.isclose(x.std(ddof=1), x.torch().std()) and math.isnan(x[:1].std(ddof=1)) and x[:1].std() == 0


def test_reductions_of_nothing_are_those_of_numpy(store: stridemap.Store) -> None:
    x = saved(store, np.zeros((0, 3)))
    assert x.sum() == 0 and x.sum(axis=0).tolist() == [0, 0, 0]
    for operation in ("min", "max"):
        with pytest.raises(ValueError, match="zero-size"):
            getattr(x, operation)()
    with pytest.warns(RuntimeWarning):
        assert math.isnan(x.mean())


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("kind", ["sealed", "mutable"])
def test_lists_and_masks_select_copies(kind: Any, mapped: bool, path: Path) -> None:
    array = np.arange(5 * 4 * 3).reshape(5, 4, 3)
    with stridemap.open(path, "x", durable=False) as store:
        store.save("x", array, kind=kind)
    store = stridemap.open(path, mapped=mapped)
    x = store["x"]
    rows = np.array([True, False, True, False, False])
    for subscript in (
        [1, 3], [-1, 0, 0], [], np.array([2, 4]), np.array([[1], [2]]), rows, rows.tolist(), array > 30, ([0, 1], [2, 3]),
        (slice(None), [0, 2]), (..., [1, 1]), ([3], 1, slice(None, None, -1)), (0, rows[:4]), np.array([3], np.uint8),
        (None, [1]), np.zeros((5, 4), bool), ([[0, 1]], 2),
    ):  # fmt: skip
        found = x[subscript]
        assert isinstance(found, np.ndarray) and np.array_equal(found, array[subscript]), subscript
        assert found.shape == array[subscript].shape and found.flags.writeable
    assert np.array_equal(x[::-1, 1:][[0, 2]], array[::-1, 1:][[0, 2]])
    assert np.array_equal(x[torch.tensor([1, 3])], array[[1, 3]])
    with stridemap.open(path, "r+", durable=False) as writing:
        writing["rows"], writing["one"] = [1, 3], np.int64(2)
        store.refresh()
    assert np.array_equal(x[store["rows"]], array[[1, 3]]) and np.array_equal(x[store["one"]].numpy(), array[2])
    assert np.array_equal(x[x > 30], array[array > 30])
    for wrong in ([5], [-6], rows[:3], (0, 0, 0, [1]), ["a"], [0.5]):
        with pytest.raises(IndexError):
            x[wrong]


def test_elements_of_mutable_tensors_are_assigned(store: stridemap.Store) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = saved(store, array.copy(), "mutable")
    assignments: list[tuple[Any, Any]] = [
        (0, 7), ((..., 1), [1, 2, 3]), (slice(None, None, -1), array + 1), ([0, 2], -1), (array > 5, 9), ((1, 2), 5.5),
        (..., np.float32(3)), ((slice(None), [0, 1]), torch.ones(2)), (2, ml_dtypes.bfloat16(0.5)),
    ]  # fmt: skip
    for subscript, value in assignments:
        x[subscript] = value
        array[subscript] = value
        assert np.array_equal(x.numpy(), array), subscript
    x[0] = x[1]
    x.T[0, x.T[0] < 100] = x[1, 1]
    array[0] = array[1]
    array[:, 0] = array[1, 1]
    assert np.array_equal(x.numpy(), array) and np.array_equal(store["x"].numpy(), array)


def test_assignment_that_is_refused_changes_nothing_and_releases_the_lock(path: Path) -> None:
    store = stridemap.open(path, "x", durable=False, timeout=0.2)
    x = saved(store, np.zeros((2, 3)), "mutable")
    refused: list[tuple[Any, Any, type[Exception]]] = [
        (0, [1, 2], ValueError), (5, 1, IndexError), (0, "text", ValueError), (0, np.ma.masked_array([1, 2, 3]), ValueError),
        ("a", 1, IndexError),
    ]  # fmt: skip
    for subscript, value, error in refused:
        with pytest.raises(error):
            x[subscript] = value
    assert not x.numpy().any()
    with x.lock(), pytest.raises(TimeoutError):
        x[0] = 1
    reading = stridemap.open(path)
    with pytest.raises(PermissionError, match="mode 'r'"):
        reading["x"][0] = 1


def test_assignment_says_how_other_tensors_are_changed(store: stridemap.Store) -> None:
    sealed, live = saved(store, np.zeros(3)), saved(store, np.zeros(3), "live")
    with pytest.raises(ValueError, match="change elements: .*sealed: its elements never change; save the name again"):
        sealed[0] = 1
    with pytest.raises(ValueError, match=r"live\(\)"):
        live[0] = 1
    with pytest.raises(ValueError, match="in memory"):
        sealed.copy()[0] = 1


def test_arrays_that_cannot_be_saved_are_refused_with_another_way(store: stridemap.Store) -> None:
    records = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])
    with pytest.raises(TypeError, match=r"save each field"):
        store["x"] = records
    times = np.array(["2020-01-01", "NaT"], "datetime64[s]")
    for array in (times, times - times[0]):
        with pytest.raises(TypeError, match=r"array.view\('int64'\).*attrs_of"):
            store["x"] = array
        store["x"], store.attrs_of("x")["dtype"] = array.view("int64"), str(array.dtype)
        np.testing.assert_array_equal(store["x"].numpy().view(store.attrs_of("x")["dtype"]), array)


def test_tensor_without_dimensions_is_printed_as_its_number(store: stridemap.Store) -> None:
    store.update(loss=np.float32(0.1), step=3, flag=True, one=[0.5])
    assert f"{store['loss']} {store['step']} {store['flag']}" == "0.1 3 True" and str(store["one"][0]) == "0.5"
    assert repr(store["loss"]).startswith("<stridemap.Tensor () float32, of 'loss'")
    assert str(store["one"]) == f"{store['one']}" == repr(store["one"])
    store.save("m", 1, kind="mutable")
    with store["m"].lock():
        assert str(store["m"]) == repr(store["m"])
    packed = stridemap.Tensor._of_elements(("float4_e2m1fn_x2", [], np.arange(1, dtype=np.uint8)))
    assert repr(packed) == str(packed) == "<stridemap.Tensor () float4_e2m1fn_x2, in memory>"
    assert "float4_e2m1fn_x2" in packed._repr_html_()


def test_view_takes_a_dtype(store: stridemap.Store) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    store["x"] = array
    x = store["x"]
    for dtype in ("int32", np.int32, np.dtype("i4"), torch.int32, "uint8", torch.bfloat16):
        view = x.view(dtype)
        assert view.shares_storage(x) and view.dtype == x.view_dtype(dtype).dtype
    assert np.array_equal(x.view(np.uint8), array.view(np.uint8)) and x.view(torch.int32).torch().equal(x.torch().view(torch.int32))
    for shape in ((3, 2), ((3, 2),), ([3, -1],), (torch.Size([3, 2]),), (np.int64(3), 2), (np.array([3, 2]),)):
        assert x.view(*shape).shape == (3, 2)
    assert x.view(np.int64(6)).shape == (6,) == x.view(-1).shape
    with pytest.raises(TypeError, match="no dtype is named"):
        x.view("int33")
    with pytest.raises(ValueError, match="view"):
        x.view("float64")
