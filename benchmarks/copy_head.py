"""Measure what a copy head costs in training, in decoding, and in memory.

Training is timed with a small model, decoding with songs-small after so many tokens that the ring
of the copy head is full. A decoded token includes ONNX Runtime, grammar and sampling.
"""

import copy
import time
from functools import partial

import torch

import musicgen
from benchmarks import measure, tables
from benchmarks.decoding import state_bytes
from benchmarks.decoding_engines import advance, generation
from musicgen.attention import FAVOR, LinearAttention
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import ModelState, Transformer
from musicgen.position import RoPE
from musicgen.random import NoiseKey

VOCAB, LENGTH, TOKENS_PER_BAR = 333, 2048, 64
SIZES = {"dim": 192, "num_layers": 4, "num_heads": 6, "ff_dim": 768, "dropout": 0.0}
SIDES = {"without": None, "with": {"window": LENGTH}}
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


def train(model: Transformer, tokens: torch.Tensor) -> None:
    """Run forward and backward."""
    where = positions(torch.arange(LENGTH))[None]
    targets = tokens.roll(-1, 1)
    if model.copy_head is None:
        logits = model(tokens, positions=where)
        torch.nn.functional.cross_entropy(logits.mT, targets).backward()
    else:
        (-model(tokens, positions=where, targets=targets).sum() / LENGTH).backward()


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
    clock = measure.cpu_clock(args.device)
    torch.set_num_threads(1)
    tokens = torch.randint(VOCAB, (1, LENGTH))
    models = {side: build(side) for side in SIDES}
    training = {side: partial(train, model, tokens) for side, model in models.items()}
    times = measure.interleaved(training, args.rounds, clock=clock)
    found = [compare("training step of 2,048 tokens", times, "—")]
    with torch.inference_mode():
        for batch_size in (1, 16):
            what = f"a decoded token, batch of {batch_size}"
            found.append(compare(what, decoded(batch_size), "≤ 1.2"))
        without, with_head = (state_bytes(Decoding(model).state) / 1e6 for model in models.values())
        found.append(
            measure.row("state of a sequence: with / without", with_head, without, "MB", "—")
        )
        near, far = (Decoding(models["with"]) for _ in range(2))
        far.steps(FAR - LENGTH)
        runs = {"near": near.steps, "far": far.steps}
        times = measure.interleaved(runs, args.rounds, clock=clock)
        what = f"{NUM_STEPS} decoding steps after {FAR:,} tokens / after {LENGTH:,}"
        found.append(measure.compare(what, times["far"], times["near"], "s", "≤ 1.05"))
    measure.save_results(__file__, found, args)
    tables.main()


if __name__ == "__main__":
    main()
