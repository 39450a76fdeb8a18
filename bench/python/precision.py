#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What 16 bits do to signs: gradients of one model's examples in float32 and under autocast, balanced by pairs.

For each: how many signs of pairs fall otherwise than in float64 against the same accumulator, and the herding bound
(l-infinity, of the gradients in float64) of the order after some epochs, beside that of a random order.

    python bench/python/precision.py [--examples 2048] [--epochs 10]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import cdgrab

BATCH = 64


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,)


def convolutions() -> tuple[nn.Module, tuple[int, ...]]:
    layers = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 36, 10))
    return nn.Sequential(*layers), (1, 14, 14)


def rows_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """(n, d), in float64."""
    rows = []
    for i in range(0, len(x), BATCH):
        part = slice(i, i + BATCH)
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x[part]).to(torch.promote_types(x.dtype, torch.float32)), y[part])
        geometry = cdgrab.GradientGeometry(parameters=model).compute(loss, len(x[part]))
        rows.append(geometry.rows().double())
    return torch.cat(rows)


def other_signs(exact: torch.Tensor, rounded: torch.Tensor) -> float:
    """The share of pairs whose rounded difference is on the other side of the same accumulator."""
    total = torch.zeros(exact.size(1), dtype=torch.float64)
    others = 0
    for k in range(0, len(exact) - 1, 2):
        difference = exact[k] - exact[k + 1]
        positive = bool(difference @ total <= 0)
        others += positive != bool((rounded[k] - rounded[k + 1]) @ total <= 0)
        total += difference if positive else -difference
    return others / (len(exact) // 2)


def bound(exact: torch.Tensor, order: torch.Tensor) -> float:
    return float((exact[order] - exact.mean(0)).cumsum(0).abs().max())


def bound_of_order(exact: torch.Tensor, seen: torch.Tensor, epochs: int) -> float:
    sampler = cdgrab.Sampler(len(exact), "pair", seed=0)
    for _ in range(epochs):
        for batch in torch.utils.data.BatchSampler(sampler, BATCH, drop_last=False):
            sampler.step(seen[batch])
    return bound(exact, torch.tensor(list(sampler)))


def compare(name: str, make: Callable[[], tuple[nn.Module, tuple[int, ...]]], examples: int, epochs: int) -> None:
    torch.manual_seed(0)
    model, shape = make()
    x, y = torch.randn(examples, *shape), torch.randint(10, (examples,))
    exact = rows_of(copy.deepcopy(model).double(), x.double(), y, None)
    print(f"{name:14} random order: bound {bound(exact, torch.randperm(examples)):.3g}")
    for label, dtype in (("float32", None), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        seen = rows_of(model, x, y, dtype)
        print(
            f"{'':14} {label:9} signs that fall otherwise {100 * other_signs(exact, seen):5.2f}%   "
            f"bound {bound_of_order(exact, seen.float(), epochs):.3g}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    compare("MLP", mlp, given.examples, given.epochs)
    compare("convolutions", convolutions, given.examples, given.epochs)
