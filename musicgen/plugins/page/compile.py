"""A compiler of decoding steps: an ONNX graph becomes JavaScript loops over typed arrays.

The graph is compiled for one sequence. What depends on weights alone is computed here. Equal loops
become one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.errors import UserError
from musicgen.export.step import NEW, RINGS
from musicgen.plugins.page.operations import OPERATIONS
from musicgen.plugins.page.program import Array, Expression, Program, View

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# {0}, {1}, … are the operands. Integers of 64 bits are doubles; integers of 32 bits wrap
# around.
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
_MAX_VIEWS = 7  # that an expression reads


def compile_step(
    model: ModelProto, first_state: Mapping[str, Array], settings: Mapping[str, Array]
) -> tuple[str, dict[str, Any], bytes]:
    """Compile the graph of `step_graph` for one sequence; return its source, layout and data.

    - The source is an expression: the function from the list of typed arrays to the step, a
      function without arguments that reads its inputs from the arrays and replaces their state.
    - The layout has the `buffers`, the arrays in order: the character of the type, and the size;
      for constants also the character of the stored type, and the first byte in the data. `inputs`
      has the numbers of the arrays `tokens`, `positions` and `logits`, and of the settings, by
      name; `states` the numbers of the arrays of the state.
    - The data are the constants, in the order of bytes of small-endian machines.

    Args:
        first_state: the state before the first token, for one sequence, by name.
        settings: the initial values of other inputs by name; the caller may write others.

    Raises:
        UserError: the graph has an operation that cannot be compiled.
    """
    from onnx import helper

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
            _write_ring(program, ring, source, axis)
    program.uses.update(name for node in model.graph.node for name in node.input)
    program.uses.update(output.name for output in model.graph.output)
    for node in model.graph.node:
        if program.constants.issuperset(node.output):
            continue
        if node.op_type in ELEMENTWISE:
            _compile_elementwise(program, node)
        elif node.op_type in OPERATIONS:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            OPERATIONS[node.op_type](program, node, **attributes)
        else:
            problem = f"its graph has the operation {node.op_type}"
            raise UserError(f"a page cannot run this model: {problem}")
    inputs["logits"] = program.dense("logits").buffer
    # All of the new state is computed before any of it is replaced.
    after = {name: program.dense(NEW + name) for name in states if NEW + name in program.arrays}
    for name, new in after.items():
        program.call("o.set(a);", states[name], new.buffer)
    buffers, data = program.stored()
    layout = {"buffers": buffers, "inputs": inputs, "states": [*states.values()]}
    return program.source(), layout, data


def _evaluated(model: ModelProto, inputs: Mapping[str, Array]) -> Program:
    """Return a program with all values for one token; constants and shapes are used of them."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        """In place of onnx's own version, limited to 32 elements along the axis."""

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


def _write_ring(program: Program, ring_name: str, source: str, axis: int) -> None:
    """Compile writing of an input into the ring's slot of this token, see `RINGS`."""
    ring = program.view(ring_name)
    size, step = ring.layout.shape[axis], ring.layout.strides[axis]
    slot = ring.moved(lambda x: x.swapaxes(1, axis)[:, 0])
    length = program.view("length").broadcast(slot.layout.shape)

    def body(place: str, x: str, n: str) -> str:
        return f"o[{place}+b[{n}]%{size}*{step}]=a[{x}];"

    program.loop([slot, program.view(source), length], body)


def _compile_elementwise(program: Program, node: NodeProto) -> None:
    name = node.output[0]
    shape, bounds = program.arrays[name].shape, ("", "-Infinity", "Infinity")
    operands = [  # either bound of Clip may be missing
        program.expression(each, shape) if each else Expression(bound)
        for each, bound in zip_longest(node.input, bounds)
    ]
    texts: list[str] = []
    views: list[View] = []
    for operand in operands:
        places = [f"{{{len(views) + i}}}" for i in range(len(operand.views))]
        texts.append(operand.text.format(*places))
        views += operand.views
    program.values[name] = Expression(_template(program, node).format(*texts), views)
    if program.uses[name] > 1 or len(views) > _MAX_VIEWS:
        program.view(name)


def _template(program: Program, node: NodeProto) -> str:
    """Return the text of an operation on the types of its operands."""
    kind, operand = node.op_type, program.arrays[node.input[0]].dtype
    result = program.arrays[node.output[0]].dtype
    if kind == "Cast" and result != operand:
        if result.kind == "i" and operand.kind == "f":
            return "Math.trunc({0})"
        return {"bool": "({0}?1:0)", "float32": "Math.fround({0})"}.get(result.name, "{0}")
    if kind == "Div" and result.kind == "i":
        return "Math.trunc({0}/{1})"
    if kind == "Mul" and result == np.int32:
        return "Math.imul({0},{1})"
    template = ELEMENTWISE[kind]
    if kind in ("Add", "Sub") and result == np.int32:
        template = f"({template}|0)"
    if kind == "Pow" and node.input[1] in program.constants:
        exponent = program.arrays[node.input[1]]
        if exponent.size == 1 and exponent.item() == 2:
            template = "square({0})"
    return template
