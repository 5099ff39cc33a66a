"""Values that belong to one backward pass."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class PassLocal(Generic[T]):
    """A value that the functions of one backward pass share, such as a sum over layers.

    A pass may stop before the function that takes the value, as in `torch.autograd.grad(loss, q)`.
    The next pass then drops the value.

    Args:
        create: returns a new value, once for each pass.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._value: T | None = None
        self._pass_id = -1

    def get(self) -> T:
        """Return the value of the current pass."""
        pass_id = torch._C._current_graph_task_id()
        if self._value is None or pass_id != self._pass_id:
            self._value, self._pass_id = self._create(), pass_id
        return self._value

    def take(self) -> T:
        """Return the value of the current pass and drop it, so that its memory can be freed."""
        value = self.get()
        self._value = None
        return value
