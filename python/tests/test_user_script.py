"""The functions of `stridemap.torch` can replace those of `safetensors.torch` in a program that also uses PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def test_program_has_the_same_results_with_both_libraries(tmp_path: Path) -> None:
    results: dict[str, dict[str, Any]] = {}
    for library in ("safetensors", "stridemap"):
        (tmp_path / library).mkdir()
        arguments = [sys.executable, "-W", "ignore", Path(__file__).parent / "user_script.py", library, tmp_path / library]
        run = subprocess.run(arguments, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        results[library] = json.loads(run.stdout)
    ours, theirs = results["stridemap"], results["safetensors"]
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name] == expected, name
    # What both must give.
    assert theirs["written by a child"] == [7] * 100 and theirs["model written by a child"] == [7] * 8
    assert theirs["gradients"] == [[[1.5, 1.5]] * 2] * 2 and theirs["same random numbers"] and theirs["saved again"]
    assert theirs["refused: strict"] and theirs["refused: sizes"] and theirs["optimizer has the parameters"]
