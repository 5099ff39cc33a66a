"""The speed of six parts in less than a minute, each as a ratio to something outside.

Ratios hardly depend on the machine, so a fall is seen by comparison with those recorded in
results/quick.json. A part that is a quarter slower than recorded is marked; the exit status is 1.

    python -m benchmarks.quick [--record] [--root FOLDER of MIDI files]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.causal_product import make_step
from benchmarks.decoding import NOISE, steps
from benchmarks.preparation import Run, encoding, reading
from benchmarks.training_step import build, step
from musicgen.composer import compose_pop
from musicgen.data.corpora import ComposedCorpus
from musicgen.generation.engines import make_engine
from musicgen.midi import dumps, find_music
from musicgen.tokenization import REMI

NUM_SONGS, NUM_BATCHES, NUM_TOKENS, LENGTH = 20, 20, 32, 512
SLOWER = 1.25
"""Times the recorded ratio: more is a fall."""


def loading(folder: Path) -> tuple[Run, Run]:
    data = measure.data_module(
        ComposedCorpus(str(folder / "composed"), kind="pop", num_pieces=20, corpus_seed=0),
        REMI(),
        folder / "cache",
        length=LENGTH,
        batch_size=8,
        batches_per_epoch=NUM_BATCHES,
    )
    loader = data.train_dataloader()
    return lambda: list(islice(iter(loader), NUM_BATCHES)), matrix_products


def training_step() -> tuple[Run, Run]:
    model, tokens = build("sine_spe", 2, "cpu"), torch.randint(333, (1, LENGTH))
    return lambda: step(model, tokens, 0), matrix_products


def causal_product() -> tuple[Run, Run]:
    return make_step("ours", 2048, "cpu"), make_step("softmax", 2048, "cpu")


def decoding() -> tuple[Run, Run]:
    """Return runs of some tokens, and of reading all weights as often."""
    model = build("sine_spe", 2, "cpu").eval()
    with torch.inference_mode():
        _, state = model.forward_with_state(torch.randint(333, (1, 32)), noise=NOISE)
    engine = make_engine(model, NOISE, engine="eager")
    weights = [each.weight for each in model.modules() if isinstance(each, torch.nn.Linear)]
    vectors = {each.shape[1]: torch.randn(each.shape[1]) for each in weights}
    first = torch.zeros(1, dtype=torch.long)

    @torch.inference_mode()
    def ours() -> None:
        steps(engine, state.select(first), 32, NUM_TOKENS)

    @torch.inference_mode()
    def weights_alone() -> None:
        for _ in range(NUM_TOKENS):
            for weight in weights:
                weight @ vectors[weight.shape[1]]

    return ours, weights_alone


@torch.inference_mode()
def matrix_products() -> None:
    """Multiply matrices of 512 x 512 twenty times."""
    matrix = torch.ones(512, 512)
    for _ in range(20):
        matrix @ matrix


def has_slowed(ratio: float, recorded: float | None) -> bool:
    """Return whether a part is slower than it was when its ratio was recorded."""
    return recorded is not None and ratio > SLOWER * recorded


def describe(name: str, ratio: float, recorded: float | None) -> str:
    """Return the line of a part."""
    was = "not recorded" if recorded is None else f"recorded {recorded:.3g}"
    warning = ", SLOWER" if has_slowed(ratio, recorded) else ""
    return f"{name}: {ratio:.3g} ({was}{warning})"


@contextmanager
def songs(root: str) -> Iterator[tuple[Path, list[Path]]]:
    """Give a folder for what is written, and MIDI files: of `root`, or composed ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if root:
            yield folder, find_music(root)[:NUM_SONGS]
            return
        files = [folder / f"{i}.mid" for i in range(NUM_SONGS)]
        for i, path in enumerate(files):
            path.write_bytes(dumps(compose_pop(i, i)))
        yield folder, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the ratios to results/")
    parser.add_argument("--root", default="", help="read MIDI files of this folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = measure.RESULTS / "quick.json"
    recorded = json.loads(path.read_text())["ratios"] if path.exists() else {}
    ratios, has_fallen = dict[str, float](), False
    with songs(args.root) as (folder, files):
        parts: dict[str, Callable[[], tuple[Run, Run]]] = {
            "reading / symusic": partial(reading, files),
            "encoding / MidiTok": partial(encoding, files),
            "loading / matrix products": partial(loading, folder),
            "training step / matrix products": training_step,
            "causal product / SDPA": causal_product,
            "decoding / reading the weights": decoding,
        }
        if find_spec("miditok") is None:
            print("MidiTok is not installed: encoding is left out (pip install miditok)")
            parts.pop("encoding / MidiTok")
        for name, prepare in parts.items():
            ours, theirs = prepare()
            times = measure.interleaved({"a": ours, "b": theirs}, 5, clock=time.process_time)
            pairs = zip(times["a"], times["b"], strict=True)
            ratios[name] = statistics.median(a / b for a, b in pairs)
            has_fallen |= has_slowed(ratios[name], recorded.get(name))
            print(describe(name, ratios[name], recorded.get(name)), flush=True)
    if args.record:
        measure.write_results(__file__, {"ratios": recorded | ratios})
    elif has_fallen:
        sys.exit(1)


if __name__ == "__main__":
    main()
