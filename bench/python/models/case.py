# SPDX-License-Identifier: Apache-2.0
"""What a row of the table is made of: a model, its examples, and a loss as one would write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Module = Callable[..., Tensor]
Loss = Callable[[Module, Tensor, Tensor], Tensor]
Examples = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """`examples` makes a batch, examples first; `loss` is its mean, `losses` one number per example.

    `mixes` says that examples meet in the forward (batch norm in training). `example_of_row` names the rows that a
    batch becomes, if the graph does not tell whose they are. `tolerance` is 1e-5 unless the numbers
    themselves have fewer digits.
    """

    model: nn.Module
    examples: Examples
    loss: Loss
    losses: Loss
    mixes: bool = False
    batch_axis: int | None = None
    example_of_row: Callable[[Tensor], Tensor] | None = None
    tolerance: float = 1e-5


@dataclass(frozen=True)
class Entry:
    family: str
    name: str
    make: Callable[[], Case]
    says: str

    def build(self) -> Case:
        """The same numbers every time."""
        torch.manual_seed(0)
        return self.make()


def batch_of(case: Case, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return case.examples(size)


def class_loss(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def class_losses(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def token_loss(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def token_losses(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)


def pixel_loss(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def pixel_losses(model: Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none").mean((1, 2))


def classifier(
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    classes: int = 10,
    mixes: bool = False,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> Case:
    """Of noise in `shape`."""

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, *shape, dtype=dtype), torch.randint(classes, (batch,))

    return Case(model, examples, class_loss, class_losses, mixes=mixes, tolerance=tolerance)


def token_classifier(model: nn.Module, length: int, vocabulary: int, *, classes: int = 10) -> Case:
    """One label for a sequence of tokens."""

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randint(vocabulary, (batch, length)), torch.randint(classes, (batch,))

    return Case(model, examples, class_loss, class_losses)


def language_model(model: nn.Module, length: int, vocabulary: int) -> Case:
    """One label for every token."""

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))

    return Case(model, examples, token_loss, token_losses)
