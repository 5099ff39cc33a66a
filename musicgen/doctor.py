"""Check this machine: what is installed, and whether every backend is correct.

    python -m musicgen.doctor [--device cuda] [--json FILE]

Small models, in every backend of training and every engine of decoding, are compared with the same
models in fp64 on the CPU with the naive backend.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention import (
    ELU,
    FAVOR,
    Attention,
    GaussianSpan,
    LinearAttention,
    SoftmaxAttention,
)
from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.generation.engines import CudaGraphEngine, Engine, OnnxEngine
from musicgen.memory import total_memory
from musicgen.models import Transformer
from musicgen.position import ALiBi, NoPosition, RoPE, SineSPE, TransformerXL
from musicgen.random import NoiseKey

VOCAB, LENGTH, NOISE = 50, 333, NoiseKey((0,))
NUM_STEPS = 40  # of decoding
TOLERANCES = {"fp32": 2e-3, "bf16": 5e-2}  # of errors; fp32 may be TF32
LINEAR_BACKENDS = ("chunked", "fla", "fast_transformers")
Cases = Mapping[str, Callable[[], Transformer]]
"""Functions that make models in evaluation mode on the CPU, by name."""

_OPTIONAL = (
    *("triton", "flash-linear-attention", "pytorch-fast-transformers"),
    *("wandb", "tensorboard", "muspy"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="musicgen-doctor", description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    environment = describe_environment()
    for topic, text in environment.items():
        print(f"{topic:26}{text}", flush=True)
    print(f"\nerrors on {args.device} beside fp64, relative to the largest value:")
    results: list[Result] = []
    for result in check_models(CASES, args.device):
        if not result.refusal or result.refusal not in {other.refusal for other in results}:
            print(result, flush=True)
        results.append(result)
    wrong = "; ".join(result.name for result in results if result.failed)
    right = "all that runs on this machine is correct"
    print(f"wrong on this machine, do not use: {wrong}" if wrong else right)
    if args.json:
        rows = [result._asdict() for result in results]
        write_text(args.json, json.dumps({"environment": environment, "results": rows}, indent=1))
    sys.exit(bool(wrong))


def describe_environment() -> dict[str, str]:
    """Return lines about the machine by topic: devices, a compiler, optional packages."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++", "cl"))
    compiler = next(filter(None, map(shutil.which, names)), None)
    memory = total_memory()
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    lines = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "CPU": f"{os.cpu_count()} cores" + (f", {memory / 2**30:.0f} GiB" if memory else ""),
        "CUDA": ", ".join(f"{g.name}, {g.total_memory / 2**30:.0f} GiB" for g in gpus) or "none",
        "MPS": "available" if torch.backends.mps.is_available() else "none",
        "compiler": compiler or "none: compile=true needs g++ or clang++",
    }
    for package in _OPTIONAL:
        try:
            lines[package] = version(package)
        except PackageNotFoundError:
            lines[package] = "not installed"
    return lines


class Result(NamedTuple):
    """One check: its error relative to the largest value."""

    name: str
    error: float = 0.0
    failed: bool = False
    refusal: str = ""  # why it was not run

    def __str__(self) -> str:
        if self.refusal:
            return f"  -     {self.refusal}"
        return f"  {'WRONG' if self.failed else 'ok':6}{self.name:42}{self.error:.1e}"


def small_model(position: Any, attention: Any, span: Any = None) -> Transformer:
    """Build a model in evaluation mode, with weights large enough that attention matters."""
    torch.manual_seed(0)
    sizes: Any = {"dim": 64, "num_layers": 2, "num_heads": 2, "ff_dim": 128, "init_std": 0.15}
    parts: Any = {"position": position, "attention": attention, "span": span}
    return Transformer(VOCAB, **sizes, **parts, dropout=0.0).eval()


