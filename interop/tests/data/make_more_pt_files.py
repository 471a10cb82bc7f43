#!/usr/bin/env python3
"""Writes more PyTorch checkpoints, and their contents, for what `make_pt_files.py` leaves out.

usage: make_more_pt_files.py FOLDER SEED   (needs torch)

Each NAME.pt has a NAME.json like those of `make_pt_files.py`, with these additions: floats that JSON lacks are "NaN",
"Infinity", "-Infinity"; a torch.Size is a list, a dtype and a device are text; packed elements have `bytes`, and no values.
A data-only reader must refuse refused_*.pt, although nothing in them is hostile.
"""
import collections, json, math, os, struct, sys
import torch

out, seed = sys.argv[1], int(sys.argv[2])
os.makedirs(out, exist_ok=True)
g = torch.Generator().manual_seed(seed)


def number(x):
    if isinstance(x, complex):
        return [number(x.real), number(x.imag)]
    if isinstance(x, float) and not math.isfinite(x):
        return "NaN" if x != x else "Infinity" if x > 0 else "-Infinity"
    return x


def describe(obj):
    tensors, attributes, seen = {}, {}, {}

    def walk(x, name):
        if isinstance(x, torch.Tensor):
            x = x.detach()
            s = x.untyped_storage()
            entry = {"dtype": str(x.dtype)[6:], "size": list(x.size()), "stride": list(x.stride()), "storage_offset": x.storage_offset(),
                     "storage": seen.setdefault(s._cdata, len(seen)), "storage_numel": s.nbytes() // x.dtype.itemsize}
            if x.dtype == torch.float4_e2m1fn_x2:
                entry["bytes"] = list(bytes(s))
            else:
                small = x.dtype.itemsize == 1 and x.is_floating_point()
                flat = (x.contiguous().float() if small else x).reshape(-1).tolist()
                entry["values"] = [number(v) for v in flat]
            tensors[name] = entry
        elif isinstance(x, dict):
            for k, v in x.items():
                walk(v, f"{name}.{k}" if name else str(k))
        elif isinstance(x, torch.Size):
            attributes[name] = list(x)
        elif isinstance(x, (list, tuple)):
            for i, v in enumerate(x):
                walk(v, f"{name}.{i}" if name else str(i))
        elif isinstance(x, torch.dtype):
            attributes[name] = str(x)[6:]
        elif isinstance(x, torch.device):
            attributes[name] = str(x)
        else:
            attributes[name] = number(x)

    walk(obj, "")
    return {"tensors": tensors, "attributes": attributes}


def write(name, obj, both=True, **options):
    for layout, zipped in (("zip", True), ("legacy", False))[: 2 if both else 1]:
        torch.save(obj, f"{out}/{name}_{layout}.pt", _use_new_zipfile_serialization=zipped, **options)
        json.dump(describe(obj), open(f"{out}/{name}_{layout}.json", "w"))


# Views of every kind over one storage, with a view first: the whole storage is saved anyway.
base = torch.randn(3, 4, 5, generator=g)
views = {"narrowed": base.narrow(2, 1, 2), "base": base, "permuted": base.permute(2, 0, 1), "diagonal": base[0].diagonal(), "element": base[2, 3, 4],
         "unfolded": base[1, 1].unfold(0, 3, 1), "strided": base.as_strided((2, 2), (7, 3), 11), "expanded": base[:1, :1, :1].expand(2, 3, 4),
         "empty": base[3:], "empty_far": base[3:, 2:2], "unsqueezed": base[:, None], "odd_stride": base[:1].as_strided((1, 2), (999, 1))}
views["channels_last"] = torch.randn(2, 3, 4, 4, generator=g).to(memory_format=torch.channels_last)
views["tail"] = torch.arange(100, dtype=torch.int16)[90:]
write("views", views)

# Types without a storage class, values that are not finite, and several types on one untyped storage.
wide = {str(d)[6:]: torch.arange(1, 7).to(d) for d in (torch.uint16, torch.uint32, torch.uint64)}
wide |= {str(d)[6:]: torch.tensor([0.5, 2.0, 4.0, 0.25]).to(d) for d in
         (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)}
wide["float4"] = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
wide["largest"] = torch.tensor([2**64 - 1], dtype=torch.uint64)
wide["odd"] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64)
words = torch.arange(4).to(torch.uint16)
wide["words"], wide["pairs"], wide["all"] = words, words.view(torch.uint32), words.view(torch.uint64)
write("wide", wide)

# Values besides tensors, and their names.
plain = {"size": torch.Size([2, 3]), "no_size": torch.Size([]), "dtype": torch.float32, "unsigned": torch.uint16, "cpu": torch.device("cpu"),
         "cuda": torch.device("cuda:1"), "größe": torch.ones(1), "日本": {"語": "text é\n\t", "": 0}, 7: "seven", 0.5: "half", 1e-7: "small", True: "yes",
         None: "none", -3: [1, [2, (3, {"deep": torch.zeros(2)})]], "floats": [0.1, 1e16, 1e-5, -0.0, math.nan, math.inf, -math.inf, 3.0],
         "ints": [0, 255, 65536, -1, 2**31, -2**31, 2**63, -2**63 - 1, 2**64 - 1, 2**100], "empty": [{}, [], ()], "x.y": "dots",
         "param": torch.nn.Parameter(torch.ones(2)), "frozen": torch.nn.Parameter(torch.arange(2), requires_grad=False),
         "grad": torch.ones(3, requires_grad=True), "long": "l" * 300}
