# SPDX-License-Identifier: Apache-2.0
"""What a wheel requires: the torch that it is built against, in any patch release. Run by scikit-build-core."""

from __future__ import annotations

import sysconfig
from importlib.metadata import distributions
from typing import Any


def dynamic_metadata(settings: dict[str, Any], project: dict[str, Any]) -> dict[str, list[str]]:
    # Where cmake/InstalledTorch.cmake looks, also from inside pip's isolated environment.
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    torch = next(iter(distributions(name="torch", path=folders)), None)
    if torch is None:  # CMake says what to do about it
        return {"dependencies": ["torch"]}
    major, minor = torch.version.split(".")[:2]
    return {"dependencies": [f"torch=={major}.{minor}.*"]}


def dynamic_wheel(settings: dict[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
