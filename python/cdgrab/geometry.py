# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of a loss as numbers, without ordering anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from cdgrab._arguments import list_of, text_of
from cdgrab._native import Native, observe_options, rows_of_batch
from cdgrab.errors import UserError, whole_number

Parameters = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | None
Direction = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


class GradientGeometry:
    """Per-example gradients of a loss as numbers: products, norms, weighted sums.

    Call observe(loss, batch_size) before the backward you run anyway, or compute(loss, batch_size), which runs one of
    its own and leaves the graph and every .grad as they are; then ask. B is the batch size.

    >>> import torch, cdgrab
    >>> model = torch.nn.Linear(3, 1)
    >>> geometry = cdgrab.GradientGeometry(parameters=model).compute(model(torch.ones(4, 3)).mean(), 4)
    >>> geometry.names()
    ['bias', 'weight']
    >>> geometry.norms()
    tensor([2., 2., 2., 2.])
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
        self._native = Native("GradientGeometry")
        self._native.observe_with(observe_options(reduction, batch_axis, parameters, pattern, budget, strict))

    def observe(
        self, loss: torch.Tensor, batch_size: int, *, example_of_row: Sequence[int] | torch.Tensor | None = None
    ) -> None:
        """Reads the gradients in the backward of `loss` that you run next.

        In a batch that is one axis of rows (packed, ragged), row r is of example `example_of_row[r]` of the batch.
        """
        count = whole_number("batch_size", batch_size, least=0)
        self._native.observe(loss, count, rows_of_batch(example_of_row))

    def compute(
        self, loss: torch.Tensor, batch_size: int, *, example_of_row: Sequence[int] | torch.Tensor | None = None
    ) -> GradientGeometry:
        """Reads them in a backward of its own; returns the geometry itself."""
        count = whole_number("batch_size", batch_size, least=0)
        self._native.compute(loss, count, rows_of_batch(example_of_row))
        return self

    def gram(self) -> torch.Tensor:
        """(B, B): the products of the gradients with each other."""
        return self._native.gram()  # type: ignore[no-any-return]

    def cross(self, other: GradientGeometry) -> torch.Tensor:
        """(B, B'): their products with the gradients of another loss of the same model.

        A parameter that only one of the two depends on adds nothing.

        >>> import torch, cdgrab
        >>> model = torch.nn.Linear(3, 1, bias=False)
        >>> training = cdgrab.GradientGeometry().compute(model(torch.eye(3)).mean(), 3)
        >>> validation = cdgrab.GradientGeometry().compute(model(torch.tensor([[1.0, 2.0, 4.0]])).mean(), 1)
        >>> training.cross(validation)
        tensor([[1.],
                [2.],
                [4.]])
        """
        if not isinstance(other, GradientGeometry):
            raise UserError(f"cross takes a GradientGeometry, not a {type(other).__name__}")
        return self._native.cross(other._native.object)  # type: ignore[no-any-return]

    def norms(self) -> torch.Tensor:
        """(B): the lengths of the gradients."""
        return self._native.norms()  # type: ignore[no-any-return]

    def inner(self, direction: Direction) -> torch.Tensor:
        """(B): products with a direction, (B, K) with several.

        A direction is one tensor per parameter in the order of parameters(), or a mapping that has all names();
        further names in it count nothing. For K directions at once each tensor has a first dimension of K more.

        >>> import torch, cdgrab
        >>> model = torch.nn.Linear(2, 1)
        >>> geometry = cdgrab.GradientGeometry(parameters=model).compute(model(torch.eye(2)).mean(), 2)
        >>> geometry.inner([torch.tensor([1.0]), torch.tensor([[3.0, 5.0]])])
        tensor([4., 6.])
        >>> geometry.inner({"weight": torch.tensor([[3.0, 5.0]]), "bias": torch.tensor([1.0])})
        tensor([4., 6.])
        """
        if isinstance(direction, Mapping):
            return self._native.inner_named(dict(direction))  # type: ignore[no-any-return]
        return self._native.inner(list_of("direction", direction))  # type: ignore[no-any-return]

    def weighted_sum(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """The sum of weights[i] times the gradient of example i: one tensor per parameter, of its shape and type.

        An example of weight zero is left out, even if its gradient is not finite.

        >>> import torch, cdgrab
        >>> model = torch.nn.Linear(2, 1)
        >>> geometry = cdgrab.GradientGeometry().compute(model(torch.eye(2)).mean(), 2)
        >>> geometry.weighted_sum(torch.tensor([2.0, -1.0]))
        [tensor([1.]), tensor([[ 2., -1.]])]
        """
        return list(self._native.weighted_sum(weights))

    def parameters(self) -> list[torch.Tensor]:
        """Those that the loss depends on, in the order in which they were met."""
        return list(self._native.parameters())

    def rules(self) -> list[str]:
        """Of each of them the nodes that its gradients were read off.

        ``"by example: "`` stands before a node that no rule covers: it was run once more for every example.
        """
        return list(self._native.rules())

    def names(self) -> list[str]:
        """Of parameters(), as `parameters=` gave them; empty where they are not known."""
        return list(self._native.names())

    def part(self, pattern: str) -> GradientGeometry:
        """The parameters whose names match: a layer's share of everything above, without computing anything.

        The pattern is that of the constructor: names with * and ?, separated by commas; one that begins with ! takes
        away. Needs names: GradientGeometry(parameters=model).

        >>> import torch, cdgrab
        >>> model = torch.nn.Linear(4, 1)
        >>> geometry = cdgrab.GradientGeometry(parameters=model).compute(model(torch.ones(3, 4)).mean(), 3)
        >>> for name in geometry.names():
        ...     print(name, geometry.part(name).norms())
        bias tensor([1., 1., 1.])
        weight tensor([2., 2., 2.])
        """
        out = GradientGeometry.__new__(GradientGeometry)
        out._native = Native.of(self._native.part(text_of("pattern", pattern)))
        return out

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
