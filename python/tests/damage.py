"""Damage to the files of a store."""

from __future__ import annotations

from pathlib import Path

import stridemap


def flip_bit(path: Path, name: str, byte: int) -> None:
    """Change a bit of the storage of a tensor. Its file is replaced, because an open one may be mapped."""
    with stridemap.open(path) as store:
        file = path / "storages" / f"{store[name].storage_id:016x}.bin"
    data = bytearray(file.read_bytes())
    data[byte] ^= 1
    file.unlink()
    file.write_bytes(data)
