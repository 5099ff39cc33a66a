"""Graphs of decoding steps without weights: made once for all models of an architecture.

Those of the shipped models come with the package: python -m musicgen.export.cached makes them.
Others are kept in the user's cache folder, as making one takes seconds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from musicgen.checkpoints import rebuild
from musicgen.export.graph import check_packages, step_graph
from musicgen.export.step import RecurrentStep
from musicgen.files import write_bytes
from musicgen.package_data import PRETRAINED
from musicgen.random import NoiseKey

if TYPE_CHECKING:
    import onnx

SHIPPED = Path(__file__).parent / "graphs"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "musicgen-symbolic"
_PACKAGE = Path(__file__).parents[1]
_CODE = ("attention", "export", "models", "position")  # packages that decide a graph


def find_graph(step: RecurrentStep) -> Path | None:
    """Return the file of a step's graph, if there is one."""
    return next((path for path in _paths(step) if path.is_file()), None)


def make_graph(step: RecurrentStep, path: Path | None = None) -> bytes:
    """Make a step's graph and keep it, by default in the cache, if that can be written."""
    graph = step_graph(step, fold=False)
    from onnx.helper import make_tensor_value_info
    from onnxscript.optimizer import optimize

    for array in graph.graph.initializer:  # all of them are weights
        array.ClearField("raw_data")
        array.data_location = array.EXTERNAL
        array.external_data.add(key="location", value="weights")
    # Compute what depends neither on inputs nor on weights, which to the optimizer are inputs.
    own, weights = graph.graph, [*graph.graph.initializer]
    num_inputs = len(own.input)
    own.input.extend(make_tensor_value_info(x.name, x.data_type, x.dims) for x in weights)
    del own.initializer[:]
    graph = optimize(graph)
    del graph.graph.input[num_inputs:]
    graph.graph.initializer.extend(weights)
    data: bytes = graph.SerializeToString()
    with suppress(OSError):
        write_bytes(path or _paths(step)[-1], data)
    return data


def full_graph(step: RecurrentStep) -> onnx.ModelProto:
    """Return a step's graph with its weights, see `step_graph`."""
    if (path := find_graph(step)) is None:
        return step_graph(step)
    check_packages()
    import onnx

    graph, own = onnx.load_from_string(path.read_bytes()), named_tensors(step)
    for array in graph.graph.initializer:
        if array.external_data:
            array.CopyFrom(onnx.numpy_helper.from_array(own[array.name].numpy(), array.name))
    return graph


def named_tensors(step: RecurrentStep) -> dict[str, Tensor]:
    """Return the tensors that a graph of `make_graph` leaves out, by their names in it."""
    buffers = dict(step.named_buffers(remove_duplicate=False))
    parameters = dict(step.named_parameters(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in (buffers | parameters).items()}


def _paths(step: RecurrentStep) -> list[Path]:
    """Return where a step's graph may be: in the package, or in the cache."""
    settings = architecture(step.model)
    code = hashlib.sha256(f"{settings} {_code()}".encode()).hexdigest()[:32]
    return [SHIPPED / f"{settings}.onnx", CACHE / f"{code}.onnx"]


def architecture(model: nn.Module) -> str:
    """Return a hash of a model's modules, with their settings and the shapes of their tensors.

    A setting that is None or False counts as one that is not there.
    """
    described = [
        (name, type(module).__qualname__, _settings(module))
        for name, module in model.named_modules()
    ]
    shapes = {name: [*tensor.shape] for name, tensor in model.state_dict().items()}
    plain = json.dumps([described, shapes], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def _settings(module: nn.Module) -> dict[str, str]:
    return {
        name: getattr(value, "__qualname__", None) or repr(value)  # functions without addresses
        for name, value in vars(module).items()
        if not (name.startswith("_") or name == "training" or value is None or value is False)
        and not isinstance(value, Tensor | nn.Module)
    }


@functools.cache
def _code() -> str:
    """Return a hash of the code that a graph depends on."""
    digest = hashlib.sha256(torch.__version__.encode())
    for package in _CODE:
        for path in sorted((_PACKAGE / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Make one graph for each architecture of the package's models, and delete the others."""
    kept = set()
    for config in PRETRAINED.glob("*/config.json"):
        model, _, _ = rebuild(config.parent)
        path = SHIPPED / f"{architecture(model)}.onnx"
        make_graph(RecurrentStep(model, NoiseKey((0,))), path)
        kept.add(path)
    for path in {*SHIPPED.glob("*.onnx")} - kept:
        path.unlink()


if __name__ == "__main__":
    main()
