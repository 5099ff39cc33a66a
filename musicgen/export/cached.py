"""Graphs of decoding steps without weights, made once for all models with the same computation.

A graph belongs to a model if it takes the model's tensors, by name and shape, and computes the
model's logits with them. This is tested whenever a graph is opened. So a graph stays valid when
only code changes, and a graph that computes something else is never used. The graphs of the shipped
models come with the package: python -m musicgen.export.cached makes them. Others are kept in the
user's cache folder, as making one takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import musicgen
from musicgen.checkpoints import rebuild
from musicgen.export.step import NEW, RINGS, RecurrentStep, check_packages, step_graph
from musicgen.files import write_bytes
from musicgen.package_data import PRETRAINED
from musicgen.random import NoiseKey

if TYPE_CHECKING:
    import onnx
    import onnxruntime

SHIPPED = Path(__file__).parent / "graphs"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "musicgen-symbolic"
_NUM_TRIED = 4  # tokens for the comparison of a graph with the model


def find_graph(
    step: RecurrentStep, *folders: Path
) -> tuple[bytes, onnxruntime.InferenceSession] | None:
    """Return the graph of a step, and a session of it with the weights, if there is one.

    Args:
        folders: where to look; by default in the package, then in the cache.
    """
    for folder in folders or (SHIPPED, _cache()):
        for path in sorted(folder.glob(f"{signature(step)}-*.onnx")):
            data = path.read_bytes()
            session = start_session(step, data)
            if _computes(session, step):
                return data, session
    return None


def make_graph(step: RecurrentStep, folder: Path | None = None) -> bytes:
    """Make a step's graph and keep it in a folder, by default the cache, if that can be written."""
    graph = step_graph(step, fold=False)
    from onnx.helper import make_tensor_value_info
    from onnxscript.optimizer import optimize
    from onnxscript.rewriter import pattern, rewrite

    for array in graph.graph.initializer:  # the weights
        array.ClearField("raw_data")
        array.data_location = array.EXTERNAL
        array.external_data.add(key="location", value="weights")
    # Compute what depends neither on inputs nor on weights: the optimizer sees weights as inputs.
    own, weights = graph.graph, [*graph.graph.initializer]
    num_inputs = len(own.input)
    own.input.extend(make_tensor_value_info(x.name, x.data_type, x.dims) for x in weights)
    del own.initializer[:]
    graph = optimize(graph)
    del graph.graph.input[num_inputs:]
    graph.graph.initializer.extend(weights)
    # ONNX Runtime computes an RMSNorm as one operation if it is written as a quotient.
    quotients = pattern.RewriteRule(
        lambda op, x, y: op.Mul(x, op.Reciprocal(y)), lambda op, x, y: op.Div(x, y)
    )
    graph = rewrite(graph, [quotients])
    data: bytes = graph.SerializeToString()
    with suppress(OSError):
        write_bytes((folder or _cache()) / f"{signature(step)}-{_hash(data)}.onnx", data)
    return data


def full_graph(step: RecurrentStep) -> onnx.ModelProto:
    """Return a step's graph with its weights, see `step_graph`."""
    check_packages()
    found = find_graph(step)
    if found is None:
        return step_graph(step)
    import onnx

    graph, tensors = onnx.load_from_string(found[0]), named_tensors(step)
    for array in graph.graph.initializer:
        if array.external_data:
            array.CopyFrom(onnx.numpy_helper.from_array(tensors[array.name].numpy(), array.name))
    return graph


def start_session(step: RecurrentStep, graph: bytes) -> onnxruntime.InferenceSession:
    """Open a graph without weights, and give it the weights of a step."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # A graph has some of the tensors, each with its name as field 8. Importing onnx, which would
    # parse it, takes a sixth of a second.
    tensors = named_tensors(step)
    names = [name for name in tensors if bytes([8 << 3 | 2, len(name)]) + name.encode() in graph]
    arrays = [tensors[name].contiguous().numpy() for name in names]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    options.add_external_initializers(names, values)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def named_tensors(step: RecurrentStep) -> dict[str, Tensor]:
    """Return the tensors that a graph of `make_graph` leaves out, by their names in it."""
    buffers = dict(step.named_buffers(remove_duplicate=False))
    parameters = dict(step.named_parameters(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in (buffers | parameters).items()}


def signature(step: RecurrentStep) -> str:
    """Return a hash of the names and shapes of a step's weights, state and settings."""
    tensors = named_tensors(step) | step.template.tensors() | step.settings
    shapes = {name: [*tensor.shape] for name, tensor in tensors.items()}
    return _hash(json.dumps(shapes, sort_keys=True).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _cache() -> Path:
    """Return the folder of this version's graphs."""
    return CACHE / musicgen.__version__


@torch.no_grad()
def _computes(session: onnxruntime.InferenceSession, step: RecurrentStep) -> bool:
    """Return whether a session computes the logits of the first tokens as the model does."""
    columns = torch.arange(1, step.model.num_position_columns + 1)
    inputs = [each.name for each in session.get_inputs()]
    changed = [each.name.removeprefix(NEW) for each in session.get_outputs()[1:]]
    first = step.template.tensors() | step.settings
    arrays = {name: x.numpy().copy() for name, x in first.items()}
    state = None
    for n in range(_NUM_TRIED):
        token, positions = torch.tensor([n]), n * columns[None]
        arrays |= {"tokens": token.numpy(), "positions": positions.numpy()}
        for ring, (source, axis) in RINGS.items():
            if ring in arrays:
                arrays[ring].swapaxes(1, axis)[:, n] = arrays[source]
        logits, *after = session.run(None, {name: arrays[name] for name in inputs})
        arrays.update(zip(changed, after, strict=True))
        expected, state = step.model.forward_with_state(
            token[None], positions=positions[None], noise=step.key, state=state
        )
        if not np.allclose(logits, expected[:, 0].numpy(), rtol=1e-3, atol=1e-3):
            return False
    return True


def main() -> None:
    """Make one graph per architecture of the package's models, and delete the others."""
    for path in SHIPPED.glob("*.onnx"):
        path.unlink()
    for config in PRETRAINED.glob("*/config.json"):
        model, _, _ = rebuild(config.parent)
        step = RecurrentStep(model, NoiseKey((0,)))
        if find_graph(step, SHIPPED) is None:
            make_graph(step, SHIPPED)


if __name__ == "__main__":
    main()
