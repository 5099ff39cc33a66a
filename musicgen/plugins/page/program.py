"""The program that a graph becomes: values as strided views of buffers, loops over them, calls.

Values of the graph have names. Shapes are known, so that reshaping, slicing and transposing cost
nothing: a value is a strided view of a buffer. Elementwise operations are fused into the loop that
needs them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto

Array = NDArray[Any]

LETTERS = "oabcdefghijklmn"
"""Parameters of a kernel: `o`, the array that it writes, then those that it reads."""

# Types of JavaScript's arrays by dtype. Integers of 64 bits are doubles.
TYPES = {"float32": "f", "float64": "d", "int64": "d", "int32": "i", "bool": "b"}
# Types of stored constants, by descending alignment; h is half precision.
STORED_TYPES = {"d": "<f8", "f": "<f4", "i": "<i4", "h": "<f2", "b": "u1"}
# Functions that kernels call.
_FUNCTIONS = (
    "square=x=>x*x,mod=(x,y)=>((x%y)+y)%y,elu=x=>x>0?x:Math.expm1(x),"
    "softplus=x=>Math.max(x,0)+Math.log1p(Math.exp(-Math.abs(x))),from=(i,n)=>i<0?i+n:i"
)


@dataclass
class View:
    """A value that is stored in a buffer.

    Attributes:
        buffer: number of the buffer.
        layout: an array of bytes that is never read, with the shape and strides of the value, in
            elements of the buffer.
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
    views: Sequence[View] = ()


def elements(places: Sequence[str], first: int = 1) -> list[str]:
    """Return the text of an element of each array that a kernel reads, at these places.

    Args:
        first: number of the parameter that the first place belongs to.
    """
    return [f"{LETTERS[i]}[{place}]" for i, place in enumerate(places, first)]


def nested_loops(
    layouts: Sequence[Array], starts: Sequence[str], body: Callable[..., str], counter: str = "i"
) -> str:
    """Return the text of loops over all elements of layouts with equal shapes.

    Dimensions that are adjacent in all of the layouts are merged into one.

    Args:
        starts: text of the first index in each layout.
        body: returns the text inside the loops; its arguments are the index in each layout.
        counter: first letter of the names of the loops' counters.
    """
    dims = _merged_dimensions(layouts)
    text, places = "", list(starts)
    for depth, (size, steps) in enumerate(dims):
        i = f"{counter}{depth}"
        text += f"for(let {i}=0;{i}<{size};{i}++){{"
        for number, step in enumerate(steps):
            if not step:
                continue
            moved = i if step == 1 else f"{i}*{step}"
            places[number] = moved if places[number] == "0" else f"{places[number]}+{moved}"
            if depth < len(dims) - 1:
                text += f"const {i}_{number}={places[number]};"
                places[number] = f"{i}_{number}"
    return text + body(*places) + "}" * len(dims)


