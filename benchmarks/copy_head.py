"""Measure what a copy head and other parts cost: in training, decoding and memory.

Training steps (forward, backward, AdamW) are those of the models of experiment=demo and of
experiment=my_music, with parts switched off one by one, against a plain Transformer of their size
with torch's SDPA. Decoding is timed with songs-small after so many tokens that the ring of the copy
head is full. A decoded token includes ONNX Runtime, grammar and sampling.

    python -m benchmarks.copy_head [--rounds 6]
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import musicgen
from benchmarks import measure
from benchmarks.decoding_engines import advance, generation
from musicgen.attention import ELU, FAVOR, LinearAttention
from musicgen.composer import compose_pop
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import ModelState, Transformer
from musicgen.position import RoPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI
from musicgen.tokenization.coordinates import Coordinates

VOCAB, LENGTH, TOKENS_PER_BAR = 361, 2048, 64
SIZES = {"dim": 192, "num_layers": 4, "num_heads": 6, "ff_dim": 768, "dropout": 0.0}
SIDES = {"without": None, "with": {"window": LENGTH}}
# The trained models: sizes, feature map and decay, other options.
TRAINED: dict[str, Any] = {
    "demo": (
        {"dim": 128, "num_layers": 4, "num_heads": 4, "ff_dim": 512},
        (FAVOR, "head"),
        {},
    ),
    "my_music": (
        {"dim": 192, "num_layers": 6, "num_heads": 6, "ff_dim": 768},
        (ELU, "token"),
        {"qk_norm": True},
    ),
}
WITHOUT: dict[str, Any] = {"copy head": {"copy": None}, "convolution": {"short_conv": None}}
PLAIN, NOTHING = "plain", "any of them"
NUM_STEPS = 32  # of decoding, timed together
FAR = 20_000
TOKEN_ROUNDS = 40  # of decoding; many short turns compare it better


def build(side: str) -> Transformer:
    torch.manual_seed(0)
    options = {"norm_first": True, "short_conv": 4, "init_std": 0.02, "copy": SIDES[side]}
    attention = partial(LinearAttention, feature_map=FAVOR, decay="head")
    return Transformer(VOCAB, **SIZES, position=RoPE, attention=attention, **options)


def positions(index: torch.Tensor) -> torch.Tensor:
    """Return index, time and bar of token indices: [...] -> [..., 3]."""
    bars = index // TOKENS_PER_BAR
    return torch.stack((index, bars * 16, bars), dim=-1)


class PlainLayer(nn.Module):
    """A pre-norm layer with softmax attention."""

    def __init__(self, dim: int, num_heads: int, ff_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, ff_dim), nn.ReLU(), nn.Linear(ff_dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.ff(self.norms[1](x))


class Plain(nn.Module):
    """A plain Transformer: embeddings of tokens and positions, layers, a norm and a linear map."""

    def __init__(self, *, dim: int, num_layers: int, **layer: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, dim), nn.Embedding(LENGTH, dim)
        layers = (PlainLayer(dim, **layer) for _ in range(num_layers))
        self.layers = nn.Sequential(*layers, nn.LayerNorm(dim), nn.Linear(dim, VOCAB))

    def forward(self, tokens: torch.Tensor, **unused: Any) -> torch.Tensor:
        return self.layers(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])


def trained(name: str, part: str) -> nn.Module:
    """Return a model of `TRAINED` without a part, or the plain one."""
    torch.manual_seed(0)
    sizes, (feature_map, decay), options = TRAINED[name]
    if part == PLAIN:
        return Plain(**sizes)
    attention = partial(LinearAttention, feature_map=feature_map, decay=decay)
    options = {"norm_first": True, "short_conv": 4, "copy": {}, "dropout": 0.0, **options}
    for each, changes in WITHOUT.items():
        if part in (each, NOTHING):
            options |= changes
    if part in ("decay", NOTHING):
        attention = partial(attention, decay="none")
    return Transformer(VOCAB, **sizes, position=RoPE, attention=attention, **options)


def stepper(model: nn.Module, tokens: torch.Tensor, where: torch.Tensor) -> Callable[[], None]:
    """Return a training step: forward, backward and optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def step() -> None:
        if getattr(model, "copy_head", None) is None:
            logits = model(inputs, positions=where)
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        else:
            (-model(inputs, positions=where, targets=targets).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def training_steps(rounds: int) -> list[dict[str, Any]]:
    """Return rows of the training steps on a composed piece, by model and length."""
    tokenizer = REMI()
    ids = tokenizer.encode(compose_pop(1, 1))
    coordinates = Coordinates(tokenizer).of(ids[:LENGTH], ("index", "time", "bar"))
    found = []
    for length in (1024, LENGTH):
        tokens = torch.from_numpy(ids[: length + 1]).long()[None]
        where = torch.from_numpy(coordinates[:length])[None]
        for name in TRAINED:
            models = {part: trained(name, part) for part in (PLAIN, "", *WITHOUT, "decay", NOTHING)}
            runs = {part: stepper(model, tokens, where) for part, model in models.items()}
            times = measure.interleaved(runs, rounds, clock=time.process_time)
            for part in (part for part in runs if part != PLAIN):
                what = f"{name}, {length:,} tokens{part and f', without {part}'}: ours / plain"
                target = "≤ 1.1" if part == "" and length == 1024 else "—"
                row = measure.compare(what, times[part], times[PLAIN], "s a step", target)
                found.append(row)
    return found


class Decoding:
    """One sequence, which its model decodes further with each call of `steps`."""

    def __init__(self, model: Transformer) -> None:
        self.engine: Engine = make_engine(model.eval(), NoiseKey((1,)), engine="eager")
        self.tokens = torch.randint(VOCAB, (1, LENGTH))
        where = positions(torch.arange(LENGTH)[None])
        self.state: ModelState = self.engine.prefill(self.tokens, where)[1]

    def steps(self, count: int = NUM_STEPS) -> None:
        token = self.tokens[:, 0]
        for _ in range(count):
            where = positions(self.state.length)
            logits, self.state = self.engine.step(token, where, self.state)
            token = logits.argmax(-1)


def megabytes(state: ModelState) -> float:
    return sum(tensor.nbytes for tensor in state.tensors().values()) / 1e6


def decoded(batch_size: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a token with and without a copy head, by round."""
    loaded = musicgen.load("songs-small")
    without = copy.deepcopy(loaded.model)
    without.copy_head = None
    models = {"without": without, "with": loaded.model}
    runs = {}
    for side, model in models.items():
        steps = generation(model, loaded.tokenizer, "onnx", batch_size)
        advance(steps, LENGTH)
        runs[side] = partial(advance, steps, NUM_STEPS)
    times = measure.interleaved(runs, TOKEN_ROUNDS, clock=time.process_time)
    return {side: [t / NUM_STEPS / batch_size for t in found] for side, found in times.items()}


def compare(what: str, times: dict[str, list[float]], target: str) -> dict[str, object]:
    sides = times["with"], times["without"]
    return measure.compare(f"{what}: with / without", *sides, "s", target)


def main() -> None:
    args = measure.arguments(__doc__, rounds=6)
    torch.set_num_threads(1)
    found = training_steps(args.rounds)
    models = {side: build(side) for side in SIDES}
    with torch.inference_mode():
        for batch_size in (1, 16):
            what = f"a decoded token, batch of {batch_size}"
            found.append(compare(what, decoded(batch_size), "≤ 1.2"))
        without, with_head = (megabytes(Decoding(model).state) for model in models.values())
        found.append(
            measure.row("state of a sequence: with / without", with_head, without, "MB", "—")
        )
        near, far = (Decoding(models["with"]) for _ in range(2))
        far.steps(FAR - LENGTH)
        runs = {"near": near.steps, "far": far.steps}
        times = measure.interleaved(runs, args.rounds, clock=time.process_time)
        what = f"{NUM_STEPS} decoding steps after {FAR:,} tokens / after {LENGTH:,}"
        found.append(measure.compare(what, times["far"], times["near"], "s", "≤ 1.05"))
    measure.save_results(__file__, found)


if __name__ == "__main__":
    main()
