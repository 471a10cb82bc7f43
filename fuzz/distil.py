"""Selects seeds from the inputs that long runs have found: distil.py TARGET [CORPUS]

Chooses from CORPUS (default: fuzz/target/corpus/TARGET) and the current seeds, and replaces seeds/TARGET/ with a few
short inputs that together reach the most edges of the code. Build the target first: fuzz/run.sh 0 TARGET
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_FILES, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 64, 4096, 48 << 10

here = Path(__file__).parent
target = sys.argv[1]
corpus = Path(sys.argv[2]) if len(sys.argv) > 2 else here / "target" / "corpus" / target
seeds = here / "seeds" / target
program = next(here.glob(f"target/*/release/{target}"))

with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
    inputs, out, notes = Path(scratch) / "inputs", Path(scratch) / "out", Path(scratch) / "notes"
    inputs.mkdir()
    out.mkdir()
    for folder in (seeds, corpus):
        for path in folder.iterdir():
            if path.stat().st_size <= MAX_FILE_BYTES:
                shutil.copy(path, inputs)
    subprocess.run(
        [program, "-merge=1", "-use_counters=0", f"-merge_control_file={notes}", "-rss_limit_mb=1024",
         "-malloc_limit_mb=700", out, inputs],
        env={**os.environ, "STRIDEMAP_FUZZ_DIR": scratch, "TMPDIR": scratch}, check=True, capture_output=True)
    # The control file has the number of files, the number already merged, the paths, and the edges that each file
    # reaches.
    lines = notes.read_text().splitlines()
    paths = lines[2:2 + int(lines[0])]
    reached = {}
    for line in lines[2 + len(paths):]:
        kind, index, *edges = line.split()
        if kind == "COV":
            reached[Path(paths[int(index)])] = set(edges)
    chosen, known, room = [], set(), MAX_TOTAL_BYTES
    while reached and len(chosen) < MAX_FILES:
        best = max(reached, key=lambda path: (len(reached[path] - known), -path.stat().st_size, path.name))
        edges = reached.pop(best)
        if not edges - known:
            break
        if best.stat().st_size <= room:
            room -= best.stat().st_size
            chosen.append(best)
            known |= edges
    kept = {path.name: path.read_bytes() for path in chosen}

shutil.rmtree(seeds)
seeds.mkdir()
for name, content in kept.items():
    (seeds / name).write_bytes(content)
print(f"{target}: {len(kept)} seeds of {sum(map(len, kept.values()))} bytes reach {len(known)} edges")