def _merged_dimensions(layouts: Sequence[Array]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the size of each dimension to loop over, and its stride in each layout."""
    dims: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(layouts[0].shape):
        steps = tuple(layout.strides[axis] for layout in layouts)
        if size == 1:
            continue
        if dims and all(a == b * size for a, b in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = dims[-1][0] * size, steps
        else:
            dims.append((size, steps))
    return dims


class Program:
    """What the operations of a graph are compiled into.

    Loops with equal text become one kernel, a function of the arrays that it writes and reads.

    Args:
        arrays: the values of the graph for one token; only constants are used, and shapes.
        constants: names of the values that depend on neither token nor state.

    Attributes:
        values: where the compiled values are.
        uses: how often each value is read.
    """

    def __init__(self, arrays: Mapping[str, Array], constants: set[str]) -> None:
        self.arrays, self.constants = dict(arrays), constants
        self.values: dict[str, View | Expression] = {}
        self.uses: Counter[str] = Counter()
        self.inputs: set[int] = set()
        self._buffers: list[tuple[str, int, Array | None]] = []
        self._kernels: dict[tuple[str, int], int] = {}
        self._calls: list[str] = []

    # Values

    def new_buffer(self, array: Array, *, stored: bool = False) -> View:
        """Return a new buffer for an array; its elements are kept in it if `stored`."""
        self._buffers.append((TYPES[array.dtype.name], array.size, array if stored else None))
        return View(len(self._buffers) - 1, np.empty(array.shape, np.int8))

    def new_input(self, name: str) -> int:
        """Return the number of a new buffer that whoever calls a step may write."""
        self.values[name] = view = self.new_buffer(self.arrays[name], stored=True)
        self.inputs.add(view.buffer)
        return view.buffer

    def new_output(self, node: NodeProto) -> View:
        """Return a new buffer for the output of an operation."""
        name = node.output[0]
        self.values[name] = view = self.new_buffer(self.arrays[name])
        return view

    def view(self, name: str) -> View:
        """Return a value in its buffer; compute it, or store a constant, if it has none yet."""
        value = self.values.get(name)
        if not isinstance(value, View):
            view = self.new_buffer(self.arrays[name], stored=name in self.constants)
            if value is not None:
                self.assign(view, value)
            self.values[name] = value = view
        return value

    def expression(self, name: str, shape: Sequence[int]) -> Expression:
        """Return a value, broadcast to a shape, as an operand of an expression."""
        array = self.arrays[name]
        if name in self.constants and array.size == 1:
            number = array.item()
            text = json.dumps(int(number) if isinstance(number, bool) else number)
            return Expression(f"({text})" if text.startswith("-") else text)
        value = self.values.get(name)
        if isinstance(value, Expression) and array.shape == tuple(shape):
            return value
        return Expression("{0}", [self.view(name).broadcast(shape)])

    def dense(self, name: str) -> View:
        """Return a value in a buffer of its own that it fills, not the buffer of an input."""
        view = self.view(name)
        fills = view.layout.size == self._buffers[view.buffer][1]
        if fills and view.layout.flags.c_contiguous and view.buffer not in self.inputs:
            return view
        return self.copied(view, name)

    def copied(self, view: View, name: str) -> View:
        """Return a copy of a view of a value in a new buffer."""
        copy = self.new_buffer(self.arrays[name])
        self.assign(copy, Expression("{0}", [view]))
        return copy

    def constant(self, node: NodeProto, index: int) -> Array:
        """Return an input of an operation that must be a constant."""
        assert node.input[index] in self.constants
        return self.arrays[node.input[index]]

    # Calls

    def call(self, body: str, *buffers: int) -> None:
        """Add a call of the kernel with this body; buffers are the values of its parameters."""
        number = self._kernels.setdefault((body, len(buffers)), len(self._kernels))
        arguments = ",".join(f"v[{buffer}]" for buffer in buffers)
        self._calls.append(f"k{number}({arguments});")

    def loop(self, views: Sequence[View], body: Callable[..., str]) -> None:
        """Add a loop over views of equal shapes; `body` takes the index in each buffer."""
        starts = [str(view.offset) for view in views]
        text = nested_loops([view.layout for view in views], starts, body)
        self.call(text, *(view.buffer for view in views))

    def assign(self, output: View, value: Expression) -> None:
        """Add a loop that writes an expression into a view of its shape."""

        def body(place: str, *places: str) -> str:
            return f"o[{place}]={value.text.format(*elements(places))};"

        self.loop([output, *value.views], body)

    # The result

    def source(self) -> str:
        """Return the function from the list of arrays to the step, as JavaScript."""
        kernels = ",".join(
            f"k{number}=({','.join(LETTERS[:count])})=>{{{body}}}"
            for (body, count), number in self._kernels.items()
        )
        return f"(v)=>{{const {_FUNCTIONS},{kernels};return()=>{{{''.join(self._calls)}}};}}"

    def stored(self) -> tuple[list[tuple[int | str, ...]], bytes]:
        """Return a description of each buffer, and the constants; see `compile_step`."""
        constants = []
        for number, (kind, _, array) in enumerate(self._buffers):
            if array is not None:
                with np.errstate(over="ignore"):
                    is_half = kind == "f" and np.array_equal(array.astype(np.float16), array)
                stored = "h" if is_half else kind
                constants.append((stored, number, array.astype(STORED_TYPES[stored]).tobytes()))
        constants.sort(key=lambda each: [*STORED_TYPES].index(each[0]))
        described: list[tuple[int | str, ...]] = [(kind, size) for kind, size, _ in self._buffers]
        first = 0
        for stored, number, data in constants:
            described[number] += (stored, first)
            first += len(data)
        return described, b"".join(data for _, _, data in constants)
