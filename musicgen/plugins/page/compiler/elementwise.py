"""Elementwise operations, which are fused into the loops that need their values."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from musicgen.plugins.page.compiler.program import Program
from musicgen.plugins.page.compiler.views import Expression, combine

if TYPE_CHECKING:
    import onnx

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
_MAX_VIEWS = 7  # that an expression reads


def elementwise(program: Program, node: onnx.NodeProto, **_: Any) -> None:
    name = node.output[0]
    shape, bounds = program.arrays[name].shape, ("", "-Infinity", "Infinity")
    operands = [  # of Clip, either bound may be missing
        program.expression(each, shape) if each else Expression(bound)
        for each, bound in zip_longest(node.input, bounds)
    ]
    program.values[name] = value = combine(_template(program, node), operands)
    if program.uses[name] > 1 or len(value.views) > _MAX_VIEWS:
        program.view(name)


def _template(program: Program, node: onnx.NodeProto) -> str:
    """Return the text of an operation on the types of its operands."""
    kind, operand = node.op_type, program.arrays[node.input[0]].dtype
    result = program.arrays[node.output[0]].dtype
    if kind == "Cast" and result != operand:
        return _cast(operand, result)
    if kind == "Div" and result.kind == "i":
        return "Math.trunc({0}/{1})"
    if kind == "Mul" and result == np.int32:
        return "Math.imul({0},{1})"
    if kind in ("Add", "Sub") and result == np.int32:
        return f"({ELEMENTWISE[kind]}|0)"
    if kind == "Pow" and node.input[1] in program.constants:
        exponent = program.arrays[node.input[1]]
        if exponent.size == 1 and exponent.item() == 2:
            return "square({0})"
    return ELEMENTWISE[kind]


def _cast(operand: np.dtype[Any], result: np.dtype[Any]) -> str:
    if result == np.bool_:
        return "({0}?1:0)"
    if result.kind == "i" and operand.kind == "f":
        return "Math.trunc({0})"
    return "Math.fround({0})" if result == np.float32 else "{0}"
