"""Values of a compiled step: strided views of buffers, and elementwise expressions of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class View:
    """A value that is stored in a buffer.

    Attributes:
        buffer: number of the buffer.
        layout: an array of bytes that is never read: its shape and strides are those of the value,
            in elements of the buffer.
        offset: index of the value's first element in the buffer.
    """

    buffer: int
    layout: Array
    offset: int = 0

    def moved(self, change: Callable[[Array], Array]) -> View:
        """Return the view of what `change` selects of the layout, without copying."""
        layout = change(self.layout)
        assert np.may_share_memory(layout, self.layout)
        before = self.layout.__array_interface__["data"][0]
        address = layout.__array_interface__["data"][0]
        return View(self.buffer, layout, self.offset + address - before)

    def __getitem__(self, index: Any) -> View:
        return self.moved(lambda x: x[index])

    def broadcast(self, shape: Sequence[int]) -> View:
        """Return the view broadcast to a shape, as numpy does."""
        return self.moved(lambda x: np.broadcast_to(x, shape))

    def corner(self, shape: Sequence[int], axis: int) -> View:
        """Return the first entry along an axis, repeated, of the first elements of a shape."""
        index: list[Any] = [slice(size) for size in shape]
        index[axis] = slice(1)
        return self[tuple(index)].broadcast(shape)


@dataclass
class Expression:
    """An elementwise expression that has no buffer yet: it is computed where it is used.

    Attributes:
        text: JavaScript, in which {0}, {1}, … stand for an element of each view.
        views: what it reads, all of the shape of the expression.
    """

    text: str
    views: list[View] = field(default_factory=list)


def combine(template: str, operands: Sequence[Expression]) -> Expression:
    """Return the expression that applies a template to the expressions of its operands."""
    texts: list[str] = []
    views: list[View] = []
    for operand in operands:
        places = [f"{{{len(views) + i}}}" for i in range(len(operand.views))]
        texts.append(operand.text.format(*places))
        views += operand.views
    return Expression(template.format(*texts), views)
