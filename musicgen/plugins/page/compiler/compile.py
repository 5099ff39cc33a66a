"""Compile a graph: evaluate its constants, compile its operations in order, collect the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.errors import UserError
from musicgen.export.graph import NEW
from musicgen.export.step import RINGS
from musicgen.plugins.page.compiler import elementwise, last_axis, lookups, reductions, shapes
from musicgen.plugins.page.compiler.program import Program
from musicgen.plugins.page.compiler.views import Array, View

if TYPE_CHECKING:
    import onnx

# Each compiles a node, with the attributes of the node as keyword arguments.
OPERATIONS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(elementwise.ELEMENTWISE, elementwise.elementwise),
    **dict.fromkeys(reductions.REDUCTIONS, reductions.reduce),
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze"), shapes.reshape),
    "Concat": shapes.concat,
    "DFT": reductions.dft,
    "Einsum": reductions.einsum,
    "Expand": shapes.expand,
    "Gather": lookups.gather,
    "GatherElements": lookups.gather_elements,
    "GatherND": lookups.gather_nd,
    "LayerNormalization": last_axis.layer_normalization,
    "LogSoftmax": last_axis.log_softmax,
    "MatMul": reductions.matmul,
    "Pad": shapes.pad,
    "ScatterElements": lookups.scatter_elements,
    "Slice": shapes.slice_,
    "Softmax": last_axis.softmax,
    "Split": shapes.split,
    "Transpose": shapes.transpose,
}


@dataclass(frozen=True)
class JavaScriptStep:
    """A compiled step.

    Attributes:
        source: an expression: the function from the list of typed arrays to the step, a function
            without arguments that reads its inputs from the arrays and replaces their state.
        buffers: of each array the character of its type and its size; for constants also the
            character of the stored type, and the first byte in `data`.
        data: the constants, in the order of bytes of small-endian machines.
        inputs: numbers of the arrays `tokens`, `positions` and `logits`, and of the settings.
        states: numbers of the arrays of the state.
    """

    source: str
    buffers: list[tuple[int | str, ...]]
    data: bytes
    inputs: dict[str, int]
    states: list[int]


def compile_step(
    model: onnx.ModelProto, first_state: Mapping[str, Array], settings: Mapping[str, Array]
) -> JavaScriptStep:
    """Compile the graph of `step_graph` for one sequence.

    Args:
        first_state: the state before the first token, for one sequence, by name.
        settings: inputs by name, which have these values until the caller writes others.

    Raises:
        UserError: the graph has an operation that cannot be compiled.
    """
    columns = model.graph.input[1].type.tensor_type.shape.dim[1].dim_value
    first_inputs = {
        "tokens": np.zeros(1, np.int64),
        "positions": np.zeros((1, columns), np.int64),
        **settings,
    }
    program = _evaluated(model, {**first_inputs, **first_state})
    inputs = {name: program.new_input(name) for name in first_inputs}
    states = {name: program.new_input(name) for name in first_state}
    for ring, (source, axis) in RINGS.items():
        if ring in states:
            _write_ring(program, program.view(ring), program.view(source), axis)
    program.uses.update(name for node in model.graph.node for name in node.input)
    program.uses.update(output.name for output in model.graph.output)
    for node in model.graph.node:
        if not program.constants.issuperset(node.output):
            _compile_node(program, node)
    inputs["logits"] = program.dense("logits").buffer
    _replace_states(program, states)
    buffers, data = program.stored()
    return JavaScriptStep(program.source(), buffers, data, inputs, list(states.values()))


def _evaluated(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> Program:
    """Return a program with all values for one token, of which constants and shapes are used."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        """In place of onnx's own, which takes at most 32 elements along the axis."""

        def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
            return (np.take_along_axis(data, indices, axis),)

    graph = model.graph
    arrays = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}
    constants = set(arrays)
    arrays.update(inputs)
    names = [name for node in graph.node for name in node.output]
    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(model, new_ops=[GatherElements])
        values = evaluator.run(names, {each.name: arrays[each.name] for each in graph.input})
    arrays.update(zip(names, map(np.asarray, values), strict=True))
    for node in graph.node:
        is_constant = constants.issuperset(filter(None, node.input))
        if is_constant or node.op_type in ("Shape", "Size"):
            constants.update(node.output)
    return Program(arrays, constants)


def _write_ring(program: Program, ring: View, source: View, axis: int) -> None:
    """Compile writing of an input into the ring's slot of this token, see `RINGS`."""
    size, step = ring.layout.shape[axis], ring.layout.strides[axis]
    slot = ring.moved(lambda x: x.swapaxes(1, axis)[:, 0])
    length = program.view("length").broadcast(slot.layout.shape)

    def body(place: str, x: str, n: str) -> str:
        return f"o[{place}+b[{n}]%{size}*{step}]=a[{x}];"

    program.loop([slot, source, length], body)


def _compile_node(program: Program, node: onnx.NodeProto) -> None:
    from onnx import helper

    compile_operation = OPERATIONS.get(node.op_type)
    if compile_operation is None:
        raise UserError(f"a page cannot run this model: its graph has the operation {node.op_type}")
    attributes: dict[str, Any] = {
        each.name: helper.get_attribute_value(each) for each in node.attribute
    }
    compile_operation(program, node, **attributes)


def _replace_states(program: Program, states: Mapping[str, int]) -> None:
    """Compile writing of the new state: all of it is computed before any of it is replaced."""
    changed = [name for name in states if NEW + name in program.arrays]
    after = [program.dense(NEW + name).buffer for name in changed]
    for name, new in zip(changed, after, strict=True):
        program.call("o.set(a);", states[name], new)