_FAVOR = partial(LinearAttention, feature_map=partial(FAVOR, num_features=32))
_SPE = partial(SineSPE, num_sines=5, num_realizations=16)
CASES: Cases = {
    "favor": partial(small_model, NoPosition, _FAVOR),
    "favor, decay=head": partial(small_model, NoPosition, partial(_FAVOR, decay="head")),
    "favor, sine_spe": partial(small_model, _SPE, _FAVOR),
    "elu, rope": partial(small_model, RoPE, partial(LinearAttention, feature_map=ELU)),
    "softmax": partial(small_model, NoPosition, SoftmaxAttention),
    "softmax, rope": partial(small_model, RoPE, SoftmaxAttention),
    "softmax, alibi": partial(small_model, ALiBi, SoftmaxAttention),
    "softmax, transformer_xl": partial(small_model, TransformerXL, SoftmaxAttention),
    "softmax, span": partial(
        small_model, NoPosition, SoftmaxAttention, partial(GaussianSpan, training_length=LENGTH)
    ),
}


def check_models(cases: Cases, device: str) -> Iterator[Result]:
    """Compare every backend's logits and gradients, then every decoding engine's logits."""
    for check in (_check_training, _check_decoding):
        for name, make in cases.items():
            yield from check(name, make(), device)


def _check_training(name: str, model: Transformer, device: str) -> Iterator[Result]:
    expected = _logits_and_gradients(_reference(model), _tokens())
    for backend in LINEAR_BACKENDS if "softmax" not in name else ("",):
        for precision in TOLERANCES if device == "cuda" else ("fp32",):
            result = Result(", ".join(filter(None, (name, backend, precision))))
            ours = _set_backend(copy.deepcopy(model).to(device), backend)
            try:
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                    found = _logits_and_gradients(ours, _tokens().to(device))
            except UserError as refusal:
                yield result._replace(refusal=str(refusal))
                continue
            error = max(map(_relative_error, found, expected))
            failed = not error <= TOLERANCES[precision]  # NaN fails
            yield result._replace(error=error, failed=failed)


def _check_decoding(name: str, model: Transformer, device: str) -> Iterator[Result]:
    """Compare the logits of steps after a prefill with those of one parallel pass."""
    ids = _tokens()
    with torch.no_grad():
        expected = _reference(model)(ids, noise=NOISE)[:, -NUM_STEPS:]
    for engine_name, engine in _engines(model.to(device), device):
        error = _relative_error([_decode(engine, ids.to(device))], [expected])
        yield Result(f"{name}, {engine_name}", error, not error <= TOLERANCES["fp32"])


def _tokens() -> Tensor:
    return torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def _logits_and_gradients(model: Transformer, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits, alone in a list, and the gradient of the loss by each parameter."""
    model.train()  # the chosen backend is that of training; there is no dropout
    logits = model(ids, noise=NOISE)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return [logits.detach()], list(gradients)


def _relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest error of any tensor, relative to the largest value of all.

    Of all, as gradients that vanish have only rounding errors.
    """
    errors = [(a.cpu() - b).abs().max() for a, b in zip(found, expected, strict=True)]
    return float(torch.stack(errors).max() / max(tensor.abs().max() for tensor in expected))


def _reference(model: Transformer) -> Transformer:
    return _set_backend(copy.deepcopy(model).double(), "naive")


def _set_backend(model: Transformer, backend: str) -> Transformer:
    for module in model.modules():
        if isinstance(module, LinearAttention):
            module.backend = backend
    return model


def _engines(model: Transformer, device: str) -> Iterator[tuple[str, Engine]]:
    fixed_state = next(m for m in model.modules() if isinstance(m, Attention)).has_fixed_state
    yield "eager", Engine(model, NOISE)
    if device == "cpu" and fixed_state and find_spec("onnxruntime"):
        yield "ONNX Runtime", OnnxEngine(model, NOISE)
    elif device == "cuda" and fixed_state:
        yield "CUDA graph", CudaGraphEngine(model, NOISE, _fail)


def _fail(message: str) -> None:
    raise UserError(message)


@torch.inference_mode()
def _decode(engine: Engine, ids: Tensor) -> Tensor:
    """Return the logits of the last tokens, each after a step: [B, NUM_STEPS, V]."""
    first = ids.shape[1] - NUM_STEPS + 1
    positions = torch.arange(ids.shape[1], device=ids.device)[None, :, None]
    positions = positions.expand(len(ids), -1, -1)
    logits, state = engine.prefill(ids[:, :first], positions[:, :first])
    outputs = [logits.clone()]
    for n in range(first, ids.shape[1]):
        logits, state = engine.step(ids[:, n], positions[:, n], state)
        outputs.append(logits.clone())
    return torch.stack(outputs, dim=1)


if __name__ == "__main__":
    main()
