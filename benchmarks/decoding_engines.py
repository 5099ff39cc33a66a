"""Compare the CPU time of a token with torch and with ONNX Runtime, by model and batch size.

A token includes grammar and sampling. The engines take turns in one process, on one thread. With
`--device cuda` a CUDA graph is compared with torch, in seconds. Without it, a token of songs-small
is also compared with the matrix products of its layers alone, of one sequence and of eight.
"""

import itertools
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import musicgen
from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.generation.prompt import empty_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import GeneratedSequence, Sampler
from musicgen.generation.sampling import SamplingParams
from musicgen.models import Transformer
from musicgen.position import RoPE, SineSPE
from musicgen.tokenization import REMI, Chorale, Tokenizer

SIDES = "token", "torch", "numpy"


def models(layers: int) -> dict[str, tuple[Transformer, Tokenizer]]:
    """Return shipped models, and untrained ones: a small one of chorales, and the published one."""
    found = {}
    for name in ("songs-small", "groove-small"):
        loaded = musicgen.load(name)
        found[name] = loaded.model, loaded.tokenizer
    attention = partial(LinearAttention, feature_map=FAVOR)
    chorale, remi = Chorale(), REMI()
    small = {"dim": 192, "num_layers": 4, "num_heads": 6, "ff_dim": 768}
    large = {"dim": 512, "num_layers": layers, "num_heads": 8, "ff_dim": 2048}
    for name, tokenizer, position, sizes in (
        ("chorales", chorale, RoPE, small),
        (f"published sineSPE, {layers} layers", remi, SineSPE, large),
    ):
        torch.manual_seed(0)
        size = len(tokenizer.vocabulary)
        model = Transformer(size, position=position, attention=attention, dropout=0.0, **sizes)
        found[name] = model.eval(), tokenizer
    return found


def generation(
    model: Transformer,
    tokenizer: Tokenizer,
    engine: str,
    rows: int,
    sampling: SamplingParams | None = None,
) -> Iterator[list[GeneratedSequence]]:
    """Yield after each step of so many rows, which begin with nothing and go on without end."""
    sampler = Sampler(model, tokenizer, GenerationRequest.of(sampling, engine=engine, bars=4096))
    prompt = empty_prompt(tokenizer)
    return sampler.steps([sampler.sequence(prompt, number) for number in range(rows)])


def advance(steps: Iterator[object], number: int) -> None:
    """Take some steps."""
    for _ in itertools.islice(steps, number):
        pass


def products(model: Transformer, rows: int, number: int) -> list[Callable[[], object]]:
    """Return runs of the matrix products of a step's layers, so many times: torch's, numpy's."""
    layers: Any = model.layers
    weights = [m.weight for x in layers for m in (x.qkv, x.out, x.ff_in, x.ff_out)]
    vectors = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights}
    tensors = [(w.detach(), vectors[w.shape[1]]) for w in weights]
    arrays = [(w.numpy(), x.numpy()) for w, x in tensors]

    @torch.inference_mode()
    def with_torch() -> None:
        for _ in range(number):
            for w, x in tensors:
                w @ x[0] if rows == 1 else F.linear(x, w)

    def with_numpy() -> None:
        for _ in range(number):
            for w, x in arrays:
                w @ x[0] if rows == 1 else np.matmul(x, w.T)

    return [with_torch, with_numpy]


def with_products(args: Namespace, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """Return the rows of songs-small against its products, of the faster library by round."""
    music, runs = musicgen.load("songs-small"), dict[str, Callable[[], object]]()
    for number in (1, 8):
        side = generation(music.model, music.tokenizer, "onnx", number, music.sampling())
        sides = partial(advance, side, args.steps), *products(music.model, number, args.steps)
        runs |= {f"{name}{number}": run for name, run in zip(SIDES, sides, strict=True)}
    times = measure.interleaved(runs, args.rounds, clock=clock)
    rows, tokens = list[dict[str, Any]](), dict[int, list[float]]()
    for number, target in (1, "≤ 2.5"), (8, "—"):
        ours, *alone = ([t / args.steps for t in times[f"{s}{number}"]] for s in SIDES)
        what = f"songs-small / its matrix products, {number} at a time"
        rows.append(measure.compare(what, ours, [*map(min, *alone)], "CPU s a step", target))
        tokens[number] = [number / seconds for seconds in ours]
    what, unit = "songs-small, eight at a time / one", "tokens a CPU s"
    return [*rows, measure.compare(what, tokens[8], tokens[1], unit, "≥ 4")]


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", layers=24, rounds=20, steps=40)
    torch.set_num_threads(1)
    rows, clock = [], measure.cpu_clock(args.device)
    cuda = args.device == "cuda"
    fast, its_name = ("auto", "CUDA graph") if cuda else ("onnx", "ONNX Runtime")
    for name, (model, tokenizer) in models(args.layers).items():
        model.to(args.device)
        steps = args.steps if "published" not in name else args.steps // 10
        for batch in (1, 16):
            sides = {e: generation(model, tokenizer, e, batch) for e in ("eager", fast)}
            runs = {engine: partial(advance, side, steps) for engine, side in sides.items()}
            times = measure.interleaved(runs, args.rounds, args.device, clock)
            eager, quick = ([t / steps / batch for t in times[engine]] for engine in sides)
            what = f"eager / {its_name}, {name}, batch of {batch}"
            unit = "s a token" if cuda else "CPU s a token"
            rows.append(measure.compare(what, eager, quick, unit, "—"))
            print(what, 1 / statistics.median(eager), 1 / statistics.median(quick))
    if not cuda:
        rows += with_products(args, clock)
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
