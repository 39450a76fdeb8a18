# SPDX-License-Identifier: Apache-2.0
"""Real ranks under torchrun: starts a script of cases, and collects what became of each on every rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import cdgrab

PACKAGES = str(Path(cdgrab.__file__).parents[1])


def start(ranks: int, script: Path, folder: Path) -> subprocess.Popen[str]:
    """torchrun with this many ranks of `script folder`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*command, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGES, str(script.parent)]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], folder: Path, ranks: int, timeout: float = 200) -> dict[str, list[str]]:
    """By case: what each rank says of it, "" if it holds. Nothing for a case that no rank came to."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output = "not finished in time\n" + output
    results: dict[str, list[str]] = {}
    for rank in range(ranks):
        file = folder / f"{ranks}.{rank}.jsonl"
        for line in file.read_text().splitlines() if file.is_file() else []:
            case, said = json.loads(line)
            results.setdefault(case, []).append(said)
    results["output"] = [output]
    return results


def run_cases(cases: dict[str, Callable[[], None]], rank: int, ranks: int, folder: Path) -> None:
    """In a rank. A case that fails ends it, since the others may wait for it; torchrun then ends them."""
    with open(folder / f"{ranks}.{rank}.jsonl", "a") as file:
        for name, case in cases.items():
            before = time.monotonic()
            said = ""
            try:
                case()
            except BaseException:
                said = traceback.format_exc()
            print(json.dumps([name, said]), file=file, flush=True)
            print(f"rank {rank}: {name}: {time.monotonic() - before:.2f} s", flush=True)
            if said:
                os._exit(1)
