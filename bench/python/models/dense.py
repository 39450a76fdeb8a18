# SPDX-License-Identifier: Apache-2.0
"""Vectors in, a class out: plain layers, weights that are made of others, and other ways to run them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from .case import Case, classifier

WIDTH = 256


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )  # fmt: skip


def logistic() -> Case:
    return classifier(nn.Linear(WIDTH, 10), (WIDTH,))


def mlp() -> Case:
    return classifier(perceptron(), (WIDTH,))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32)
        self.both = nn.Bilinear(32, 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(self.left(x).tanh(), self.right(x).tanh())  # type: ignore[no-any-return]


def bilinear() -> Case:
    return classifier(Bilinear(), (WIDTH,))


class SoftExperts(nn.Module):
    """Every expert sees every example, and counts by its gate."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x).softmax(1)
        outputs = torch.stack([expert(x).relu() for expert in self.experts], 1)
        return self.head((gates.unsqueeze(2) * outputs).sum(1))  # type: ignore[no-any-return]


class RoutedExperts(SoftExperts):
    """An example goes to one expert only, so that experts see batches of their own."""

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(1).max(1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            mixed = mixed.index_add(0, mine, weight[mine, None] * expert(x[mine]).relu())
        return self.head(mixed)  # type: ignore[no-any-return]


def soft_experts() -> Case:
    return classifier(SoftExperts(4), (WIDTH,))


def routed_experts() -> Case:
    return classifier(RoutedExperts(2), (WIDTH,))


def weight_normed() -> Case:
    return classifier(
        nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), weight_norm(nn.Linear(WIDTH, 10))), (WIDTH,)
    )


def spectral_normed() -> Case:
    return classifier(nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, 10)), (WIDTH,))


class Swish(torch.autograd.Function):
    """x sigmoid(slope x), with a slope per feature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(x, slope)
        return x * (slope * x).sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, slope = ctx.saved_tensors
        gate = (slope * x).sigmoid()
        inner = x * gate * (1 - gate)
        return gradients[0] * (gate + slope * inner), (gradients[0] * x * inner).sum(0)


class LearntSwish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Swish.apply(x, self.slope)  # type: ignore[no-any-return,no-untyped-call]


def custom_function() -> Case:
    return classifier(nn.Sequential(nn.Linear(WIDTH, WIDTH), LearntSwish(), nn.Linear(WIDTH, 10)), (WIDTH,))


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)  # type: ignore[no-any-return]


def autocast() -> Case:
    return classifier(Autocast(), (WIDTH,), tolerance=2.0**-6)


def doubles() -> Case:
    return classifier(perceptron().double(), (WIDTH,), dtype=torch.float64)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = perceptron()
        self.trunk, self.head = layers[:-1], layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.trunk, x, use_reentrant=False))  # type: ignore[no-any-return]


def checkpointed() -> Case:
    return classifier(Checkpointed(), (WIDTH,))


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.compile(perceptron(), backend="aot_eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def compiled() -> Case:
    return classifier(Compiled(), (WIDTH,))
