# SPDX-License-Identifier: Apache-2.0
"""Loads the library into the torch it was built for, and hands out its classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cdgrab import _build
from cdgrab.errors import UserError, translated

LIBRARY = Path(__file__).parent / "lib" / "libcdgrab_torch.so"


def _load() -> None:
    found = torch.__version__.split("+")[0]
    # Patch releases keep the layout of classes: beside another one of those the library says so, and works.
    if found.split(".")[:2] != _build.TORCH_VERSION.split(".")[:2]:
        raise ImportError(
            f"cdgrab {_build.VERSION} was built for torch {_build.TORCH_VERSION}, but torch {found} is installed; "
            "rebuild it against this one: pip install --force-reinstall --no-deps ."
        )
    if not LIBRARY.is_file():
        raise ImportError(f"cdgrab: {LIBRARY} is missing; install the package again")
    torch.ops.load_library(str(LIBRARY))  # type: ignore[no-untyped-call]


_load()


class Native:
    """An object of the library whose methods raise cdgrab's exceptions."""

    def __init__(self, name: str, *args: Any) -> None:
        self.object = translated(getattr(torch.classes.cdgrab, name))(*args)

    @classmethod
    def of(cls, made: Any) -> Native:
        """An object that another one has made."""
        out = cls.__new__(cls)
        out.object = made
        return out

    def __getattr__(self, name: str) -> Any:
        method = translated(getattr(self.object, name))
        setattr(self, name, method)
        return method


def observe_options(
    reduction: str, batch_axis: int | None, parameters: Any, pattern: str | None, budget: int | None, strict: bool
) -> Any:
    """What the library's observe() takes after the loss and its examples. Parameters: a module, or (name, tensor)s."""
    if reduction not in ("mean", "sum"):
        raise UserError(f"reduction is {reduction!r}; 'mean' and 'sum' are allowed")
    if batch_axis is not None and batch_axis < 0:
        raise UserError(f"batch_axis is {batch_axis}; count from the front: 0 or more is allowed")
    if parameters is None and pattern is not None:
        raise UserError("pattern without parameters; give the model, or its named_parameters()")
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.named_parameters()
    elif isinstance(parameters, dict):
        parameters = parameters.items()
    named = [] if parameters is None else list(parameters)
    return translated(torch.classes.cdgrab.ObserveOptions)(
        reduction == "sum",
        -1 if batch_axis is None else batch_axis,
        -1 if budget is None else budget,
        strict,
        None if parameters is None else [name for name, _ in named],
        [tensor for _, tensor in named],
        pattern or "*",
    )


def with_rows(options: Any, example_of_row: Sequence[int] | torch.Tensor | None) -> Any:
    """The same options for a batch that is one axis of rows, each of an example."""
    if example_of_row is None:
        return options
    return translated(options.with_rows)(torch.as_tensor(example_of_row))
