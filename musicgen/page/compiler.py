"""A decoding step as JavaScript: the ONNX graph of one row, compiled to loops over typed arrays.

Shapes are known, so that reshaping, slicing and transposing cost nothing: a value is a strided view
of a buffer. Elementwise operations are fused into the loop that needs them. What depends on
weights alone is computed here. Equal loops become one function.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.export.graph import NEW
from musicgen.export.step import RINGS

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

# {0}, {1}, … are the operands. Integers of 64 bits are doubles, those of 32 bits wrap around.
ELEMENTWISE = {
    "Add": "({0}+{1})",
    "And": "({0}&{1})",
    "Cast": "{0}",
    "Clip": "Math.min(Math.max({0},{1}),{2})",
    "Cos": "Math.cos({0})",
    "Div": "({0}/{1})",
    "Elu": "elu({0})",
    "Equal": "({0}==={1}?1:0)",
    "Exp": "Math.exp({0})",
    "Greater": "({0}>{1}?1:0)",
    "Less": "({0}<{1}?1:0)",
    "LessOrEqual": "({0}<={1}?1:0)",
    "Log": "Math.log({0})",
    "Max": "Math.max({0},{1})",
    "Mod": "mod({0},{1})",
    "Mul": "({0}*{1})",
    "Neg": "(-{0})",
    "Not": "(1-{0})",
    "Pow": "({0}**{1})",
    "Reciprocal": "(1/{0})",
    "Relu": "Math.max({0},0)",
    "Sin": "Math.sin({0})",
    "Softplus": "softplus({0})",
    "Sqrt": "Math.sqrt({0})",
    "Sub": "({0}-{1})",
    "Where": "({0}?{1}:{2})",
}
_FUNCTIONS = (
    "square=x=>x*x,mod=(x,y)=>((x%y)+y)%y,elu=x=>x>0?x:Math.expm1(x),"
    "softplus=x=>Math.max(x,0)+Math.log1p(Math.exp(-Math.abs(x))),from=(i,n)=>i<0?i+n:i"
)
# The beginning, what each element does to the sum s, and the result; {n} is the number of elements.
REDUCTIONS = {
    "ReduceL2": ("0", "s+=square({0})", "Math.sqrt(s)"),
    "ReduceMax": ("-Infinity", "s=Math.max(s,{0})", "s"),
    "ReduceMean": ("0", "s+={0}", "s/{n}"),
    "ReduceSum": ("0", "s+={0}", "s"),
}
# The maximum m of a row, and s = Σ exp(x − m) of its elements x.
_EXPONENTIALS = "let m=-Infinity,s=0;EACH m=Math.max(m,a[i+j]);EACH s+=Math.exp(a[i+j]-m);"
RESHAPES = {"Identity", "Reshape", "Squeeze", "Unsqueeze"}
# Characters of typed arrays by dtype; constants are also stored in half precision, h.
CODES = {"float32": "f", "float64": "d", "int64": "d", "int32": "i", "bool": "b"}
_STORED = {"d": "<f8", "f": "<f4", "i": "<i4", "h": "<f2", "b": "u1"}  # by alignment
_MAX_VIEWS = 7  # that an expression reads
_LETTERS = "oabcdefghijklmn"  # parameters of a loop: its output, then what it reads


@dataclass(frozen=True)
class JavaScriptStep:
    """A compiled step.

    Attributes:
        source: an expression: the function from the list of typed arrays to the step, a function
            without arguments that reads its inputs from the arrays and replaces their state.
        buffers: of each array the character of its type and its size; for constants also the
            character of the stored type, and the first byte in `data`.
        data: the constants, in the order of bytes of small-endian machines.
        inputs: numbers of the arrays `tokens`, `positions` and `logits`, and of a copy head's
            `temperature`.
        states: numbers of the arrays of the state.
    """

    source: str
    buffers: list[tuple[Any, ...]]
    data: bytes
    inputs: dict[str, int]
    states: list[int]


def compile_step(model: onnx.ModelProto, first_state: Mapping[str, Array]) -> JavaScriptStep:
    """Compile the graph of `step_graph` for one row.

    Args:
        first_state: the state before the first token, for one row, by name.

    Raises:
        UserError: the graph has an operation that cannot be compiled.
    """
    return _Compiler(model, first_state).result()


@dataclass
class _View:
    """A value in a buffer, from an offset on; `layout` has its shape and strides."""

    buffer: int
    layout: Array
    offset: int = 0

    def moved(self, change: Callable[[Array], Array]) -> _View:
        """Return the view of what `change` selects of the layout, without copying."""
        layout = change(self.layout)
        assert np.may_share_memory(layout, self.layout)
        address, before = (x.__array_interface__["data"][0] for x in (layout, self.layout))
        return _View(self.buffer, layout, self.offset + address - before)

    def __getitem__(self, index: Any) -> _View:
        return self.moved(lambda x: x[index])

    def broadcast(self, shape: Sequence[int]) -> _View:
        return self.moved(lambda x: np.broadcast_to(x, shape))


@dataclass
class _Expression:
    """An elementwise expression of views, all of its shape, that has no buffer yet."""

    text: str
    views: list[_View] = field(default_factory=list)


def _combine(template: str, parts: Sequence[_Expression]) -> _Expression:
    """Return the expression that applies a template to others."""
    texts: list[str] = []
    views: list[_View] = []
    for part in parts:
        texts.append(part.text.format(*(f"{{{len(views) + i}}}" for i in range(len(part.views)))))
        views += part.views
    return _Expression(template.format(*texts), views)


class _Compiler:
    def __init__(self, model: onnx.ModelProto, first_state: Mapping[str, Array]) -> None:
        from onnx import numpy_helper

        self.graph = model.graph
        self.arrays = {each.name: numpy_helper.to_array(each) for each in self.graph.initializer}
        self.constants = set(self.arrays)
        self.buffers: list[tuple[str, int, Array | None]] = []
        self.values: dict[str, _View | _Expression] = {}
        self.kernels: dict[tuple[str, int], int] = {}
        self.calls: list[str] = []
        columns = self.graph.input[1].type.tensor_type.shape.dim[1].dim_value
        inputs = {"tokens": np.zeros(1, np.int64), "positions": np.zeros((1, columns), np.int64)}
        self.inputs = {name: self._input(name, array) for name, array in inputs.items()}
        self.states = {name: self._input(name, array) for name, array in first_state.items()}
        if "copied.temperature" in self.states:
            self.inputs["temperature"] = self.states["copied.temperature"]
        self._evaluate(model)
        for ring, (source, axis) in RINGS.items():
            if ring in self.states:
                self._write_ring(self._view(ring), self._view(source), axis)
        self.uses = Counter(name for node in self.graph.node for name in node.input)
        self.uses.update(each.name for each in self.graph.output)
        for node in self.graph.node:
            if not self.constants.issuperset(node.output):
                self._compile(node)
        self.inputs["logits"] = self._dense("logits").buffer
        # All of the state is computed before any of it is replaced.
        changed = [name for name in self.states if NEW + name in self.arrays]
        after = [self._dense(NEW + name).buffer for name in changed]
        for name, new in zip(changed, after, strict=True):
            self._call("o.set(a);", self.states[name], new)

    def _input(self, name: str, array: Array) -> int:
        self.arrays[name] = array
        self.values[name] = view = self._new(array, stored=True)
        return view.buffer

    def _write_ring(self, ring: _View, source: _View, axis: int) -> None:
        size, step = ring.layout.shape[axis], ring.layout.strides[axis]
        slot = ring.moved(lambda x: x.swapaxes(1, axis)[:, 0])
        length = self._view("length").broadcast(slot.layout.shape)

        def body(at: str, x: str, n: str) -> str:
            return f"o[{at}+b[{n}]%{size}*{step}]=a[{x}];"

        self._emit([slot, source, length], body)

    def _evaluate(self, model: onnx.ModelProto) -> None:
        """Compute all values for one token, of which the constants and the shapes are kept."""
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpRun

        class GatherElements(OpRun):
            """In place of onnx's own, which takes at most 32 elements along the axis."""

            def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
                return (np.take_along_axis(data, indices, axis),)

        given = {each.name: self.arrays[each.name] for each in self.graph.input}
        names = [name for node in self.graph.node for name in node.output]
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model, new_ops=[GatherElements]).run(names, given)
        self.arrays.update(zip(names, map(np.asarray, found), strict=True))
        for node in self.graph.node:
            known = self.constants.issuperset(filter(None, node.input))
            if known or node.op_type in ("Shape", "Size"):
                self.constants.update(node.output)

    def result(self) -> JavaScriptStep:
        kernels = ",".join(
            f"k{number}=({','.join(_LETTERS[:count])})=>{{{body}}}"
            for (body, count), number in self.kernels.items()
        )
        source = f"(v)=>{{const {_FUNCTIONS},{kernels};return()=>{{{''.join(self.calls)}}};}}"
        buffers: list[tuple[Any, ...]] = [(code, size) for code, size, _ in self.buffers]
        stored = []
        for number, (code, _, array) in enumerate(self.buffers):
            if array is not None:
                with np.errstate(over="ignore"):
                    half = array.astype(np.float16)
                kept = "h" if code == "f" and np.array_equal(half, array) else code
                stored.append((kept, number, array.astype(_STORED[kept]).tobytes()))
        stored.sort(key=lambda each: [*_STORED].index(each[0]))
        first = 0
        for kept, number, data in stored:
            buffers[number] += (kept, first)
            first += len(data)
        data = b"".join(each[2] for each in stored)
        return JavaScriptStep(source, buffers, data, self.inputs, list(self.states.values()))

    # Values

    def _new(self, array: Array, *, stored: bool = False) -> _View:
        """Return a buffer for an array, with its elements if they are stored."""
        self.buffers.append((CODES[array.dtype.name], array.size, array if stored else None))
        return _View(len(self.buffers) - 1, np.empty(array.shape, np.int8))

    def _expression(self, name: str, shape: Sequence[int]) -> _Expression:
        """Return a value, broadcast to a shape, as a part of an expression."""
        array = self.arrays[name]
        if name in self.constants and array.size == 1:
            return _Expression(_literal(array.item()))
        value = self.values.get(name)
        if isinstance(value, _Expression) and array.shape == tuple(shape):
            return value
        return _Expression("{0}", [self._view(name).broadcast(shape)])

    def _view(self, name: str) -> _View:
        """Return a value in its buffer; compute it, or store a constant, if it has none."""
        value = self.values.get(name)
        if not isinstance(value, _View):
            view = self._new(self.arrays[name], stored=name in self.constants)
            if value is not None:
                self._assign(view, value)
            self.values[name] = value = view
        return value

    def _dense(self, name: str) -> _View:
        """Return a value that fills a buffer of its own."""
        view = self._view(name)
        fills = view.layout.size == self.buffers[view.buffer][1] and view.layout.flags.c_contiguous
        given = view.buffer in (*self.inputs.values(), *self.states.values())
        return view if fills and not given else self._copy(view, name)

    def _copy(self, view: _View, name: str) -> _View:
        copy = self._new(self.arrays[name])
        self._assign(copy, _Expression("{0}", [view]))
        return copy

    def _output(self, name: str) -> _View:
        self.values[name] = view = self._new(self.arrays[name])
        return view

    def _constant(self, node: onnx.NodeProto, index: int) -> Array:
        assert node.input[index] in self.constants
        return self.arrays[node.input[index]]

    # Loops

    def _call(self, body: str, *buffers: int) -> None:
        number = self.kernels.setdefault((body, len(buffers)), len(self.kernels))
        self.calls.append(f"k{number}({','.join(f'v[{each}]' for each in buffers)});")

    def _emit(self, views: Sequence[_View], body: Callable[..., str]) -> None:
        """Emit a loop over views of equal shapes; `body` takes the index in each buffer."""
        starts = [str(view.offset) for view in views]
        text = _loops([view.layout for view in views], starts, body)
        self._call(text, *(view.buffer for view in views))

    def _assign(self, out: _View, value: _Expression) -> None:
        def body(at: str, *places: str) -> str:
            return f"o[{at}]={value.text.format(*_elements(places))};"

        self._emit([out, *value.views], body)

    # Operations

    def _compile(self, node: onnx.NodeProto) -> None:
        from onnx import helper

        kind = node.op_type
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if kind in ELEMENTWISE:
            self._elementwise(node)
        elif kind in REDUCTIONS:
            self._reduce(node)
        elif kind in RESHAPES:
            self._reshape(node)
        elif (emit := getattr(self, f"_{kind.lower()}", None)) is not None:
            emit(node, **attributes)
        else:
            raise UserError(f"a page cannot run this model: its graph has the operation {kind}")

    def _elementwise(self, node: onnx.NodeProto) -> None:
        name = node.output[0]
        shape, bounds = self.arrays[name].shape, ("", "-Infinity", "Infinity")
        parts = [  # of Clip, either bound may be missing
            self._expression(each, shape) if each else _Expression(bound)
            for each, bound in zip_longest(node.input, bounds)
        ]
        self.values[name] = value = _combine(self._template(node), parts)
        if self.uses[name] > 1 or len(value.views) > _MAX_VIEWS:
            self._view(name)

    def _template(self, node: onnx.NodeProto) -> str:
        """Return the text of an operation on the types of its operands."""
        kind, source = node.op_type, self.arrays[node.input[0]].dtype
        to = self.arrays[node.output[0]].dtype
        if kind == "Cast" and to != source:
            if to == np.bool_:
                return "({0}?1:0)"
            if to.kind == "i" and source.kind == "f":
                return "Math.trunc({0})"
            return "Math.fround({0})" if to == np.float32 else "{0}"
        if kind == "Div" and to.kind == "i":
            return "Math.trunc({0}/{1})"
        if to == np.int32 and kind in ("Add", "Mul", "Sub"):
            return "Math.imul({0},{1})" if kind == "Mul" else f"({ELEMENTWISE[kind]}|0)"
        if kind == "Pow" and node.input[1] in self.constants:
            exponent = self.arrays[node.input[1]]
            if exponent.size == 1 and exponent.item() == 2:
                return "square({0})"
        return ELEMENTWISE[kind]

    def _reduce(self, node: onnx.NodeProto) -> None:
        shape = self.arrays[node.input[0]].shape
        axes = [axis % len(shape) for axis in self._constant(node, 1).tolist()]
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        source = self._expression(node.input[0], shape)
        views = [view.moved(lambda x: x.transpose(kept + axes)) for view in source.views]
        self._fold(node.output[0], replace(source, views=views), len(kept), node.op_type)

    def _fold(self, name: str, source: _Expression, num_kept: int, kind: str) -> None:
        """Emit a value that is a reduction of an expression over all but its first dimensions."""
        begin, add, end = REDUCTIONS[kind]
        shape = source.views[0].layout.shape
        outer: Any = (..., *(0,) * (len(shape) - num_kept))
        first, inner = [view[outer] for view in source.views], (*(0,) * num_kept, ...)

        def body(at: str, *starts: str) -> str:
            def element(*places: str) -> str:
                return f"{add.format(source.text.format(*_elements(places)))};"

            parts = [view[inner].layout for view in source.views]
            loop = _loops(parts, starts, element, counter="j")
            return f"let s={begin};{loop}o[{at}]={end.format(n=math.prod(shape[num_kept:]))};"

        out = self._output(name)
        self._emit([out.moved(lambda x: x.reshape(shape[:num_kept])), *first], body)

    def _einsum(self, node: onnx.NodeProto, equation: bytes) -> None:
        terms, result = equation.decode().replace(" ", "").split("->")
        assert "." not in terms
        letters = [*result, *sorted({*terms} - {*result, ","})]
        pairs = [*zip(terms.split(","), map(self._view, node.input), strict=True)]
        sizes = {k: n for term, view in pairs for k, n in zip(term, view.layout.shape, strict=True)}
        shape = [sizes[letter] for letter in letters]

        def spread(term: str, x: Array) -> Array:
            here = [letter for letter in letters if letter in term]
            x = x.transpose([term.index(letter) for letter in here])
            index = tuple(slice(None) if letter in term else None for letter in letters)
            return np.broadcast_to(x[index], shape)

        operands = [view.moved(partial(spread, term)) for term, view in pairs]
        product = "*".join(f"{{{i}}}" for i in range(len(operands)))
        source = _Expression(product, operands)
        self._fold(node.output[0], source, len(result), "ReduceSum")

    def _dft(self, node: onnx.NodeProto, inverse: int, onesided: int) -> None:
        given, made = (self.arrays[name].shape for name in (node.input[0], node.output[0]))
        axis = self._constant(node, 2).item() % len(given)
        assert (inverse, onesided, given[-1], axis) == (0, 0, 1, len(given) - 2)
        length = given[-2]
        steps = np.arange(length)
        waves = np.exp(-2j * np.pi / length * np.outer(steps, steps))
        table = np.stack([waves.real, waves.imag], axis=1).astype(np.float32)  # [N, 2, N]
        numbers = self._view(node.input[0])[..., 0][..., None, None, :]
        shape = (*made, length)
        constants = self._new(table, stored=True)
        source = _Expression("{0}*{1}", [each.broadcast(shape) for each in (numbers, constants)])
        self._fold(node.output[0], source, len(made), "ReduceSum")

    def _reshape(self, node: onnx.NodeProto) -> None:
        shape, view = self.arrays[node.output[0]].shape, self._view(node.input[0])
        if not np.shares_memory(view.layout.reshape(shape), view.layout):
            view = self._copy(view, node.input[0])
        self.values[node.output[0]] = view.moved(lambda x: x.reshape(shape))

    def _transpose(self, node: onnx.NodeProto, perm: Sequence[int] | None = None) -> None:
        self.values[node.output[0]] = self._view(node.input[0]).moved(lambda x: x.transpose(perm))

    def _expand(self, node: onnx.NodeProto) -> None:
        shape = self.arrays[node.output[0]].shape
        self.values[node.output[0]] = self._view(node.input[0]).broadcast(shape)

    def _slice(self, node: onnx.NodeProto) -> None:
        given = [self._constant(node, i).tolist() for i in range(1, len(node.input))]
        starts, ends, axes, steps = given if len(given) == 4 else [*given, [1] * len(given[0])]
        index = [slice(None)] * self.arrays[node.input[0]].ndim
        for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
            # Backwards, −1 of numpy would be the last; the end is far below.
            index[axis] = slice(first, None if last < -(2**31) else last, step)
        self.values[node.output[0]] = self._view(node.input[0])[tuple(index)]

    def _parts(self, whole: _View, names: Sequence[str], axis: int) -> Iterator[tuple[str, _View]]:
        """Yield values that lie behind each other along an axis, with their places in the whole."""
        index: list[Any] = [slice(0)] * whole.layout.ndim
        for name in names:
            shape, first = self.arrays[name].shape, index[axis].stop
            index = [*map(slice, shape)]
            index[axis] = slice(first, first + shape[axis])
            yield name, whole[tuple(index)]

    def _split(self, node: onnx.NodeProto, axis: int, **_: Any) -> None:
        self.values |= self._parts(self._view(node.input[0]), node.output, axis)

    def _concat(self, node: onnx.NodeProto, axis: int) -> None:
        for name, part in self._parts(self._output(node.output[0]), node.input, axis):
            if part.layout.size:
                self._assign(part, self._expression(name, part.layout.shape))

    def _pad(self, node: onnx.NodeProto, mode: bytes) -> None:
        pads, shape = self._constant(node, 1), self.arrays[node.input[0]].shape
        assert (mode, len(node.input)) == (b"constant", 2)
        assert (pads >= 0).all()
        out, source = self._output(node.output[0]), self._expression(node.input[0], shape)
        self._assign(out, _Expression("0"))
        starts = pads[: len(shape)].tolist()
        index = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
        self._assign(out[index], source)

    def _matmul(self, node: onnx.NodeProto) -> None:
        left, right = (self.arrays[name] for name in node.input)
        name = node.input[1]
        if name in self.constants and right.ndim == 2 and name not in self.values:
            # Stored with the elements of a sum next to each other.
            self.values[name] = self._new(right.T, stored=True).moved(np.transpose)
        assert min(left.ndim, right.ndim) > 1
        out = self._output(node.output[0])
        batch = out.layout.shape[:-2]
        a = self._view(node.input[0]).broadcast((*batch, *left.shape[-2:]))
        b = self._view(name).broadcast((*batch, *right.shape[-2:]))
        (num, depth), columns = a.layout.shape[-2:], b.layout.shape[-1]
        along_a, (along_b, next_b) = a.layout.strides[-1], b.layout.strides[-2:]
        next_out = out.layout.strides[-1]

        def body(at: str, x: str, y: str) -> str:
            def product(width: int) -> str:
                sums = range(width)
                begin = ",".join(f"s{i}=0" for i in sums)
                rows = ",".join(f"y{i}={y}+(n+{i})*{next_b}" for i in sums)
                add = "".join(f"s{i}+=p*b[y{i}+j*{along_b}];" for i in sums)
                end = "".join(f"o[{at}+(n+{i})*{next_out}]=s{i};" for i in sums)
                loop = f"for(let j=0;j<{depth};j++){{const p=a[{x}+j*{along_a}];{add}}}"
                return f"let {begin};const {rows};{loop}{end}"

            whole = columns - columns % 4
            text = "let n=0;"
            if whole:
                text += f"for(;n<{whole};n+=4){{{product(4)}}}"
            return text + (f"for(;n<{columns};n++){{{product(1)}}}" if columns % 4 else "")

        rows_b = b[..., None, 0, 0].broadcast((*batch, num))
        self._emit([out[..., 0], a[..., 0], rows_b], body)

    def _rows(self, node: onnx.NodeProto, axis: int, body: str, *weights: int) -> None:
        """Emit a body for each row of the last axis, from a[i+j] to o[i+j].

        In it, EACH is a loop over j, and LENGTH that of the row.
        """
        out, source = self._output(node.output[0]), self._dense(node.input[0])
        assert axis in (-1, out.layout.ndim - 1)
        size, length = out.layout.size, str(out.layout.shape[-1])
        body = body.replace("EACH ", "for(let j=0;j<LENGTH;j++)").replace("LENGTH", length)
        text = f"for(let i=0;i<{size};i+={length}){{{body}}}"
        self._call(text, out.buffer, source.buffer, *weights)

    def _softmax(self, node: onnx.NodeProto, axis: int) -> None:
        self._rows(node, axis, f"{_EXPONENTIALS}EACH o[i+j]=Math.exp(a[i+j]-m)/s;")

    def _logsoftmax(self, node: onnx.NodeProto, axis: int) -> None:
        self._rows(node, axis, f"{_EXPONENTIALS}s=m+Math.log(s);EACH o[i+j]=a[i+j]-s;")

    def _layernormalization(
        self, node: onnx.NodeProto, axis: int, epsilon: float, **_: Any
    ) -> None:
        weights = [self._view(name).buffer for name in node.input[1:]]
        scale = "*b[j]" + ("+c[j]" if len(weights) > 1 else "")
        body = (
            "let m=0,s=0;EACH m+=a[i+j];m/=LENGTH;EACH s+=square(a[i+j]-m);"
            f"s=1/Math.sqrt(s/LENGTH+{epsilon!r});EACH o[i+j]=(a[i+j]-m)*s{scale};"
        )
        self._rows(node, axis, body, *weights)

    def _gather(self, node: onnx.NodeProto, axis: int) -> None:
        data, indices = self._view(node.input[0]), self.arrays[node.input[1]]
        axis %= data.layout.ndim
        before = (slice(None),) * axis
        if node.input[1] in self.constants and indices.ndim == 0:
            self.values[node.output[0]] = data[(*before, int(indices), ...)]
            return
        out, dims = self._output(node.output[0]), (None,) * indices.ndim
        shape = out.layout.shape
        after = data.layout.ndim - axis - 1
        rows = data[(*before, 0, ...)][(*before, *dims)].broadcast(shape)
        places = self._view(node.input[1])[(..., *(None,) * after)].broadcast(shape)
        self._take(out, rows, [places], data, [axis])

    def _take(
        self, out: _View, rows: _View, indices: list[_View], data: _View, axes: Sequence[int]
    ) -> None:
        """Emit what is at the indices along some axes of the data, from rows at index 0."""
        steps = [(data.layout.shape[axis], data.layout.strides[axis]) for axis in axes]

        def body(at: str, x: str, *index: str) -> str:
            terms = zip(_elements(index, 2), steps, strict=True)
            place = "+".join(f"from({each},{length})*{step}" for each, (length, step) in terms)
            return f"o[{at}]=a[{x}+{place}];"

        self._emit([out, rows, *indices], body)

    def _gathernd(self, node: onnx.NodeProto, batch_dims: int) -> None:
        assert not batch_dims
        out, data, given = self._output(node.output[0]), *map(self._view, node.input)
        shape, count = out.layout.shape, given.layout.shape[-1]
        rows = data[(*(0,) * count, ...)].broadcast(shape)  # at index 0
        after = (None,) * (data.layout.ndim - count)
        indices = [given[(..., i, *after)].broadcast(shape) for i in range(count)]
        self._take(out, rows, indices, data, range(count))

    def _gatherelements(self, node: onnx.NodeProto, axis: int) -> None:
        out, data, indices = self._output(node.output[0]), *map(self._view, node.input)
        self._take(out, _corner(data, indices.layout.shape, axis), [indices], data, [axis])

    def _scatterelements(self, node: onnx.NodeProto, axis: int, reduction: bytes) -> None:
        assert reduction == b"add"
        out, indices, updates = self._output(node.output[0]), *map(self._view, node.input[1:])
        self._assign(out, self._expression(node.input[0], out.layout.shape))
        first = _corner(out, indices.layout.shape, axis)
        step, length = out.layout.strides[axis], out.layout.shape[axis]

        def body(at: str, x: str, index: str) -> str:
            return f"o[{at}+from(b[{index}],{length})*{step}]+=a[{x}];"

        self._emit([first, updates, indices], body)


