"""The program that a graph becomes: its buffers, its kernels and the calls of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from musicgen.plugins.page.compiler.loops import LETTERS, elements, literal, nested_loops
from musicgen.plugins.page.compiler.views import Array, Expression, View

if TYPE_CHECKING:
    import onnx

# Types of JavaScript's arrays by dtype. Integers of 64 bits are doubles.
TYPES = {"float32": "f", "float64": "d", "int64": "d", "int32": "i", "bool": "b"}
# Types in which constants are stored, those of the largest alignment first; h is half precision.
STORED_TYPES = {"d": "<f8", "f": "<f4", "i": "<i4", "h": "<f2", "b": "u1"}
# Functions that kernels call.
_FUNCTIONS = (
    "square=x=>x*x,mod=(x,y)=>((x%y)+y)%y,elu=x=>x>0?x:Math.expm1(x),"
    "softplus=x=>Math.max(x,0)+Math.log1p(Math.exp(-Math.abs(x))),from=(i,n)=>i<0?i+n:i"
)


class Program:
    """What the operations of a graph are compiled into.

    Values of the graph have names. Loops with equal text become one kernel, a function of the
    arrays that it writes and reads.

    Args:
        arrays: each value of the graph for one token: those of constants, and the shapes of others.
        constants: names of the values that depend on neither token nor state.

    Attributes:
        values: where each value is that has been compiled.
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

    def new_output(self, name: str) -> View:
        """Return a new buffer for the output of an operation."""
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
            return Expression(literal(array.item()))
        value = self.values.get(name)
        if isinstance(value, Expression) and array.shape == tuple(shape):
            return value
        return Expression("{0}", [self.view(name).broadcast(shape)])

    def dense(self, name: str) -> View:
        """Return a value that fills a buffer of its own, which is not an input's."""
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

    def constant(self, node: onnx.NodeProto, index: int) -> Array:
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
        """Return a description of each buffer, see `JavaScriptStep.buffers`, and the constants."""
        constants = []
        for number, (kind, _, array) in enumerate(self._buffers):
            if array is not None:
                stored = "h" if kind == "f" and _fits_half_precision(array) else kind
                constants.append((stored, number, array.astype(STORED_TYPES[stored]).tobytes()))
        constants.sort(key=lambda each: [*STORED_TYPES].index(each[0]))
        described: list[tuple[int | str, ...]] = [(kind, size) for kind, size, _ in self._buffers]
        first = 0
        for stored, number, data in constants:
            described[number] += (stored, first)
            first += len(data)
        return described, b"".join(data for _, _, data in constants)


def _fits_half_precision(array: Array) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(array.astype(np.float16), array)
