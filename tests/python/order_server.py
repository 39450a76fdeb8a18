# SPDX-License-Identifier: Apache-2.0
"""The order server of the CD-GraB paper, dull: it keeps every vector, and balances when the epoch is over."""

from __future__ import annotations

import torch


def next_orders(
    orders: list[list[int]], seen: list[list[tuple[int, torch.Tensor]]], shared: bool = True
) -> list[list[int]]:
    """From the workers' orders and what each saw, (example, vector) in order of arrival, those that follow.

    One accumulator for all (cd-pair) or one each (id-pair); deterministic signs.
    """
    signs: list[dict[int, int]] = [{} for _ in orders]
    sums = [torch.zeros(()) for _ in orders]
    for k in range(max(len(arrived) for arrived in seen) // 2):
        for worker, arrived in enumerate(seen):
            if 2 * k + 1 >= len(arrived):
                continue
            (first, x), (second, y) = arrived[2 * k : 2 * k + 2]
            at = 0 if shared else worker
            difference = x - y
            sign = 1 if float((difference * sums[at]).sum()) <= 0 else -1
            sums[at] = sums[at] + sign * difference
            signs[worker][first], signs[worker][second] = sign, -sign
    return [
        [e for e in order if sign.get(e, 0) > 0]
        + [e for e in order if e not in sign]
        + [e for e in reversed(order) if sign.get(e, 0) < 0]
        for order, sign in zip(orders, signs, strict=True)
    ]


def integer_gradient(example: int, epoch: int, size: int = 5) -> torch.Tensor:
    """Small integers: every sum and product of them is exact."""
    return torch.tensor(
        [((example * 7919 + k * 104729 + epoch * 1299709) * 2654435761 >> 16) % 11 - 5 for k in range(size)],
        dtype=torch.float32,
    )
