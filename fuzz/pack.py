"""Prints a small store as an input of the `store` target: pack.py STORE > INPUT"""

import re
import sys
from pathlib import Path

NAMES = re.findall(r'^    "(.+)",$', Path(__file__).with_name("src").joinpath("packed.rs").read_text(), re.M)
MENDED = 0x80

root = Path(sys.argv[1])
# The first byte selects the operations: 0 also writes to the store.
out = bytes([0])
for number, name in enumerate(NAMES):
    if (root / name).is_file():
        content = (root / name).read_bytes()
        out += bytes([number | MENDED]) + len(content).to_bytes(3, "little") + content
sys.stdout.buffer.write(out)
