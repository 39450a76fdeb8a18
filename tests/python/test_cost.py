# SPDX-License-Identifier: Apache-2.0
"""The benchmark of docs/benchmark.md, on its smallest model: what it writes, and that it goes on where it stopped."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNKNOWN = "pair; unheard-of"


def run(folder, *flags):
    command = [sys.executable, "-m", "bench.python.cost", "--out", str(folder), "--parts", "models", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost")
    flags = ("--only", "logistic", "--batch", "4", "--seconds", "0.01", "--spec", UNKNOWN)
    flags += ("--contenders", f"exact,microbatch,overlapped,torch.func+pair,{UNKNOWN}")
    return folder, flags, run(folder, *flags)


def cells_of(folder):
    return json.loads((folder / "results.json").read_text())["cells"]


def test_every_way_is_measured_beside_the_plain_step(measured):
    folder, _, ran = measured
    assert ran.returncode == 0, ran.stderr
    for way in ("exact", "microbatch", "overlapped", "torch.func+pair"):
        cell = cells_of(folder)[f"logistic/4/{way}"]
        assert cell["status"] == "measured", cell
        assert math.isfinite(cell["ratio"])
        assert cell["quartiles"][0] <= cell["ratio"] <= cell["quartiles"][1]


def test_an_order_that_is_not_known_is_listed_with_the_reason(measured):
    folder, _, ran = measured
    cell = cells_of(folder)[f"logistic/4/{UNKNOWN}"]
    assert cell["status"] == "not built"
    assert "unheard-of" in cell["reason"]
    assert "not built [1]" in ran.stdout


def test_what_has_been_measured_is_not_measured_again(measured):
    folder, flags, _ = measured
    before = cells_of(folder)
    again = run(folder, *flags)
    assert "logistic, B" not in again.stderr
    assert cells_of(folder) == before


def test_the_page_needs_nothing_else(measured):
    page = (measured[0] / "page.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert "<script" not in page
    assert page.count("<svg") == page.count("</svg>") == 1


def test_a_model_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    ran = run(tmp_path, "--only", "lenett")
    assert ran.returncode != 0
    assert "unknown lenett; allowed: logistic" in ran.stderr