shared = {"of": torch.arange(3)}
plain["shared"], plain["again"] = shared, shared
write("plain", plain)
for protocol in (3, 4, 5):
    write(f"protocol{protocol}", {"w": torch.ones(2, 2), "名": words, "bias": torch.nn.Parameter(torch.zeros(3)), "n": 1, "text": "t" * 256, "s": torch.Size([1])},
          pickle_protocol=protocol)

# A model with buffers and versions, tied weights, and the state of Adam.
model = torch.nn.Sequential(collections.OrderedDict(
    embed=torch.nn.Embedding(5, 3), lstm=torch.nn.LSTM(3, 2, num_layers=2), norm=torch.nn.BatchNorm1d(2), head=torch.nn.Linear(3, 5, bias=False)))
model.head.weight = model.embed.weight
adam = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
for p in model.parameters():
    p.grad = torch.ones_like(p)
adam.step()
assert model.state_dict()._metadata
write("model", model.state_dict())
write("training", {"epoch": 3, "model": model.state_dict(), "optimizer": adam.state_dict(), "rng": torch.get_rng_state()[:16].clone(), "best": None})
with_state = torch.nn.Parameter(torch.ones(2))
with_state.tag = "kept by Python alone"
write("parameter", {"p": with_state}, both=False)
write("scalar", torch.tensor(2.5))
write("text", "text and nothing else", both=False)
write("nothing", {}, both=False)
write("empties", {"a": torch.zeros(0), "b": torch.zeros(2, 0, 3), "c": torch.empty(0, dtype=torch.int64)})

# A legacy file as Python 2 wrote it: names as bytes, pairs in lists, the first rebuild function, a view of a storage.
storage = struct.pack("<6f", *range(6))
def short(b): return b"U" + bytes([len(b)]) + b
def pid(view): return b"(" + short(b"storage") + b"ctorch\nFloatStorage\n" + short(b"4711") + short(b"cuda:0") + b"\x8a\x01\x06" + view + b"tQ"
def tensor(view, offset): return b"ctorch._utils\n_rebuild_tensor\n(" + pid(view) + b"K" + bytes([offset]) + b"(\x8a\x01\x02t(\x8a\x01\x01ttR"
part = b"(" + short(b"4712") + b"K\x02K\x04t"
pairs = [(b"plain", tensor(b"N", 1)), (b"view", tensor(part, 1)), (b"gr\xf6\xdfe", b"K\x01"), ("weiß".encode(), b"S'a\\xe9\\n'\n"), (b"wide", b"L123456789012345678901L\n"), (b"uni", b"V\\u20ac\n")]
items = b"".join(b"](" + short(k) + v + b"e" for k, v in pairs)
two = lambda p: b"\x80\x02" + p + b"."
system = b"}(" + short(b"protocol_version") + b"M\xe9\x03" + short(b"little_endian") + b"\x88u"
with open(f"{out}/python2_legacy.pt", "wb") as f:
    f.write(two(b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19") + two(b"M\xe9\x03") + two(system) + two(b"ccollections\nOrderedDict\n](" + items + b"e\x85R") + two(b"](" + short(b"4711") + b"e"))
    f.write(struct.pack("<q", 6) + storage)
entry = lambda offset, values: {"dtype": "float32", "size": [2], "stride": [1], "storage_offset": offset, "storage": 0, "storage_numel": 6, "values": values}
json.dump({"tensors": {"plain": entry(1, [1.0, 2.0]), "view": entry(3, [3.0, 4.0])},
           "attributes": {"größe": 1, "weiß": "aé\n", "wide": 123456789012345678901, "uni": "€"}}, open(f"{out}/python2_legacy.json", "w"))


class Wrapped(torch.Tensor):
    pass


loaded = torch.load(f"{out}/plain_legacy.pt")  # PyTorch must read the file as described
assert describe(loaded)["tensors"] == json.load(open(f"{out}/plain_legacy.json"))["tensors"]
refused = {
    "conj": torch.ones(2, dtype=torch.complex64).conj(), "neg": torch.ones(2, dtype=torch.complex64).conj().imag, "subclass": torch.ones(2).as_subclass(Wrapped),
    "sparse": torch.eye(2).to_sparse(), "meta": torch.ones(2, device="meta"), "key": {(1, 2): torch.ones(1)}, "layout": torch.strided, "module": torch.nn.Linear(1, 1), "complex": 1j,
    "storage": torch.ones(2).untyped_storage(), "slice": slice(1, 2),
}
for name, obj in refused.items():
    torch.save({"inner": obj}, f"{out}/refused_{name}.pt")
torch.save({"inner": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, f"{out}/refused_quantized.pt")
