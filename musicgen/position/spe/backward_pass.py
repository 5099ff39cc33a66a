"""Values that belong to one backward pass."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class PassLocal(Generic[T]):
    """A value that the functions of one backward pass share, such as a sum over layers.

    `create` makes a new one for each pass. What a pass leaves behind, because it stops short of the
    function that takes the value (`torch.autograd.grad(loss, q)`), is dropped by the next.
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
