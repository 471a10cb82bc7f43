"""Writes `pt_objects`: checkpoints that hold more than tensors and plain values, or that are written with unusual settings."""
import argparse, collections, datetime, os, pathlib, sys, types

import numpy as np
import torch
from torch import nn
from torch.utils.serialization import config

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "pt_objects")
os.makedirs(out, exist_ok=True)


def write(name, obj, **kwargs):
    torch.save(obj, f"{out}/{name}.pt", **kwargs)


def fake(module, name, base=object):
    """Makes a class that pickles under the name of a class of a package that is not installed."""
    parts = module.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(".".join(parts[: i + 1])))
    made = type(name, (base,), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


weights = collections.OrderedDict([("layer.weight", torch.arange(6.0).view(2, 3)), ("layer.bias", torch.ones(2))])

write("set", {"inner": {1, 2}})
write("bytes", {"inner": b"bytes"})
write("default", {"inner": collections.defaultdict(list)})
write("twice", {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)})

# The containers that Python has besides dicts and lists, in each of the ways that the protocols write them.
containers = {
    "set": {7}, "frozen": frozenset(["x"]), "no_set": set(), "bytes": b"\x00\xff", "no_bytes": b"", "array": bytearray(b"ab"),
    "default": collections.defaultdict(list, {"a": [1]}), "counts": collections.Counter("aab"), "args": argparse.Namespace(lr=0.1, sizes=[2, 3]),
    "simple": types.SimpleNamespace(x=torch.ones(1)),
}
for protocol in (2, 4):
    write(f"containers{protocol}", containers, pickle_protocol=protocol)

# As Lightning writes it, with a configuration of omegaconf, whose nodes refer to the node that contains them.
AttributeDict = fake("lightning.fabric.utilities.data", "AttributeDict", dict)
DictConfig = fake("omegaconf.dictconfig", "DictConfig")
config_node, child = DictConfig(), DictConfig()
child.__dict__.update({"_parent": config_node, "_content": 0.5})
config_node.__dict__.update({"_parent": None, "_content": {"dropout": child}, "scale": torch.full((2,), 3.0)})
write("lightning", {
    "epoch": 3, "global_step": 100, "pytorch-lightning_version": "2.5.0", "state_dict": weights, "loops": {"fit_loop": {"state_dict": {}}},
    "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best_model_score": torch.tensor(0.25), "dirpath": pathlib.PurePosixPath("/ckpt")}},
    "hyper_parameters": AttributeDict(lr=0.1, name="net"), "cfg": config_node, "date": datetime.date(2020, 1, 1),
})

# Tensors with Python attributes.
parameter, plain = nn.Parameter(torch.ones(2)), torch.arange(3)
parameter.loader, parameter.tag, plain.note = print, "x", {"a": [1]}
write("attributes", {"parameter": parameter, "plain": plain, "buffer": nn.Buffer(torch.zeros(2)), "frozen": nn.Parameter(torch.arange(2), requires_grad=False)})

# Tensors of another kind, with attributes and within an object.
sparse = torch.eye(3).to_sparse()
sparse.note = "x"
write("sparse", {"w": torch.ones(1), "sparse": sparse, "buffer": nn.Buffer(torch.eye(2).to_sparse())})
quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
write("within", AttributeDict(state_dict={"w": torch.ones(1), "q": quantized}, options=AttributeDict(lr=0.1, kind=AttributeDict)))

# Objects as other protocols write them: a class of its own with attributes, slots, and a list of its own.
Options, Slotted, Items = fake("app.options", "Options"), fake("app.options", "Slotted"), fake("app.options", "Items", list)
Slotted = type("Slotted", (), {"__module__": "app.options", "__slots__": ["width", "table"]})
sys.modules["app.options"].Slotted = Slotted
options, slotted, items = Options(), Slotted(), Items([1, torch.zeros(1)])
options.deep = {"rate": 0.5, "where": pathlib.PurePosixPath("/x")}
slotted.width, slotted.table = 4, torch.ones(2)
for protocol in (1, 2, 4):
    kinds = {"options": options, "items": items, "w": torch.ones(1)}
    write(f"objects{protocol}", kinds if protocol < 2 else {**kinds, "slotted": slotted}, pickle_protocol=protocol)

for protocol in (0, 1):
    write(f"protocol{protocol}_legacy", {"n": 1, "text": "é", "yes": True}, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
write("tensors1_legacy", {"w": torch.arange(4.0), "n": 1}, pickle_protocol=1, _use_new_zipfile_serialization=False)
write("quantized_legacy", {"q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "w": torch.arange(4.0)}, _use_new_zipfile_serialization=False)

config.save.compute_crc32 = False
write("no_checksums", {"w": torch.arange(5.0)})
config.save.compute_crc32 = True
with torch.serialization.skip_data():
    write("skipped_data", {"w": torch.ones(4)})

# The state of an array is a tuple of its own form.
write("arrays", {"w": torch.ones(2), "np": np.arange(5.0), "last": np.zeros((7, 9))})
