# SPDX-License-Identifier: Apache-2.0
"""The example programs, run as a reader would, with small arguments."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import cdgrab

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
PACKAGES = str(Path(cdgrab.__file__).parents[1])
DATA = os.environ.get("CDGRAB_DATA", "")

SMALL = {
    "mnist": ["--examples", "96", "--epochs", "2"],
    "language_model": ["--examples", "24", "--epochs", "2", "--batch", "6"],
    "lora": ["--examples", "24", "--epochs", "2", "--batch", "6"],
}


def run(
    name: str, *arguments: str, folder: Path | None = None, text: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Without data at hand, unless arguments or variables name it."""
    environment = {key: value for key, value in os.environ.items() if key != "CDGRAB_DATA"}
    output = subprocess.PIPE if text else subprocess.DEVNULL
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        env={**environment, "PYTHONPATH": PACKAGES, **variables},
        cwd=folder,
        stdout=output,
        stderr=output,
        text=True,
        timeout=300,
    )


@functools.cache
def run_small(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    for module in ["peft", "transformers"] if name == "lora" else []:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return run(name, *SMALL[name], *arguments, **variables)


def check_table(finished: subprocess.CompletedProcess[str]) -> None:
    """Two epochs; the first has the same order in both halves of the table, and so the same loss."""
    assert finished.returncode == 0, finished.stderr
    lines = re.findall(r"^ +[12] .*$", finished.stdout, re.MULTILINE)
    first, second = ([float(loss) for loss in re.findall(r"\d\.\d{5,}", line)] for line in lines)
    half = len(first) // 2
    assert first[:half] == first[half:]
    assert second[:half] != second[half:]
    assert second[0] < first[0]


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_on_generated_data_and_says_so(name: str) -> None:
    finished = run_small(name)
    check_table(finished)
    assert "generated" in finished.stdout
    assert finished.stderr == ""


@pytest.mark.skipif(not DATA, reason="CDGRAB_DATA is not set")
@pytest.mark.parametrize("name", SMALL)
def test_an_example_takes_the_data_that_is_at_hand(name: str) -> None:
    finished = run_small(name, CDGRAB_DATA=DATA)
    check_table(finished)
    assert "generated" not in finished.stdout


@pytest.mark.parametrize("name", [*SMALL, "resume"])
def test_a_named_folder_without_the_data_is_an_error(name: str, tmp_path: Path) -> None:
    finished = run_small(name, "--data", str(tmp_path)) if name in SMALL else run(name, "--data", str(tmp_path))
    assert finished.returncode == 2
    assert f"error: {tmp_path}" in finished.stderr
    assert "is missing; --data takes a folder with" in finished.stderr


def test_lora_is_ordered_by_the_adapters_alone() -> None:
    assert "observed: 16,384 of 136,960 parameters, 16 of 16 tensors are adapters" in run_small("lora").stdout


def test_lora_without_peft_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "peft.py").write_text("raise ImportError('no peft')\n")
    finished = run("lora", PYTHONPATH=os.pathsep.join([str(tmp_path), PACKAGES]))
    assert finished.returncode == 2
    assert "pip install transformers peft" in finished.stderr
    assert "Traceback" not in finished.stderr


# 101 examples in batches of 8: 13 steps per epoch, the last batch is short, and one example has no pair.
RESUME = ("--examples", "101", "--batch", "8", "--steps", "45")


def hashes(finished: subprocess.CompletedProcess[str]) -> list[str]:
    """Of the examples' sequence and of the final weights."""
    assert finished.returncode == 0, finished.stderr
    found = re.findall(r"sha256 +([0-9a-f]{16})$", finished.stdout, re.MULTILINE)
    assert len(found) == 2, finished.stdout
    return found


@functools.cache
def uninterrupted(order: str) -> list[str]:
    """With no workers: they must change nothing."""
    with tempfile.TemporaryDirectory() as folder:
        return hashes(run("resume", *RESUME, "--order", order, "--workers", "0", folder=Path(folder)))


@pytest.mark.parametrize(
    ("order", "every", "kills"),
    [
        pytest.param("pair", "4", [18, 31], id="twice, in the middle of an epoch"),
        pytest.param("pair", "13", [13], id="at the end of an epoch"),
        pytest.param("pair", "1", [14], id="after the first step of an epoch"),
        pytest.param("pair", "30", [7], id="before the first checkpoint"),
        pytest.param("mean", "4", [31], id="mean, in the middle of an epoch"),
    ],
)
def test_a_killed_run_continues_to_the_same_weights(tmp_path: Path, order: str, every: str, kills: list[int]) -> None:
    arguments = [*RESUME, "--order", order, "--every", every]
    for step in kills:
        # Orphaned workers would keep a pipe open.
        killed = run("resume", *arguments, "--kill-at", str(step), folder=tmp_path, text=False)
        assert killed.returncode == -signal.SIGKILL
    last = run("resume", *arguments, folder=tmp_path)
    checkpoint = kills[-1] // int(every) * int(every)
    assert (f"going on after step {checkpoint}\n" in last.stdout) == (checkpoint > 0)
    assert hashes(last) == uninterrupted(order)
    assert list(tmp_path.iterdir()) == []


def test_the_hashes_tell_orders_apart() -> None:
    assert all(pair != rr for pair, rr in zip(uninterrupted("pair"), uninterrupted("rr"), strict=True))


def test_ranks_train_together(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / "train_ddp.py", "--examples", "65", "--epochs", "2", "--state", "order"],
        env={**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    lines = re.findall(r"epoch \d: loss (\d\.\d+), next order ([0-9a-f]{8})", finished.stdout)
    assert len(lines) == 2
    assert float(lines[1][0]) < float(lines[0][0])
    assert lines[0][1] != lines[1][1]
    read = cdgrab.DistributedSampler(65, workers=2)
    read.load(tmp_path / "order")
    assert f"{read.order_hash() & 0xFFFFFFFF:08x}" == lines[1][1]
