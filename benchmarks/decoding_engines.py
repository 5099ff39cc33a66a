"""Compare the CPU time of a token with torch and with ONNX Runtime, by model and batch size.

A token includes grammar and sampling. The engines take turns in one process, on one thread. With
`--device cuda` a CUDA graph is compared with torch, in seconds.
"""

import itertools
import statistics
from collections.abc import Iterator
from functools import partial

import torch

import musicgen
from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.generation.prompt import empty_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import GeneratedSequence, Sampler
from musicgen.models import Transformer
from musicgen.position import RoPE, SineSPE
from musicgen.tokenization import REMI, Chorale, Tokenizer


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
    model: Transformer, tokenizer: Tokenizer, engine: str, rows: int
) -> Iterator[list[GeneratedSequence]]:
    """Yield after each step of so many rows, which begin with nothing and go on without end."""
    sampler = Sampler(model, tokenizer, GenerationRequest.of(engine=engine, bars=4096))
    prompt = empty_prompt(tokenizer)
    return sampler.steps([sampler.sequence(prompt, number) for number in range(rows)])


def advance(steps: Iterator[object], number: int) -> None:
    """Take some steps."""
    for _ in itertools.islice(steps, number):
        pass


def main() -> None:
    args = measure.arguments(__doc__, layers=24, rounds=20, steps=40)
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
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
