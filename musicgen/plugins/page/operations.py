"""Operations that are not elementwise, compiled into loops and views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.plugins.page.program import Array, Expression, Program, View, elements, nested_loops

if TYPE_CHECKING:
    from onnx import NodeProto

_TO_THE_BEGINNING = -(2**31)  # an end of a slice that runs backwards


def reshape(program: Program, node: NodeProto, **_: Any) -> None:
    shape, view = program.arrays[node.output[0]].shape, program.view(node.input[0])
    if not np.shares_memory(view.layout.reshape(shape), view.layout):
        view = program.copied(view, node.input[0])
    program.values[node.output[0]] = view.moved(lambda x: x.reshape(shape))


def transpose(program: Program, node: NodeProto, perm: Sequence[int] | None = None) -> None:
    view = program.view(node.input[0])
    program.values[node.output[0]] = view.moved(lambda x: x.transpose(perm))


def expand(program: Program, node: NodeProto) -> None:
    shape = program.arrays[node.output[0]].shape
    program.values[node.output[0]] = program.view(node.input[0]).broadcast(shape)


def slice_(program: Program, node: NodeProto) -> None:
    starts, ends, axes, *steps = (
        program.constant(node, i).tolist() for i in range(1, len(node.input))
    )
    index = [slice(None)] * program.arrays[node.input[0]].ndim
    for i, (axis, start, end) in enumerate(zip(axes, starts, ends, strict=True)):
        # In numpy's slices, an end of −1 would be the last element.
        stop = None if end < _TO_THE_BEGINNING else end
        index[axis] = slice(start, stop, steps[0][i] if steps else 1)
    program.values[node.output[0]] = program.view(node.input[0])[tuple(index)]


def split(program: Program, node: NodeProto, axis: int, **_: Any) -> None:
    program.values |= _consecutive(program, program.view(node.input[0]), node.output, axis)


def concat(program: Program, node: NodeProto, axis: int) -> None:
    output = program.new_output(node)
    for name, part in _consecutive(program, output, node.input, axis):
        if part.layout.size:
            program.assign(part, program.expression(name, part.layout.shape))


def _consecutive(
    program: Program, whole: View, names: Sequence[str], axis: int
) -> Iterator[tuple[str, View]]:
    """Yield values that follow each other along an axis, with the place of each in the whole."""
    index: list[Any] = [slice(0)] * whole.layout.ndim
    for name in names:
        shape, first = program.arrays[name].shape, index[axis].stop
        index = [*map(slice, shape)]
        index[axis] = slice(first, first + shape[axis])
        yield name, whole[tuple(index)]


def pad(program: Program, node: NodeProto, mode: bytes) -> None:
    pads, shape = program.constant(node, 1), program.arrays[node.input[0]].shape
    assert (mode, len(node.input)) == (b"constant", 2)
    assert (pads >= 0).all()
    output = program.new_output(node)
    value = program.expression(node.input[0], shape)
    program.assign(output, Expression("0"))
    starts = pads[: len(shape)].tolist()
    inside = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
    program.assign(output[inside], value)


# The maximum m of a row, and s = Σ exp(x − m) of its elements x.
_EXPONENTIALS = "let m=-Infinity,s=0;EACH m=Math.max(m,a[i+j]);EACH s+=Math.exp(a[i+j]-m);"


def softmax(program: Program, node: NodeProto, axis: int) -> None:
    _each_row(program, node, axis, f"{_EXPONENTIALS}EACH o[i+j]=Math.exp(a[i+j]-m)/s;")


def log_softmax(program: Program, node: NodeProto, axis: int) -> None:
    _each_row(program, node, axis, f"{_EXPONENTIALS}s=m+Math.log(s);EACH o[i+j]=a[i+j]-s;")


def layer_normalization(
    program: Program, node: NodeProto, axis: int, epsilon: float, **_: Any
) -> None:
    weights = [program.view(name).buffer for name in node.input[1:]]  # scale, perhaps bias
    scaled = "(a[i+j]-m)*s*b[j]" + ("+c[j]" if len(weights) > 1 else "")
    body = (
        "let m=0,s=0;EACH m+=a[i+j];m/=LENGTH;EACH s+=square(a[i+j]-m);"
        f"s=1/Math.sqrt(s/LENGTH+{epsilon!r});EACH o[i+j]={scaled};"
    )
    _each_row(program, node, axis, body, *weights)


def _each_row(program: Program, node: NodeProto, axis: int, body: str, *weights: int) -> None:
    """Compile a body per row of the last axis, from a[i+j] to o[i+j].

    In the body, EACH is a loop over j, and LENGTH the number of elements of a row.
    """
    output, source = program.new_output(node), program.dense(node.input[0])
    assert axis in (-1, output.layout.ndim - 1)
    size, length = output.layout.size, str(output.layout.shape[-1])
    body = body.replace("EACH ", "for(let j=0;j<LENGTH;j++)").replace("LENGTH", length)
    text = f"for(let i=0;i<{size};i+={length}){{{body}}}"
    program.call(text, output.buffer, source.buffer, *weights)


def gather(program: Program, node: NodeProto, axis: int) -> None:
    data, indices = program.view(node.input[0]), program.arrays[node.input[1]]
    axis %= data.layout.ndim
    before = (slice(None),) * axis
    if node.input[1] in program.constants and indices.ndim == 0:
        program.values[node.output[0]] = data[(*before, int(indices), ...)]
        return
    output = program.new_output(node)
    shape = output.layout.shape
    new_dims = (None,) * indices.ndim
    first = data[(*before, 0, ...)][(*before, *new_dims)].broadcast(shape)
    after = (None,) * (data.layout.ndim - axis - 1)
    places = program.view(node.input[1])[(..., *after)].broadcast(shape)
    _read(program, output, first, [places], data, [axis])


def gather_nd(program: Program, node: NodeProto, batch_dims: int) -> None:
    assert not batch_dims
    output = program.new_output(node)
    data, indices = map(program.view, node.input)
    shape, count = output.layout.shape, indices.layout.shape[-1]
    first = data[(*(0,) * count, ...)].broadcast(shape)
    after = (None,) * (data.layout.ndim - count)
    places = [indices[(..., i, *after)].broadcast(shape) for i in range(count)]
    _read(program, output, first, places, data, range(count))


def gather_elements(program: Program, node: NodeProto, axis: int) -> None:
    output = program.new_output(node)
    data, indices = map(program.view, node.input)
    first = data.corner(indices.layout.shape, axis)
    _read(program, output, first, [indices], data, [axis])


def _read(
    program: Program,
    output: View,
    first: View,
    indices: Sequence[View],
    data: View,
    axes: Sequence[int],
) -> None:
    """Compile a loop that reads data at the indices along some axes.

    Args:
        first: where the data would be read if all indices were 0, in the shape of the output.
        indices: one per axis, in the shape of the output; −1 is the last element.
    """
    steps = [(data.layout.shape[axis], data.layout.strides[axis]) for axis in axes]

    def body(place: str, x: str, *index: str) -> str:
        terms = zip(elements(index, first=2), steps, strict=True)
        moved = "+".join(f"from({each},{length})*{step}" for each, (length, step) in terms)
        return f"o[{place}]=a[{x}+{moved}];"

    program.loop([output, first, *indices], body)


def scatter_elements(program: Program, node: NodeProto, axis: int, reduction: bytes) -> None:
    assert reduction == b"add"
    output = program.new_output(node)
    indices, updates = map(program.view, node.input[1:])
    program.assign(output, program.expression(node.input[0], output.layout.shape))
    first = output.corner(indices.layout.shape, axis)
    step, length = output.layout.strides[axis], output.layout.shape[axis]

    def body(place: str, x: str, index: str) -> str:
        return f"o[{place}+from(b[{index}],{length})*{step}]+=a[{x}];"

    program.loop([first, updates, indices], body)


# The beginning, what each element does to the sum s, and the result; {n} is the number of elements.
REDUCTIONS = {
    "ReduceL2": ("0", "s+=square({0})", "Math.sqrt(s)"),
    "ReduceMax": ("-Infinity", "s=Math.max(s,{0})", "s"),
    "ReduceMean": ("0", "s+={0}", "s/{n}"),
    "ReduceSum": ("0", "s+={0}", "s"),
}
_COLUMNS_AT_ONCE = 4  # of a product of matrices


def reduce(program: Program, node: NodeProto, **_: Any) -> None:
    shape = program.arrays[node.input[0]].shape
    axes = [axis % len(shape) for axis in program.constant(node, 1).tolist()]
    remaining = [axis for axis in range(len(shape)) if axis not in axes]
    value = program.expression(node.input[0], shape)
    views = [view.moved(lambda x: x.transpose(remaining + axes)) for view in value.views]
    _fold(program, node, replace(value, views=views), len(remaining))


def _fold(program: Program, node: NodeProto, value: Expression, num_remaining: int) -> None:
    """Compile a reduction of an expression, by default a sum, over all but its first dimensions."""
    begin, add, end = REDUCTIONS.get(node.op_type, REDUCTIONS["ReduceSum"])
    shape = value.views[0].layout.shape
    outer: Any = (..., *(0,) * (len(shape) - num_remaining))
    inner: Any = (*(0,) * num_remaining, ...)

    def body(place: str, *starts: str) -> str:
        def element(*places: str) -> str:
            return f"{add.format(value.text.format(*elements(places)))};"

        layouts = [view[inner].layout for view in value.views]
        loop = nested_loops(layouts, starts, element, counter="j")
        result = end.format(n=math.prod(shape[num_remaining:]))
        return f"let s={begin};{loop}o[{place}]={result};"

    output = program.new_output(node).moved(lambda x: x.reshape(shape[:num_remaining]))
    program.loop([output, *(view[outer] for view in value.views)], body)


def einsum(program: Program, node: NodeProto, equation: bytes) -> None:
    terms, result = equation.decode().replace(" ", "").split("->")
    assert "." not in terms
    letters = [*result, *sorted({*terms} - {*result, ","})]
    factors = [*zip(terms.split(","), map(program.view, node.input), strict=True)]
    sizes = {
        letter: size
        for term, view in factors
        for letter, size in zip(term, view.layout.shape, strict=True)
    }
    shape = [sizes[letter] for letter in letters]

    def spread(term: str, x: Array) -> Array:
        """Return a factor with all letters as dimensions, in their order."""
        present = [letter for letter in letters if letter in term]
        x = x.transpose([term.index(letter) for letter in present])
        index = tuple(slice(None) if letter in term else None for letter in letters)
        return np.broadcast_to(x[index], shape)

    views = [view.moved(partial(spread, term)) for term, view in factors]
    product = "*".join(f"{{{i}}}" for i in range(len(views)))
    _fold(program, node, Expression(product, views), len(result))


def dft(program: Program, node: NodeProto, inverse: int, onesided: int) -> None:
    shape = program.arrays[node.input[0]].shape
    axis = program.constant(node, 2).item() % len(shape)
    assert (inverse, onesided, shape[-1], axis) == (0, 0, 1, len(shape) - 2)
    length = shape[-2]
    steps = np.arange(length)
    waves = np.exp(-2j * np.pi / length * np.outer(steps, steps))
    table = np.stack([waves.real, waves.imag], axis=1).astype(np.float32)  # [N, 2, N]
    numbers = program.view(node.input[0])[..., 0][..., None, None, :]
    result = program.arrays[node.output[0]].shape
    factors = [numbers, program.new_buffer(table, stored=True)]
    product = Expression("{0}*{1}", [each.broadcast((*result, length)) for each in factors])
    _fold(program, node, product, len(result))


def matmul(program: Program, node: NodeProto) -> None:
    left_name, right_name = node.input
    left, right = program.arrays[left_name], program.arrays[right_name]
    assert min(left.ndim, right.ndim) > 1
    is_constant = right_name in program.constants and right_name not in program.values
    if is_constant and right.ndim == 2:
        # Stored with the elements of a sum next to each other.
        transposed = program.new_buffer(right.T, stored=True)
        program.values[right_name] = transposed.moved(np.transpose)
    output = program.new_output(node)
    batch = output.layout.shape[:-2]
    a = program.view(left_name).broadcast((*batch, *left.shape[-2:]))
    b = program.view(right_name).broadcast((*batch, *right.shape[-2:]))
    rows_of_b = b[..., None, 0, 0].broadcast((*batch, a.layout.shape[-2]))
    body = partial(_row_of_product, output, a, b)
    program.loop([output[..., 0], a[..., 0], rows_of_b], body)


def _row_of_product(output: View, a: View, b: View, place: str, x: str, y: str) -> str:
    """Return the text that computes a row of a product of matrices.

    Args:
        place, x, y: text of the first index in the output, in `a` and in `b`.
    """
    depth, columns = b.layout.shape[-2:]
    along_a, (along_b, next_b) = a.layout.strides[-1], b.layout.strides[-2:]
    next_output = output.layout.strides[-1]

    def columns_at_once(width: int) -> str:
        sums = range(width)
        begin = ",".join(f"s{i}=0" for i in sums)
        starts = ",".join(f"y{i}={y}+(n+{i})*{next_b}" for i in sums)
        add = "".join(f"s{i}+=p*b[y{i}+j*{along_b}];" for i in sums)
        end = "".join(f"o[{place}+(n+{i})*{next_output}]=s{i};" for i in sums)
        loop = f"for(let j=0;j<{depth};j++){{const p=a[{x}+j*{along_a}];{add}}}"
        return f"let {begin};const {starts};{loop}{end}"

    text, rest = "let n=0;", columns % _COLUMNS_AT_ONCE
    if columns > rest:
        body = columns_at_once(_COLUMNS_AT_ONCE)
        text += f"for(;n<{columns - rest};n+={_COLUMNS_AT_ONCE}){{{body}}}"
    if rest:
        text += f"for(;n<{columns};n++){{{columns_at_once(1)}}}"
    return text


# Each compiles a node, with the attributes of the node as keyword arguments.
OPERATIONS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(REDUCTIONS, reduce),
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze"), reshape),
    "Concat": concat,
    "DFT": dft,
    "Einsum": einsum,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "Pad": pad,
    "ScatterElements": scatter_elements,
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Transpose": transpose,
}
