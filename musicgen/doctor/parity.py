"""Models on this machine against the same models in fp64 on the CPU, with the naive backend."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.attention import (
    ELU,
    FAVOR,
    Attention,
    AttentionSpan,
    GaussianSpan,
    LinearAttention,
    SoftmaxAttention,
)
from musicgen.errors import UserError
from musicgen.generation.engines import CudaGraphEngine, Engine, PackedCpuEngine
from musicgen.models import Transformer
from musicgen.position import ALiBi, NoPosition, PositionalEncoding, RoPE, SineSPE, TransformerXL
from musicgen.random import NoiseKey

VOCAB, LENGTH, NOISE = 50, 333, NoiseKey((0,))
NUM_STEPS = 40  # of decoding
TOLERANCE = 2e-3  # of outputs and gradients, relative to the largest; fp32 or TF32
TOLERANCE_BF16 = 5e-2
Cases = Mapping[str, Callable[[], Transformer]]
"""Functions that make models in evaluation mode on the CPU, by name."""

LINEAR_BACKENDS = ("chunked", "fla", "fast_transformers")


def small_model(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    span: Callable[..., AttentionSpan] | None = None,
) -> Transformer:
    """Build a model in evaluation mode, with weights large enough that attention matters."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"dim": 64, "num_layers": 2, "num_heads": 2, "ff_dim": 128}
    parts: dict[str, Any] = {"position": position, "attention": attention, "span": span}
    model = Transformer(VOCAB, **sizes, **parts, dropout=0.0, init_std=0.15)
    update_windows(model)
    return model.eval()


def update_windows(model: Transformer) -> None:
    """Compute the windows of spans, as training does after each step."""
    for module in model.modules():
        if isinstance(module, AttentionSpan):
            module.update_window()


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


class Result(NamedTuple):
    """One check: its error relative to the largest value, and the time of a training step."""

    name: str
    error: float | None  # None: it was not run
    tolerance: float
    seconds: float | None = None
    refusal: str = ""  # why it was not run

    @property
    def failed(self) -> bool:
        return self.error is not None and not self.error <= self.tolerance  # NaN fails


def check_training(device: str, cases: Cases | None = None) -> Iterator[Result]:
    """Compare logits and gradients of every backend, with an odd length; time a training step."""
    for name, make in (cases or CASES).items():
        model = make()
        expected = logits_and_gradients(_reference(model), tokens())
        precisions = ("fp32", "bf16") if device == "cuda" else ("fp32",)
        for backend in LINEAR_BACKENDS if "softmax" not in name else ("",):
            for precision in precisions:
                label = ", ".join(filter(None, (name, backend, precision)))
                tolerance = TOLERANCE if precision == "fp32" else TOLERANCE_BF16
                ours = copy.deepcopy(model).to(device)
                _set_backend(ours, backend)
                run = partial(_in_precision, logits_and_gradients, precision, device, ours)
                try:
                    error = relative_error(run(tokens().to(device)), expected)
                except UserError as refusal:
                    yield Result(label, None, tolerance, refusal=str(refusal))
                    continue
                yield Result(label, error, tolerance, _seconds(run, device))


def check_decoding(device: str, cases: Cases | None = None) -> Iterator[Result]:
    """Compare each decoding engine's logits, after a prefill, with one parallel pass."""
    for name, make in (cases or CASES).items():
        model = make()
        ids = tokens()
        with torch.no_grad():
            expected = _reference(model)(ids, noise=NOISE)[:, -NUM_STEPS:]
        for engine_name, engine in _engines(copy.deepcopy(model).to(device), device):
            yield Result(
                f"{name}, {engine_name}",
                relative_error([_decode(engine, ids.to(device))], [expected]),
                TOLERANCE,
            )


def tokens() -> Tensor:
    return torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def logits_and_gradients(model: Transformer, ids: Tensor) -> list[Tensor]:
    """Return the logits, and the gradient of the loss by each parameter."""
    model.train()  # the chosen backend is that of training; there is no dropout
    logits = model(ids, noise=NOISE)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return [logits.detach(), *gradients]


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest error, relative to the largest value of its kind.

    Gradients are compared together: those that vanish have only rounding errors.
    """
    errors = []
    for part in (slice(0, 1), slice(1, None)):
        pairs = list(zip(found[part], expected[part], strict=True))
        if pairs:
            largest = max(float(b.detach().abs().max()) for _, b in pairs)
            worst = max(float((a.cpu() - b.detach()).abs().max()) for a, b in pairs)
            errors.append(worst / largest)
    return max(errors)


def _reference(model: Transformer) -> Transformer:
    reference = copy.deepcopy(model).double()
    _set_backend(reference, "naive")
    return reference


def _set_backend(model: Transformer, backend: str) -> None:
    for module in model.modules():
        if isinstance(module, LinearAttention):
            module.backend = backend


def _in_precision(
    function: Callable, precision: str, device: str, model: Transformer, ids: Tensor
) -> list[Tensor]:
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        return function(model, ids)


def _seconds(run: Callable[[Tensor], object], device: str, repeats: int = 5) -> float:
    ids, times = tokens().to(device), []
    for _ in range(repeats):
        start = time.perf_counter()
        run(ids)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _engines(model: Transformer, device: str) -> Iterator[tuple[str, Engine]]:
    kinds = [module for module in model.modules() if isinstance(module, Attention)]
    fixed_state = kinds[0].has_fixed_state
    yield "eager", Engine(model, NOISE)
    if device == "cpu":
        yield "packed", PackedCpuEngine(model, NOISE, None, _fail)
        if fixed_state:
            yield "compiled", PackedCpuEngine(model, NOISE, 0, _fail)
    elif device == "cuda" and fixed_state:
        yield "CUDA graph", CudaGraphEngine(model, NOISE, _fail)


def _fail(message: str) -> None:
    raise UserError(message)


@torch.inference_mode()
def _decode(engine: Engine, ids: Tensor) -> Tensor:
    """Return the logits of the last tokens, each after a step: [B, NUM_STEPS, V]."""
    first = ids.shape[1] - NUM_STEPS + 1
    positions = torch.arange(ids.shape[1], device=ids.device)[None, :, None].expand(
        len(ids), -1, -1
    )
    logits, state = engine.prefill(ids[:, :first], positions[:, :first])
    outputs = [logits.clone()]
    for n in range(first, ids.shape[1]):
        logits, state = engine.step(ids[:, n], positions[:, n], state)
        outputs.append(logits.clone())
    return torch.stack(outputs, dim=1)
