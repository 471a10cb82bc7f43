#!/usr/bin/env python3
"""Writes the quantiles of NumPy: make_numpy_quantiles.py OUT.jsonl   (needs numpy and ml_dtypes)

Each line is a JSON object: `what`, `dtype`, the elements, and `quantiles`, pairs of a fraction and a quantile of the finite
elements as float64. The elements are `numbers`, as text, or there are `count` of them: the upper `bits` of the 32-bit product of
the position and 2654435769, minus `minus`.
"""
import json, sys
import ml_dtypes  # bfloat16
import numpy as np

FRACTIONS = [0, 0.001, 0.01, 0.25, 1 / 3, 0.5, 0.75, 0.99, 0.999, 1]
NAN, INF = float("nan"), float("inf")
FEW = [
    ("80 % zeros", "float32", [0] * 80 + list(range(1, 21))),
    ("one-hot", "float64", [0] * 500 + [1] + [0] * 500),
    ("one-hot", "uint8", [1] + [0] * 1000),
    ("zeros of both signs", "float32", [-0.0, 0.0, -0.0, 0.0, -1, 1]),
    ("zeros of both signs", "float16", [0.0, -0.0, -0.0]),
    ("denormal", "float64", [5e-324, 0, -5e-324, 1e-310, 2e-310]),
    ("denormal", "float32", [1e-45, 0, 3e-45, -1e-45, 1e-40]),
    ("all equal", "float32", [0.1] * 7),
    ("all NaN", "float32", [NAN] * 5),
    ("infinities", "float32", [INF, 1, -INF, 2, INF, NAN, 4]),
    ("only infinities", "float64", [INF, -INF]),
    ("beyond 2^53", "int64", [2**53 + i for i in (0, 1, 3, 9, 11)] + [-(2**62) - 7, 2**63 - 1]),
    ("beyond 2^63", "uint64", [2**64 - 1, 2**63, 2**63 + 2**12, 1]),
    ("one", "int16", [-5]),
    ("two", "int32", [7, -2]),
    ("bools", "bool", [0, 1, 1]),
    ("wide", "float64", [-1e300, 1e300, 3, 1e-300]),
    ("rounded", "bfloat16", [1.5, -2.25, 1000, 3]),
]
MANY = [("float32", 4097, 12, 2000), ("uint16", 60_000, 16, 0), ("float64", 1 << 20, 32, 1 << 31), ("int8", 1 << 20, 7, 64),
        ("int64", (1 << 20) - 1, 32, 0)]


def quantiles(array):
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return [[f, float(np.quantile(finite, f)) + 0.0] for f in FRACTIONS] if finite.size else []


if __name__ == "__main__":
    rows = []
    for what, dtype, numbers in FEW:
        array = np.array(numbers, dtype)
        text = [str(n).removesuffix(".0") for n in (array.astype(np.float64) if array.dtype.kind in "fV" else array.astype(object) + 0).tolist()]
        rows.append({"what": what, "dtype": dtype, "numbers": text, "quantiles": quantiles(array)})
    for dtype, count, bits, minus in MANY:
        product = np.arange(count, dtype=np.uint64) * 2654435769 % 2**32
        array = ((product >> np.uint64(32 - bits)).astype(np.int64) - minus).astype(dtype)
        rows.append({"what": f"{count} numbers of {bits} bits", "dtype": dtype, "count": count, "bits": bits, "minus": minus,
                     "quantiles": quantiles(array)})
    with open(sys.argv[1], "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
