#!/usr/bin/env python3
"""Writes the results of PyTorch's in-place arithmetic: make_torch_inplace.py OUT.jsonl ROWS SEED   (needs torch)

Each line is a JSON object: `dtype`, `size` and `data` (base64 of the little-endian elements) of a tensor, the operation `op`,
its operand, and either `out`, the tensor's elements afterwards, or `refused`. The operand is `tensor`, described in the
same way, or `number` with `kind` int, float, bool or complex (then a pair).
"""
import base64, json, random, sys, warnings
import torch
warnings.simplefilter("ignore")

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.complex128]
NUMBERS = [2, -3, 0, 1.5, -0.25, 1e-8, 255.9, 300, 70000, 2**40, True, 0.1, 1 + 2j]
raw = lambda t: base64.b64encode(bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist())).decode()
name = lambda d: str(d)[6:]


def values(r, g, dtype, size):
    real = lambda: torch.randn(size, generator=g, dtype=torch.float64) * r.choice([1, 100, 1e4, 1e-3])
    if dtype == torch.bool: return torch.randint(0, 2, size, generator=g).bool()
    if dtype.is_complex: return torch.complex(real(), real()).to(dtype)
    if dtype.is_floating_point: return real().to(dtype)
    return torch.randint(-100 if dtype.is_signed else 0, 120, size, generator=g).to(dtype)


def operand_size(r, size):
    kind = r.random()
    if kind < .3: return []
    if kind < .6: return size[r.randrange(len(size) + 1):]
    if kind < .9: return [1 if r.random() < .5 else n for n in size]
    return [5] + size


if __name__ == "__main__":
    out, rows, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    with open(out, "w") as f:
        for _ in range(rows):
            a = values(r, g, r.choice(DTYPES), r.choice([(3, 4), (6,), (), (2, 3, 2)]))
            op = r.choice(["add_", "sub_", "mul_", "div_", "copy_"])
            row = {"dtype": name(a.dtype), "size": list(a.shape), "data": raw(a), "op": op}
            if op != "copy_" and r.random() < .35:
                b = r.choice(NUMBERS)
                row |= {"number": [b.real, b.imag] if isinstance(b, complex) else b, "kind": type(b).__name__}
            else:
                size = operand_size(r, list(a.shape))
                b = values(r, g, r.choice(DTYPES), tuple(size))
                row |= {"tensor": {"dtype": name(b.dtype), "size": size, "data": raw(b)}}
            try:
                getattr(a, op)(b)
                row["out"] = raw(a)
            except RuntimeError:
                row["refused"] = True
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