def _corner(view: _View, shape: Sequence[int], axis: int) -> _View:
    """Return the first entry along an axis, repeated, of the first elements of a shape."""
    index: list[Any] = [slice(size) for size in shape]
    index[axis] = slice(1)
    return view[tuple(index)].broadcast(shape)


def _elements(places: Sequence[str], first: int = 1) -> list[str]:
    """Return the elements at some places of the parameters of a loop, as text."""
    return [f"{_LETTERS[i]}[{at}]" for i, at in enumerate(places, first)]


def _literal(value: float) -> str:
    """Return a number or a truth value as JavaScript, negative ones in brackets."""
    text = json.dumps(int(value) if isinstance(value, bool) else value)
    return f"({text})" if text.startswith("-") else text


def _loops(
    layouts: Sequence[Array], starts: Sequence[str], body: Callable[..., str], counter: str = "i"
) -> str:
    """Return nested loops over equal shapes, around what `body` makes of the index in each layout.

    Dimensions that are adjacent in all of the layouts become one.
    """
    dims: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(layouts[0].shape):
        steps = tuple(each.strides[axis] for each in layouts)
        if size == 1:
            continue
        if dims and all(a == b * size for a, b in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = dims[-1][0] * size, steps
        else:
            dims.append((size, steps))
    text, at = "", list(starts)
    for depth, (size, steps) in enumerate(dims):
        i = f"{counter}{depth}"
        text += f"for(let {i}=0;{i}<{size};{i}++){{"
        for number, step in enumerate(steps):
            if not step:
                continue
            place = i if step == 1 else f"{i}*{step}"
            at[number] = place if at[number] == "0" else f"{at[number]}+{place}"
            if depth < len(dims) - 1:
                text += f"const {i}_{number}={at[number]};"
                at[number] = f"{i}_{number}"
    return text + body(*at) + "}" * len(dims)
