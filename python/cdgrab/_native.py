# SPDX-License-Identifier: Apache-2.0
"""Loads the library into the torch it was built for, and hands out its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cdgrab import _build
from cdgrab._arguments import flag_of, list_of, text_of, whole_numbers
from cdgrab.errors import UserError, translated, whole_number

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
    """What the library's observe_with() takes. Parameters: a module, or (name, tensor) pairs."""
    if text_of("reduction", reduction) not in ("mean", "sum"):
        raise UserError(f"reduction is {reduction!r}; 'mean' and 'sum' are allowed")
    axis = -1 if batch_axis is None else whole_number("batch_axis, counted from the front,", batch_axis, least=0)
    limit = -1 if budget is None else whole_number("budget", budget, least=0)
    if parameters is None and pattern is not None:
        raise UserError("pattern without parameters; give the model, or its named_parameters()")
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.named_parameters()
    elif isinstance(parameters, Mapping):
        parameters = parameters.items()
    named = [] if parameters is None else list_of("parameters", parameters)
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in named):
        raise UserError("parameters that are not (name, tensor) pairs; give the model, or its named_parameters()")
    return translated(torch.classes.cdgrab.ObserveOptions)(
        reduction == "sum",
        axis,
        limit,
        flag_of("strict", strict),
        None if parameters is None else [text_of("the name of a parameter", name) for name, _ in named],
        [tensor for _, tensor in named],
        "*" if pattern is None else text_of("pattern", pattern) or "*",
    )


def rows_of_batch(example_of_row: Sequence[int] | torch.Tensor | None) -> torch.Tensor | None:
    """Of a batch that is one axis of rows, each of an example, as the library takes it."""
    return None if example_of_row is None else whole_numbers("example_of_row", example_of_row)
