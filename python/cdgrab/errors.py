# SPDX-License-Identifier: Apache-2.0
"""What cdgrab raises: the kinds of docs/errors.md, each also the built-in exception one would expect."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any, TypeVar


class Error(Exception):
    """Base of everything cdgrab raises on purpose."""


class UserError(Error, ValueError):
    """A wrong argument, option or call order."""


class FileError(Error, OSError):
    """A file is missing, damaged or not of the expected kind."""


class StateMismatch(FileError):
    """A state is sound but belongs to something else: other size, order, model or version."""


class CommunicationError(Error, RuntimeError):
    """Another rank failed or went away."""


class InvariantError(Error, RuntimeError):
    """cdgrab itself is wrong: please report it."""


_KINDS = {kind.__name__: kind for kind in (UserError, FileError, StateMismatch, CommunicationError, InvariantError)}
_MESSAGE = re.compile(r"cdgrab\.(\w+): (.*)", re.DOTALL)

F = TypeVar("F", bound=Callable[..., Any])


def translated(function: F) -> F:
    """Raise what the library threw as the exception of its kind."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            found = _MESSAGE.search(str(error))
            if found is None or found[1] not in _KINDS:
                raise
            raise _KINDS[found[1]](found[2].strip()) from None

    return call  # type: ignore[return-value]


def whole_number(name: str, value: object, least: int = -(2**63)) -> int:
    """An argument that counts something, as the library takes it. Throws UserError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number < 2**63:
        allowed = f", {least} or more," if least > -(2**63) else " of 64 bits"
        raise UserError(f"{name} is {value!r}; a whole number{allowed} is needed")
    return number
