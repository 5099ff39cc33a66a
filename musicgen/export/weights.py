"""Weights of a graph in fewer bits, in which they are stored; it computes in fp32 as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from musicgen.errors import UserError

if TYPE_CHECKING:
    import onnx

DTYPES = ("float32", "float16", "int8")
_SMALL = 1024  # numbers; arrays of fewer stay as they are


def store_weights(graph: onnx.ModelProto, dtype: str) -> None:
    """Change a graph's large arrays to `float16` or `int8`, with nodes that make them fp32 again.

    In int8 a matrix has one fp32 scale for each row of an embedding, or for each column of another;
    arrays of other dimensions are in fp16. A program computes the fp32 weights once.

    Raises:
        UserError: a weight is too large for fp16.
    """
    from onnx import TensorProto, helper, numpy_helper

    if dtype == "float32":
        return
    own = graph.graph
    rows = {node.input[0] for node in own.node if node.op_type == "Gather"}
    stored: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    for tensor in own.initializer:
        name = tensor.name
        weights = numpy_helper.to_array(tensor)
        if weights.dtype != np.float32 or weights.size < _SMALL:
            stored.append(tensor)
            continue
        if dtype == "int8" and weights.ndim == 2:
            scale = np.abs(weights).max(axis=1 if name in rows else 0, keepdims=True) / 127
            scale = np.maximum(scale, np.finfo(np.float32).tiny)
            small = np.rint(weights / scale).astype(np.int8)
            stored.append(numpy_helper.from_array(scale, f"{name}.scale"))
            nodes.append(helper.make_node("Mul", [f"{name}.unscaled", f"{name}.scale"], [name]))
            output = f"{name}.unscaled"
        else:
            if np.abs(weights).max() > np.finfo(np.float16).max:
                raise UserError(f"{name} has weights beyond the range of float16; use float32")
            small, output = weights.astype(np.float16), name
        stored.append(numpy_helper.from_array(small, f"{name}.{dtype}"))
        nodes.append(helper.make_node("Cast", [f"{name}.{dtype}"], [output], to=TensorProto.FLOAT))
    nodes.sort(key=lambda node: node.op_type)  # each Cast before the Mul that reads it
    nodes.extend(own.node)
    del own.initializer[:], own.node[:]
    own.initializer.extend(stored)
    own.node.extend(nodes)
