# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in C++: the sorter's figures, and what the others print."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PRINTING = ("observe", "distributed")


def output_of(folder: Path, program: str, *flags: str) -> str:
    command = [str(folder / f"bench_{program}"), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def sorter(folder: Path, quick: bool) -> Any:
    """Two specs are enough to compare with one read of the block. `pair` takes turns with the read alone: among many,
    each finds the cache as the one before has left it."""
    rows = json.loads(output_of(folder, "sorter", "--json", *(["pair", "mean"] if quick else [])))
    for row, alone in zip(rows, json.loads(output_of(folder, "sorter", "--json", "pair")), strict=True):
        row["multiples"] |= alone["multiples"]
    return rows
