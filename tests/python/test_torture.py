# SPDX-License-Identifier: Apache-2.0
"""Promises under duress (docs/reliability.md): every place to stop at, any number of loader workers, kills, and runs
that last. CDGRAB_TORTURE=1 in the environment: the long versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_state import stateful, uninterrupted
from torch import nn
from training import Task, flat, through_torch

import cdgrab

AT_LENGTH = "CDGRAB_TORTURE" in os.environ
ROOT = Path(__file__).parents[2]
BUILD = Path(cdgrab.__file__).parents[2].parent
SHIM = BUILD / "tests" / "torture" / "libcdgrab_fault_shim.so"
STEPS = 6  # of an epoch: 23 examples in batches of 4


def resumed(order: str, stops: list[tuple[int, int]], by_loader: bool = True) -> list[int]:
    """Three epochs on a stateful loader. stops: so many loader workers until that many steps are done in all. Its own
    state goes with the same number of workers only; the sampler's is enough where all is observed."""
    task = Task()
    sampler = cdgrab.Sampler(23, order, seed=2)
    loader, stream, done = None, [], 0
    for stop, workers in [*stops, (3 * STEPS, stops[-1][1])]:
        position = loader.state_dict() if loader and by_loader else None
        if loader:
            state = through_torch(sampler.state_dict())
            sampler = cdgrab.Sampler(23, order)
            sampler.load_state_dict(state)
        loader = stateful(task, sampler, workers)
        if position is not None:
            loader.load_state_dict(through_torch(position))
        while done < stop:
            for batch in loader:
                stream += task.step(sampler, batch)
                done += 1
                if done == stop:
                    break
    return stream


@pytest.mark.parametrize("order", ["pair", "mean", "rr"])
def test_a_stateful_loader_goes_on_from_every_step(order: str) -> None:
    expected = flat(uninterrupted(order)[0])
    for stop in range(2 * STEPS + 1):
        for workers in range(4) if AT_LENGTH else (stop % 4,) if stop % 6 == 1 else (0,):
            assert resumed(order, [(stop, workers)]) == expected, (stop, workers)


@pytest.mark.parametrize("order", ["pair", "mean"])
def test_another_number_of_loader_workers_goes_on_from_every_step(order: str) -> None:
    expected = flat(uninterrupted(order)[0])
    for stop in range(2 * STEPS + 1):
        for before in range(4) if AT_LENGTH else (stop % 4,) if stop % 5 == 2 else ():
            after = (before + 1 + stop % 3) % 4  # every other number in three steps
            assert resumed(order, [(stop, before), (stop, after)], by_loader=False) == expected, (stop, before, after)


@pytest.mark.parametrize("order", ["pair", "rr"])
def test_a_stateful_loader_may_be_stopped_three_times_in_an_epoch(order: str) -> None:
    expected = flat(uninterrupted(order)[0])
    for workers in range(4) if AT_LENGTH else (0, 2):
        assert resumed(order, [(7, workers), (9, workers), (10, workers)]) == expected
    for first in range(STEPS if AT_LENGTH else 2):
        for second in range(first, STEPS + 1):
            assert resumed(order, [(first, 0), (second, 0), (STEPS, 0)]) == expected, (first, second)


@pytest.mark.skipif(not SHIM.exists(), reason="the package is not that of a build folder with tests")
def test_the_example_survives_every_kill() -> None:
    killing = [sys.executable, ROOT / "tests/torture/kill.py", "example", ROOT / "examples/python/resume.py", SHIM]
    finished = subprocess.run(
        [*killing, "--trials", "60" if AT_LENGTH else "2"],
        env={**os.environ, "PYTHONPATH": str(Path(cdgrab.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    print(finished.stdout)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_million_observed_steps_take_no_memory() -> None:
    model = nn.Linear(4, 2)
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    sampler = cdgrab.Sampler(64)
    batches = cdgrab.BatchSampler(sampler, 4)
    steps = 1_000_000 if AT_LENGTH else 2_000
    done = begin = 0
    while done < steps:
        for batch in batches:
            loss = F.cross_entropy(model(x[batch]), y[batch])
            sampler.observe(loss, len(batch))
            model.zero_grad()
            loss.backward()
            done += 1
        if begin == 0 and done >= steps // 10:
            begin = resident()
    print(f"{done} steps, {begin // 1024} KiB resident after a tenth, {resident() // 1024} at the end")
    assert sampler.epoch == done // 16 - 1
    assert resident() <= begin + 2**20
