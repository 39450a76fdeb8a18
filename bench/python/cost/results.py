# SPDX-License-Identifier: Apache-2.0
"""What has been measured, in one file that grows with every row: a run that is broken off goes on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import cdgrab

from .cells import FAILS, Cell


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def library() -> str:
    """Figures of another build are not ours."""
    files = sorted((Path(cdgrab.__file__).parent / "lib").glob("*.so*"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


class Results:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {"torch": torch.__version__, "processor": processor(), "library": library()}
        empty: dict[str, Any] = {
            "environment": self.environment,
            "models": {},
            "cells": {},
            "growth": {},
            "programs": {},
        }
        self.entries = empty
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["environment"] == self.environment:
                self.entries = stored
            else:
                print(f"{path}: figures of another build or machine; all is measured anew")

    def cell(self, model: str, batch: int, contender: str) -> Cell | None:
        stored = self.entries["cells"].get(f"{model}/{batch}/{contender}")
        return None if stored is None else Cell(**stored)

    def batches(self, model: str) -> list[int]:
        """Those that something is known of."""
        keys = (key.split("/", 2) for key in self.entries["cells"])
        return sorted({int(batch) for name, batch, _ in keys if name == model})

    def lacks(self, model: str, batch: int, contender: str, seconds: float) -> bool:
        """Never measured, or in less time than now; what failed is tried again, since a peer may be installed now."""
        cell = self.cell(model, batch, contender)
        return cell is None or cell.status == FAILS or cell.seconds < seconds

    def add_row(self, model: str, batch: int, cells: dict[str, Cell]) -> None:
        for contender, cell in cells.items():
            self.entries["cells"][f"{model}/{batch}/{contender}"] = asdict(cell)
        self.save()

    def add(self, part: str, name: str, value: Any) -> None:
        self.entries[part][name] = value
        self.save()

    def save(self) -> None:
        """Beside, and renamed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.entries, indent=1) + "\n")
        os.replace(beside, self.path)
