# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of a loss as numbers, without ordering anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from cdgrab._native import Native, observe_options

Parameters = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | None


class GradientGeometry:
    """Inner products of the per-example gradients of a loss.

    Call observe(loss, batch_size) before the backward you run anyway, or compute(loss, batch_size), which runs one of
    its own and leaves the graph and every .grad as they are; then ask.
    """

    def __init__(
        self,
        *,
        parameters: Parameters = None,
        pattern: str | None = None,
        reduction: str = "mean",
        batch_axis: int | None = None,
        budget: int | None = None,
        strict: bool = False,
    ) -> None:
        self._options = observe_options(reduction, batch_axis, parameters, pattern, budget, strict)
        self._native = Native("GradientGeometry")

    def observe(self, loss: torch.Tensor, batch_size: int) -> None:
        self._native.observe(loss, batch_size, self._options)

    def compute(self, loss: torch.Tensor, batch_size: int) -> GradientGeometry:
        self._native.compute(loss, batch_size, self._options)
        return self

    def gram(self) -> torch.Tensor:
        """(B, B)."""
        return self._native.gram()  # type: ignore[no-any-return]

    def norms(self) -> torch.Tensor:
        """(B)."""
        return self._native.norms()  # type: ignore[no-any-return]

    def inner(self, direction: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B): products with one tensor per parameter, in the order of parameters()."""
        return self._native.inner(list(direction))  # type: ignore[no-any-return]

    def parameters(self) -> list[torch.Tensor]:
        """Those that the loss depends on, in the order in which they were met."""
        return list(self._native.parameters())

    def rules(self) -> list[str]:
        """Of each of them the nodes that its gradients were read off.

        ``"by example: "`` stands before a node that no rule covers: it was run once more for every example.
        """
        return list(self._native.rules())

    def rows(self) -> torch.Tensor:
        """(B, d): the gradients themselves, parameter by parameter."""
        return self._native.rows()  # type: ignore[no-any-return]


def gram(loss: torch.Tensor, batch_size: int, **options: object) -> torch.Tensor:
    """The Gram matrix of the per-example gradients; the graph and every .grad stay as they are.

    >>> import torch, cdgrab
    >>> model = torch.nn.Linear(3, 2)
    >>> loss = torch.nn.functional.cross_entropy(model(torch.randn(5, 3)), torch.randint(2, (5,)))
    >>> cdgrab.gram(loss, 5).shape
    torch.Size([5, 5])
    """
    return GradientGeometry(**options).compute(loss, batch_size).gram()  # type: ignore[arg-type]


def norms(loss: torch.Tensor, batch_size: int, **options: object) -> torch.Tensor:
    """The lengths of the per-example gradients.

    >>> import torch, cdgrab
    >>> model = torch.nn.Linear(3, 1)
    >>> cdgrab.norms(model(torch.ones(4, 3)).mean(), 4)
    tensor([2., 2., 2., 2.])
    """
    return GradientGeometry(**options).compute(loss, batch_size).norms()  # type: ignore[arg-type]
