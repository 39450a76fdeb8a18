# SPDX-License-Identifier: Apache-2.0
"""Who is measured: the ways of cdgrab, and what one would use in its place, each as its documentation has it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

import cdgrab

from ..models.contenders import Autogram, Cdgrab, Loop, Opacus, Plain, Vmap


class Microbatch(Cdgrab):
    """Orders batches, by the gradient that the step has anyway."""

    def make_sampler(self) -> cdgrab.Sampler:
        return cdgrab.Sampler(self.examples, f"{self.order}; unit={self.batch}")

    def backward(self, x: Tensor, y: Tensor) -> None:
        self.case.loss(self.case.model, x, y).backward()  # type: ignore[no-untyped-call]
        self.sampler.observe_microbatch(self.parameters.values())


class Overlapped(Cdgrab):
    """Finds the signs on a thread of its own: one worker of the coordinated order, which is `pair`."""

    sampler: Any

    def make_sampler(self) -> Any:
        return cdgrab.DistributedSampler(
            self.examples, order=f"cd-{self.order}", overlap=True, batch_axis=self.case.batch_axis
        )

    def end_turn(self) -> None:
        """Waits for the thread, whose work would be counted as that of the next in turn."""
        self.sampler.end_epoch()
        self.batches = iter(())


class Published(Vmap):
    """grab-sampler, with the gradients of torch.func as its page has them."""

    sampler: Any

    def make_sampler(self) -> Sampler[int]:
        sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "python"))
        from grab_sampler_shim import published_sampler  # type: ignore[import-not-found]

        options = {"balance_type": "pair", "dtype": torch.float32}
        return published_sampler(range(self.examples), self.parameters, **options)  # type: ignore[no-any-return]

    def take(self, gradients: dict[str, Tensor]) -> None:
        self.sampler.step(gradients)


class Ordered(Loop):
    """A peer's gradients, handed to our own sorter: the same order."""

    sampler: cdgrab.Sampler

    def make_sampler(self) -> cdgrab.Sampler:
        return cdgrab.Sampler(self.examples, "pair")


class OrderedVmap(Ordered, Vmap):
    def take(self, gradients: dict[str, Tensor]) -> None:
        self.sampler.step(gradients)


class OrderedOpacus(Ordered, Opacus):
    def backward(self, x: Tensor, y: Tensor) -> None:
        super().backward(x, y)
        self.sampler.step([p.grad_sample for p in self.parameters.values()])  # type: ignore[attr-defined]


EPOCH = 8  # steps


@dataclass(frozen=True)
class Contender:
    """`orders`: it makes the order `pair`, by example. `turn`: steps after which its cost comes again, in epochs of
    `epoch` steps. `threaded`: the clock tells more than the processor's time."""

    name: str
    says: str
    make: Callable[..., Loop]
    ours: bool = False
    orders: bool = False
    turn: int = 1
    epoch: int = EPOCH
    threaded: bool = False


PLAIN = Contender("plain", "plain", Plain)


def by_spec(name: str, order: str) -> Contender:
    """An order that is not alike in every epoch has turns of as many epochs as it takes to be."""
    every = re.search(r"every=(\d+)", order)
    return Contender(
        name,
        f"`{order}`",
        partial(Cdgrab, order=order),
        ours=True,
        orders=order in ("pair", "pair; fused"),
        turn=EPOCH * int(every[1]) if every else 1,
    )


def ours(rank: int) -> list[Contender]:
    return [
        by_spec("exact", "pair"),
        by_spec("fused", "pair; fused"),
        by_spec(f"pca:{rank}", f"pair; sketch=pca:{rank}"),
        by_spec(f"pca:{rank}+fused", f"pair; sketch=pca:{rank}; fused"),
        by_spec(f"kron:{rank}", f"pair; sketch=kron:{rank}"),
        by_spec("every=2", "pair; every=2"),
        Contender(
            "overlapped", "`cd-pair` of one worker, overlap=True", Overlapped, ours=True, turn=4, epoch=4, threaded=True
        ),
        Contender("microbatch", "`pair; unit=B`, observe_microbatch", Microbatch, ours=True),
    ]


def peers() -> list[Contender]:
    """Imported here, once: what is forked later has no memory or time of that."""
    for package in ("opacus", "torchjd.autogram"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    return [
        Contender("grab-sampler", version("grab-sampler"), Published, orders=True),
        Contender("torch.func", f"torch {torch.__version__}, vmap(grad), no order", Vmap),
        Contender("opacus", f"{version('opacus')}, GradSampleModule, no order", Opacus),
        Contender("torchjd", f"{version('torchjd')}, autogram, the Gram matrix, no order", Autogram),
        Contender("torch.func+pair", "torch.func's gradients into cdgrab's sorter", OrderedVmap, orders=True),
        Contender("opacus+pair", "opacus' gradients into cdgrab's sorter", OrderedOpacus, orders=True),
    ]


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package}, not installed"
