"""Checkpoints of `torch.distributed.checkpoint` in a store.

All ranks write their shards into whole tensors of one store, in place, and one commit publishes them. Each tensor is then
under its key, whatever the sharding was: any process opens it with `stridemap.open`, with or without PyTorch, and a load with
another number of ranks, or another sharding, reads only what each rank needs.

All ranks must see the directory of the store under the same path.

>>> import torch.distributed.checkpoint as dcp
>>> state = {"model": torch.nn.Linear(3, 2).state_dict(), "step": 5}
>>> saved = dcp.save(state, storage_writer=StoreWriter("run.smap"), checkpoint_id="step5", no_dist=True)
>>> stridemap.open("run.smap")["model.weight"].shape
(2, 3)
>>> target = {"model": torch.nn.Linear(3, 2).state_dict(), "step": 0}
>>> dcp.load(target, storage_reader=StoreReader("run.smap"), checkpoint_id="step5", no_dist=True)
>>> target["step"], torch.equal(target["model"]["weight"], state["model"]["weight"])
(5, True)
"""

from __future__ import annotations

import torch

from ._store_reader import StoreReader
from ._store_writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter"]
