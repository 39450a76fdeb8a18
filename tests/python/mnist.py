# SPDX-License-Identifier: Apache-2.0
"""MNIST as tensors, from the folder that CDGRAB_DATA names."""

import functools
import gzip
import math
import os
import warnings
from pathlib import Path

import pytest
import torch


@functools.cache
def _read_idx(path):
    """An idx file of bytes, plain or gzipped."""
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    data = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    assert data[:3] == b"\0\0\x08", f"{path} is not an idx file of bytes"
    sizes = [int.from_bytes(data[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(data[3])]
    assert len(data) == 4 + 4 * len(sizes) + math.prod(sizes), f"{path} is cut off, or longer than it says"
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def load(count, dtype=torch.float64):
    """The first `count` training images (count x 1 x 28 x 28, 0 to 1) and labels; skips without CDGRAB_DATA."""
    if not os.environ.get("CDGRAB_DATA"):
        reason = "CDGRAB_DATA is not set: nothing was tested on MNIST (CONTRIBUTING.md)"
        warnings.warn(reason, stacklevel=2)  # skips alone pass unnoticed
        pytest.skip(reason)
    folder = Path(os.environ["CDGRAB_DATA"]) / "mnist"
    images = _read_idx(folder / "train-images-idx3-ubyte")[:count]
    labels = _read_idx(folder / "train-labels-idx1-ubyte")[:count]
    return images.unsqueeze(1).to(dtype) / 255, labels.long()
