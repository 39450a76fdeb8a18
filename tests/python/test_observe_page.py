# SPDX-License-Identifier: Apache-2.0
"""The Python programs of docs/observe.md run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "observe.md"


def programs():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_its_programs():
    assert len(programs()) == 2


@pytest.mark.parametrize(("program", "observed"), list(zip(programs(), [64, 8], strict=True)), ids=["rows", "compile"])
def test_a_program_of_the_page_observes_everything(program, observed):
    names = {"__name__": "__main__"}
    exec(compile(program, str(PAGE), "exec"), names)
    assert names["sampler"].report()["observed"] == observed
