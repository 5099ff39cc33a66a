"""Operations that rearrange elements; most of them only change the strides of a view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.plugins.page.compiler.program import Program
from musicgen.plugins.page.compiler.views import Expression, View

if TYPE_CHECKING:
    import onnx

_TO_THE_BEGINNING = -(2**31)  # an end of a slice that runs backwards


def reshape(program: Program, node: onnx.NodeProto, **_: Any) -> None:
    shape, view = program.arrays[node.output[0]].shape, program.view(node.input[0])
    if not np.shares_memory(view.layout.reshape(shape), view.layout):
        view = program.copied(view, node.input[0])
    program.values[node.output[0]] = view.moved(lambda x: x.reshape(shape))


def transpose(program: Program, node: onnx.NodeProto, perm: Sequence[int] | None = None) -> None:
    view = program.view(node.input[0])
    program.values[node.output[0]] = view.moved(lambda x: x.transpose(perm))


def expand(program: Program, node: onnx.NodeProto) -> None:
    shape = program.arrays[node.output[0]].shape
    program.values[node.output[0]] = program.view(node.input[0]).broadcast(shape)


def slice_(program: Program, node: onnx.NodeProto) -> None:
    starts, ends, axes, *steps = (
        program.constant(node, i).tolist() for i in range(1, len(node.input))
    )
    index = [slice(None)] * program.arrays[node.input[0]].ndim
    for i, (axis, start, end) in enumerate(zip(axes, starts, ends, strict=True)):
        # Of numpy's slices, an end of −1 would be the last element.
        stop = None if end < _TO_THE_BEGINNING else end
        index[axis] = slice(start, stop, steps[0][i] if steps else 1)
    program.values[node.output[0]] = program.view(node.input[0])[tuple(index)]


def split(program: Program, node: onnx.NodeProto, axis: int, **_: Any) -> None:
    program.values |= _consecutive(program, program.view(node.input[0]), node.output, axis)


def concat(program: Program, node: onnx.NodeProto, axis: int) -> None:
    output = program.new_output(node.output[0])
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


def pad(program: Program, node: onnx.NodeProto, mode: bytes) -> None:
    pads, shape = program.constant(node, 1), program.arrays[node.input[0]].shape
    assert (mode, len(node.input)) == (b"constant", 2)
    assert (pads >= 0).all()
    output = program.new_output(node.output[0])
    value = program.expression(node.input[0], shape)
    program.assign(output, Expression("0"))
    starts = pads[: len(shape)].tolist()
    inside = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
    program.assign(output[inside], value)
