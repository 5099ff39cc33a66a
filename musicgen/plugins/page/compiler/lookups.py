"""Operations that read or write elements at indices which are known only while a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from musicgen.plugins.page.compiler.loops import elements
from musicgen.plugins.page.compiler.program import Program
from musicgen.plugins.page.compiler.views import View

if TYPE_CHECKING:
    import onnx


def gather(program: Program, node: onnx.NodeProto, axis: int) -> None:
    data, indices = program.view(node.input[0]), program.arrays[node.input[1]]
    axis %= data.layout.ndim
    before = (slice(None),) * axis
    if node.input[1] in program.constants and indices.ndim == 0:
        program.values[node.output[0]] = data[(*before, int(indices), ...)]
        return
    output = program.new_output(node.output[0])
    shape = output.layout.shape
    new_dims = (None,) * indices.ndim
    first = data[(*before, 0, ...)][(*before, *new_dims)].broadcast(shape)
    after = (None,) * (data.layout.ndim - axis - 1)
    places = program.view(node.input[1])[(..., *after)].broadcast(shape)
    _read(program, output, first, [places], data, [axis])


def gather_nd(program: Program, node: onnx.NodeProto, batch_dims: int) -> None:
    assert not batch_dims
    output = program.new_output(node.output[0])
    data, indices = map(program.view, node.input)
    shape, count = output.layout.shape, indices.layout.shape[-1]
    first = data[(*(0,) * count, ...)].broadcast(shape)
    after = (None,) * (data.layout.ndim - count)
    places = [indices[(..., i, *after)].broadcast(shape) for i in range(count)]
    _read(program, output, first, places, data, range(count))


def gather_elements(program: Program, node: onnx.NodeProto, axis: int) -> None:
    output = program.new_output(node.output[0])
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
        indices: one for each of the axes, in the shape of the output; −1 is the last element.
    """
    steps = [(data.layout.shape[axis], data.layout.strides[axis]) for axis in axes]

    def body(place: str, x: str, *index: str) -> str:
        terms = zip(elements(index, first=2), steps, strict=True)
        moved = "+".join(f"from({each},{length})*{step}" for each, (length, step) in terms)
        return f"o[{place}]=a[{x}+{moved}];"

    program.loop([output, first, *indices], body)


def scatter_elements(program: Program, node: onnx.NodeProto, axis: int, reduction: bytes) -> None:
    assert reduction == b"add"
    output = program.new_output(node.output[0])
    indices, updates = map(program.view, node.input[1:])
    program.assign(output, program.expression(node.input[0], output.layout.shape))
    first = output.corner(indices.layout.shape, axis)
    step, length = output.layout.strides[axis], output.layout.shape[axis]

    def body(place: str, x: str, index: str) -> str:
        return f"o[{place}+from(b[{index}],{length})*{step}]+=a[{x}];"

    program.loop([first, updates, indices], body)
