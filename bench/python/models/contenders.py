# SPDX-License-Identifier: Apache-2.0
"""A training step: plain, with cdgrab, and with the tools that compute per-example gradients, as they document it."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.utils.data import BatchSampler, RandomSampler, Sampler

import cdgrab

from .case import Case
from .oracle import Rows, trained


class Loop(ABC):
    """Forward, backward, SGD, on one model, and the batches of a sampler: a random order, for those who make none."""

    def __init__(self, case: Case, batch: int, epoch: int = 8) -> None:
        self.case = case
        self.batch = batch
        self.examples = batch * epoch
        self.batches: Iterator[list[int]] = iter(())
        self.parameters = trained(case.model)
        self.optimizer = torch.optim.SGD(self.parameters.values(), lr=1e-6)
        self.sampler = self.make_sampler()

    def make_sampler(self) -> Sampler[int]:
        return RandomSampler(range(self.examples))

    def hand_out(self) -> list[int]:
        """The next batch, of the next epoch where this one is through."""
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(BatchSampler(self.sampler, self.batch, drop_last=False))
            batch = next(self.batches)
        return batch

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(x, y)
        self.optimizer.step()

    def end_turn(self) -> None:  # noqa: B027
        """When another loop is timed next; most have nothing to do then."""

    @abstractmethod
    def backward(self, x: Tensor, y: Tensor) -> None:
        """Leaves the mean in every .grad."""

    def rows(self, x: Tensor, y: Tensor) -> Rows | Tensor:
        """Per-example gradients by parameter, or the Gram matrix of one who has no more."""
        raise NotImplementedError


class Plain(Loop):
    def backward(self, x: Tensor, y: Tensor) -> None:
        self.case.loss(self.case.model, x, y).backward()  # type: ignore[no-untyped-call]


class Cdgrab(Loop):
    """Observes the loss; rows are read by a GradientGeometry, off the same graph in the same way."""

    sampler: cdgrab.Sampler

    def __init__(self, case: Case, batch: int, epoch: int = 8, order: str = "pair") -> None:
        self.order = order
        super().__init__(case, batch, epoch)
        self.rules: list[str] | None = None

    def make_sampler(self) -> cdgrab.Sampler:
        return cdgrab.Sampler(self.examples, self.order, batch_axis=self.case.batch_axis)

    def backward(self, x: Tensor, y: Tensor) -> None:
        loss = self.case.loss(self.case.model, x, y)
        self.sampler.observe(loss, len(x), example_of_row=self.rows_named(x))
        loss.backward()  # type: ignore[no-untyped-call]

    def rows(self, x: Tensor, y: Tensor) -> Rows:
        geometry = self.observed(x, y)
        self.rules = rules_of(geometry)
        return rows_of(geometry, self.parameters, len(x))

    def observed(self, x: Tensor, y: Tensor) -> cdgrab.GradientGeometry:
        geometry = cdgrab.GradientGeometry(parameters=self.case.model, batch_axis=self.case.batch_axis)
        loss = self.case.loss(self.case.model, x, y)
        geometry.observe(loss, len(x), example_of_row=self.rows_named(x))
        loss.backward()  # type: ignore[no-untyped-call]
        return geometry

    def rows_named(self, x: Tensor) -> Tensor | None:
        return None if self.case.example_of_row is None else self.case.example_of_row(x)


def rows_of(geometry: cdgrab.GradientGeometry, parameters: dict[str, torch.nn.Parameter], batch: int) -> Rows:
    """By name; zero for those that the loss does not depend on."""
    met = geometry.parameters()
    parts = torch.split(geometry.rows(), [p.numel() for p in met], 1)
    by_address = {p.data_ptr(): part for p, part in zip(met, parts, strict=True)}
    nothing = torch.zeros(())
    return {
        name: by_address.get(p.data_ptr(), nothing.expand(batch, p.numel())).view(batch, *p.shape)
        for name, p in parameters.items()
    }


def rules_of(geometry: cdgrab.GradientGeometry) -> list[str] | None:
    """What read each parameter; None from a cdgrab that does not tell."""
    rules = getattr(geometry, "rules", None)
    return None if rules is None else list(rules())


class Vmap(Loop):
    """torch.func: functional_call and vmap(grad), the model taking a batch of one."""

    def __init__(self, case: Case, batch: int, epoch: int = 8) -> None:
        super().__init__(case, batch, epoch)
        # They share their numbers with the model's, which the optimizer moves in place.
        self.shared = {name: p.detach() for name, p in self.parameters.items()}
        self.gradients = vmap(grad(self.loss_of_one), in_dims=(None, 0, 0))

    def loss_of_one(self, parameters: Rows, x: Tensor, y: Tensor) -> Tensor:
        def model(*args: Any, **options: Any) -> Tensor:
            return functional_call(self.case.model, parameters, args, options)  # type: ignore[no-any-return]

        return self.case.loss(model, x.unsqueeze(0), y.unsqueeze(0))

    def rows(self, x: Tensor, y: Tensor) -> Rows:
        return self.gradients(self.shared, x, y)  # type: ignore[no-any-return]

    def backward(self, x: Tensor, y: Tensor) -> None:
        gradients = self.rows(x, y)
        self.take(gradients)
        for name, p in self.parameters.items():
            p.grad = gradients[name].mean(0)

    def take(self, gradients: Rows) -> None:
        """For a sampler that orders by them."""


class Opacus(Loop):
    """GradSampleModule around the model as it is, strict; nothing is replaced by ModuleValidator.fix."""

    def __init__(self, case: Case, batch: int, epoch: int = 8) -> None:
        from opacus import GradSampleModule  # type: ignore[import-not-found]

        super().__init__(case, batch, epoch)
        self.model = GradSampleModule(case.model, batch_first=True, loss_reduction="mean")

    def backward(self, x: Tensor, y: Tensor) -> None:
        for p in self.parameters.values():
            p.grad_sample = None  # type: ignore[attr-defined]
        self.case.loss(self.model, x, y).backward()  # type: ignore[no-untyped-call]

    def rows(self, x: Tensor, y: Tensor) -> Rows:
        self.backward(x, y)
        found = {name: p.grad_sample for name, p in self.parameters.items()}  # type: ignore[attr-defined]
        for name, value in found.items():
            if not isinstance(value, Tensor):
                raise RuntimeError(f"the grad_sample of {name} is a {type(value).__name__}")
            if len(value) != len(x):
                raise RuntimeError(f"the grad_sample of {name} has {len(value)} rows, for {len(x)} examples")
        return found


class Autogram(Loop):
    """torchjd's Engine: the Gram matrix of the losses' gradients, then a backward with equal weights."""

    def __init__(self, case: Case, batch: int, epoch: int = 8) -> None:
        from torchjd.autogram import Engine  # type: ignore[import-not-found]

        super().__init__(case, batch, epoch)
        self.engine = Engine(case.model, batch_dim=0)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        return self.engine.compute_gramian(self.case.losses(self.case.model, x, y))  # type: ignore[no-any-return]

    def backward(self, x: Tensor, y: Tensor) -> None:
        losses = self.case.losses(self.case.model, x, y)
        self.engine.compute_gramian(losses)
        losses.backward(torch.full_like(losses, 1 / len(x)))  # type: ignore[no-untyped-call]


CONTENDERS: dict[str, type[Loop]] = {
    "plain": Plain,
    "cdgrab": Cdgrab,
    "torch.func": Vmap,
    "opacus": Opacus,
    "torchjd": Autogram,
}


def installed_peers() -> list[str]:
    packages = {"torch.func": "torch", "opacus": "opacus", "torchjd": "torchjd"}
    return [name for name, package in packages.items() if importlib.util.find_spec(package)]
