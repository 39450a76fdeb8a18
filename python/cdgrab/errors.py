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
# What torch says of an argument that it cannot hand over.
_WRONG_TYPE = re.compile(
    r"(\w+)\(\)\s+Expected a value of type '([^']+)' for argument .* but instead found type '([^']+)'"
)

F = TypeVar("F", bound=Callable[..., Any])


def translated(function: F) -> F:
    """Raise what the library threw as the exception of its kind."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            kind = _of_kind(str(error))
            if kind is None:
                raise
            raise kind from None

    return call  # type: ignore[return-value]


def _of_kind(text: str) -> Error | None:
    """The exception that a message of the library's, or torch's about our arguments, stands for."""
    wrong = _WRONG_TYPE.search(text)
    if wrong is not None:
        where = "" if wrong[1] == "__init__" else f"{wrong[1]}: "
        return UserError(f"{where}an argument of type {wrong[3]} where {wrong[2]} is needed")
    found = _MESSAGE.search(text)
    if found is None or found[1] not in _KINDS:
        return None
    return _KINDS[found[1]](found[2].strip())


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
