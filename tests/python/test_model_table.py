# SPDX-License-Identifier: Apache-2.0
"""The models of docs/models.md: each is observed exactly, or refused with the reason."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

ROOT = Path(__file__).parents[2]

# Every other one has been observed, and stays so.
MAY_BE_REFUSED = {"compile"}
WITHOUT_FALLBACK = ("gpt2", "bert", "llama", "vit")


@pytest.fixture(scope="module")
def rows():
    command = [sys.executable, "-m", "bench.python.models", "--fast", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    return {row["name"]: row for row in json.loads(run.stdout)}


def test_every_row_is_exact_or_refused_with_the_reason(rows):
    wrong = {}
    for name, row in rows.items():
        ours = row["results"]["cdgrab"]
        exact = ours["error"] is not None and ours["error"] <= row["tolerance"]
        refused = ours["reason"] is not None and ours["reason"].startswith("UserError: [observe]")
        if not exact and not refused:
            wrong[name] = ours
    assert not wrong


def test_what_has_been_observed_once_is_not_refused_again(rows):
    refused = {name: row["results"]["cdgrab"]["reason"] for name, row in rows.items() if name not in MAY_BE_REFUSED}
    assert not {name: reason for name, reason in refused.items() if reason}


def test_common_transformers_need_no_fallback(rows):
    used = {rule for name in WITHOUT_FALLBACK for rule in rows[name]["rules"] or []}
    assert not [rule for rule in used if "by example" in rule]


def test_only_bfloat16_is_measured_less_closely(rows):
    assert [name for name, row in rows.items() if row["tolerance"] != 1e-5] == ["autocast"]
