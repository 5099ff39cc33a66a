"""Sums, maxima and products of matrices: loops over some dimensions that give one element each."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.plugins.page.compiler.loops import elements, nested_loops
from musicgen.plugins.page.compiler.program import Program
from musicgen.plugins.page.compiler.views import Array, Expression, View

if TYPE_CHECKING:
    import onnx

# The beginning, what each element does to the sum s, and the result; {n} is the number of elements.
REDUCTIONS = {
    "ReduceL2": ("0", "s+=square({0})", "Math.sqrt(s)"),
    "ReduceMax": ("-Infinity", "s=Math.max(s,{0})", "s"),
    "ReduceMean": ("0", "s+={0}", "s/{n}"),
    "ReduceSum": ("0", "s+={0}", "s"),
}
_COLUMNS_AT_ONCE = 4  # of a product of matrices


def reduce(program: Program, node: onnx.NodeProto, **_: Any) -> None:
    shape = program.arrays[node.input[0]].shape
    axes = [axis % len(shape) for axis in program.constant(node, 1).tolist()]
    remaining = [axis for axis in range(len(shape)) if axis not in axes]
    value = program.expression(node.input[0], shape)
    views = [view.moved(lambda x: x.transpose(remaining + axes)) for view in value.views]
    _fold(program, node.output[0], replace(value, views=views), len(remaining), node.op_type)


def _fold(program: Program, name: str, value: Expression, num_remaining: int, kind: str) -> None:
    """Compile a reduction of an expression over all but its first dimensions."""
    begin, add, end = REDUCTIONS[kind]
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

    output = program.new_output(name).moved(lambda x: x.reshape(shape[:num_remaining]))
    program.loop([output, *(view[outer] for view in value.views)], body)


def einsum(program: Program, node: onnx.NodeProto, equation: bytes) -> None:
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
    _fold(program, node.output[0], Expression(product, views), len(result), "ReduceSum")


def dft(program: Program, node: onnx.NodeProto, inverse: int, onesided: int) -> None:
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
    _fold(program, node.output[0], product, len(result), "ReduceSum")


def matmul(program: Program, node: onnx.NodeProto) -> None:
    left_name, right_name = node.input
    left, right = program.arrays[left_name], program.arrays[right_name]
    assert min(left.ndim, right.ndim) > 1
    is_constant = right_name in program.constants and right_name not in program.values
    if is_constant and right.ndim == 2:
        # Stored with the elements of a sum next to each other.
        transposed = program.new_buffer(right.T, stored=True)
        program.values[right_name] = transposed.moved(np.transpose)
    output = program.new_output(node.output[0])
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
