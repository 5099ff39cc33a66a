"""Exceptions that the command line prints as one line without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRONG_SETTINGS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a class raises for settings of other types, or of sizes beyond the memory."""


class UserError(ValueError):
    """A problem that the user can fix: the message says what is wrong, where, and what to do."""


class ParameterError(UserError):
    """A parameter, such as `position.coordinates`, has a value that cannot be used.

    `expected` is part of a sentence, such as "expected an integer >= 1".
    """

    def __init__(self, name: str, value: Any, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name, self.value, self.expected = name, value, expected

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.expected}"


@contextmanager
def parameter_of(parent: str) -> Iterator[None]:
    """Prefix the parameters of errors raised inside: `num_features` of `attention.feature_map`."""
    try:
        yield
    except ParameterError as error:
        raise ParameterError(f"{parent}.{error.name}", error.value, error.expected) from None


@contextmanager
def errors_name(source: str | Path) -> Iterator[None]:
    """Prefix the messages of errors raised inside with a file's path or a piece's name."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
