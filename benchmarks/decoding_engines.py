"""What ONNX Runtime gains: CPU time of a token, grammar and sampling included, by model and rows.

Engines take turns in one process, on one thread; CPU time, as other programs do not change it much.
"""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial

import torch

import musicgen
from benchmarks import measure
from musicgen.attention import FAVOR, LinearAttention
from musicgen.generation.prompts import empty_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Context, Row, Sampler
from musicgen.models import Transformer
from musicgen.position import RoPE, SineSPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Chorale, Tokenizer

WARM_UP = 10  # steps


def models(layers: int) -> dict[str, tuple[Transformer, Tokenizer]]:
    """The shipped models, and untrained ones: a small one of chorales, and the published one."""
    found = {}
    for name in ("pop-piano-small", "groove-small"):
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


@torch.inference_mode()
def seconds(
    model: Transformer,
    tokenizer: Tokenizer,
    engine: str,
    rows: int,
    steps: int,
    warm_up: int = WARM_UP,
) -> list[float]:
    """CPU seconds of some steps of so many rows, each over the rows."""
    sampler = Sampler(model, tokenizer, GenerationRequest(engine=engine, bars=4096))
    prompt = empty_prompt(tokenizer)
    context = Context(prompt, prompt.tokens, 0, None, None, 1 << 20)
    batch = [Row(context, NoiseKey((row,))) for row in range(rows)]
    times, last = [], time.process_time()
    for _ in itertools.islice(sampler.steps(batch), warm_up + steps):
        now = time.process_time()
        times.append((now - last) / rows)
        last = now
    return times[warm_up:]


def main() -> None:
    args = measure.arguments(__doc__, layers=24, rounds=4, steps=200)
    torch.set_num_threads(1)
    rows = []
    for name, model in models(args.layers).items():
        steps = args.steps if "published" not in name else args.steps // 10
        for batch in (1, 16):
            found: dict[str, list[float]] = {"eager": [], "onnx": []}
            for _ in range(args.rounds):
                for engine, times in found.items():
                    times.append(statistics.median(seconds(*model, engine, batch, steps)))
            what = f"eager / ONNX Runtime, {name}, {batch} rows"
            rows.append(measure.compare(what, found["eager"], found["onnx"], "CPU s a token", "—"))
            print(what, 1 / statistics.median(found["eager"]), 1 / statistics.median(found["onnx"]))
    measure.save_results(__file__, rows, args)


if __name__ == "__main__":
    main()
