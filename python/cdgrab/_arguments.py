# SPDX-License-Identifier: Apache-2.0
"""Arguments as the library takes them; what cannot be made one of these is a UserError."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from cdgrab.errors import UserError, whole_number


def size_of(name: str, value: object) -> int:
    """How many examples there are: the number itself, or of the data set that it is."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        return len(value)
    return whole_number(name, value, least=0)


def whole_numbers(name: str, values: object) -> torch.Tensor:
    """int64; a fraction is none, where torch would cut it off."""
    numbers = _tensor(name, values)
    if numbers.numel() and (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool):
        raise UserError(f"{name} holds {numbers.dtype}; whole numbers are needed")
    return numbers.to(torch.int64)


def numbers_of(name: str, values: object) -> torch.Tensor:
    """float64."""
    numbers = _tensor(name, values)
    if numbers.is_complex() or numbers.dtype == torch.bool:
        raise UserError(f"{name} holds {numbers.dtype}; numbers are needed")
    return numbers.to(torch.float64)


def _tensor(name: str, values: object) -> torch.Tensor:
    try:
        numbers = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} is {_shown(values)}, which is no list of numbers: {error}") from None
    if numbers.layout != torch.strided or numbers.is_meta:
        raise UserError(f"{name} is a tensor that is not plain numbers in memory")
    return numbers


def flag_of(name: str, value: object) -> bool:
    if not isinstance(value, int):
        raise UserError(f"{name} is {_shown(value)}; True or False is needed")
    return bool(value)


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{name} is {_shown(value)}; a text is needed")
    return value


def list_of(name: str, values: object) -> list[Any]:
    try:
        if not isinstance(values, str | bytes):
            return list(values)  # type: ignore[call-overload, no-any-return]
    except (TypeError, RuntimeError):
        pass
    raise UserError(f"{name} is {_shown(values)}; several are needed, in a list or the like")


def rows_of(gradients: object) -> list[torch.Tensor]:
    """B x d, or B x .. tensors, one per parameter."""
    if isinstance(gradients, torch.Tensor):
        return [gradients]
    return list_of("per_sample_grads", gradients.values() if isinstance(gradients, Mapping) else gradients)


def shapes_of(shapes: object) -> list[list[int]]:
    return [
        [whole_number("a size in shapes", size, least=0) for size in list_of("a shape", shape)]
        for shape in list_of("shapes", shapes)
    ]


def entries_of(state: object) -> dict[str, Any]:
    """Of a state, which is a mapping."""
    if not isinstance(state, Mapping):
        raise UserError(f"a state that is {_shown(state)}; give what state_dict() returned")
    return dict(state)


def path_of(path: object) -> str:
    try:
        name = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise UserError(f"the path is {_shown(path)}; a text or a Path is needed") from None
    if isinstance(name, bytes) or "\0" in name:
        raise UserError(f"the path is {_shown(path)}; a text without a zero in it is needed")
    return str(name)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
