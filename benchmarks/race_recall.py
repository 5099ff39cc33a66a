"""What learns to recall: linear attention, softmax and copy heads, at equal CPU time of training.

    python -m benchmarks.race_recall --root POP909 [--seconds 50] [--seeds 0 1 2] [--arms ...]

Each arm trains the small model on one thread, on composed pieces and on POP909, for as many steps
as take the given CPU time, by the time of a step that is measured in turn with those of the other
arms. The loss on held-out pieces is that of `metrics=recall`, to 2,048 and to 4,096 tokens. What
earlier calls measured stays in the results. Those of rivals that were worse, whose code was not
kept, are among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from benchmarks import measure
from benchmarks.pretrained import HELD_OUT_SEED
from musicgen.cli.datasets import build_data
from musicgen.cli.threads import set_up_cpu
from musicgen.data.preparation import EncodedCorpus
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.recall import Probe, piece_parts, plant
from musicgen.generation.engines import Engine, make_engine
from musicgen.models import ModelState, Transformer
from musicgen.package_data import CONF
from musicgen.random import NoiseKey
from musicgen.training.tasks import LanguageModeling

LENGTH, FAR = 2048, 4096  # tokens of a training window, and of held-out pieces at most
NUM_PIECES = 12  # held out, of each corpus
LAGS = {8: LENGTH, 16: LENGTH, 32: FAR}  # bars, and tokens until a planted bar's copy ends
CORPORA = {"composed": ["data=composer"], "POP909": ["data=pop909"]}
NOISE = NoiseKey((0,))
TASK = LanguageModeling()


ARMS = {  # settings of train.py
    "linear": [],
    "softmax": ["attention=softmax"],
    "linear + copy head": ["model.copy={}"],
    "linear + copy head, 4,096 in use": ["model.copy={window: 4096, max_lag: 64}"],
}


class Trained:
    """A model and its training, with settings of train.py."""

    def __init__(
        self, settings: Sequence[str], corpus: str, seed: int, root: str, num_steps: int = 100
    ) -> None:
        given = [*CORPORA[corpus], f"loader.length={LENGTH}", "loader.batch_size=1"]
        given += ["loader.batches_per_epoch=1000000", "scheduler.warmup_steps=20"]
        given += [f"data.root={root}"] if corpus == "POP909" else []
        given += [*settings, f"seed={seed}", f"trainer.max_steps={num_steps}"]
        cfg = composed_config(tuple(given))
        torch.manual_seed(seed)
        tokenizer = instantiate(cfg.tokenizer, _convert_="all")
        self.model: Transformer = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
        self.data = build_data(cfg, tokenizer, self.model.coordinate_names)
        self.optimizer = instantiate(cfg.optimizer)(self.model)
        self.scheduler = instantiate(cfg.scheduler)(self.optimizer)
        self.batches = iter(self.data.train_dataloader())

    def step(self) -> float:
        """Take a step; return its loss."""
        self.model.train()
        loss = TASK.loss(self.model, next(self.batches), NOISE)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()


@cache
def composed_config(given: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", [*given, "paths.data_dir=data", "paths.output_dir=."])


@torch.inference_mode()
def losses(trained: Trained, pieces: EncodedCorpus, indices: Sequence[int]) -> dict[str, float]:
    """Return the mean nats of each part of held-out pieces, to 2,048 and to 4,096 tokens."""
    model, tokenizer = trained.model.eval(), pieces.tokenizer
    nats: dict[str, list[np.ndarray]] = {}
    for i in indices:
        for (tokens, parts), lengths in probes(pieces, i):
            names = model.coordinate_names
            where = tokenizer.coordinates(tokens, names, bar_length=pieces.cache.bar_lengths[i])
            found = position_losses(model, tokens, NOISE, positions=where)[0]
            for length in lengths:
                for (part, _), flags in parts.items():
                    name = f"{part}, {length:,}" if len(lengths) > 1 else part
                    nats.setdefault(name, []).append(found[:length][flags[:length]])
    found = {name: np.concatenate(of_part) for name, of_part in nats.items()}
    return {name: float(of_part.mean()) for name, of_part in found.items() if len(of_part)}


def probes(pieces: EncodedCorpus, i: int) -> Iterator[tuple[Probe, tuple[int, ...]]]:
    """Yield the beginning of a piece, and with planted bars; and the lengths to measure to."""
    piece, bar_length = pieces.cache[i].astype(np.int64), pieces.cache.bar_lengths[i]
    parts = piece_parts(piece, pieces.tokenizer, bar_length, [*LAGS])
    yield (piece[: FAR + 1], {part: flags[:FAR] for part, flags in parts.items()}), (LENGTH, FAR)
    for lag, length in LAGS.items():
        rng = np.random.default_rng((0, i))
        if planted := plant(piece, pieces.tokenizer, lag, length + 1, rng):
            yield planted, (length,)


def held_out(corpus: str, root: str) -> tuple[EncodedCorpus, list[int]]:
    """Return composed pieces of a seed of their own, or POP909's test split."""
    if corpus == "POP909":
        pieces = Trained(ARMS["linear"], corpus, 0, root).data.encoded
        return pieces, pieces.split("test")[:NUM_PIECES]
    new = [f"data.corpus_seed={HELD_OUT_SEED}", f"data.num_pieces={NUM_PIECES}"]
    new += ["loader.val_fraction=0", "loader.test_fraction=0"]
    pieces = Trained(new, corpus, 0, root).data.encoded
    return pieces, [*range(len(pieces.cache))]


def seconds_per_step(names: Sequence[str], root: str) -> dict[str, float]:
    """Return the CPU seconds of a step of each arm: the median, in turn with the others."""
    runs = {name: Trained(ARMS[name], "composed", 0, root).step for name in names}
    times = measure.interleaved(runs, 5, clock=time.process_time)
    return {name: statistics.median(found) for name, found in times.items()}


@torch.inference_mode()
def decoding(names: Sequence[str], root: str) -> dict[str, dict[str, float]]:
    """Return CPU seconds a decoded token after 2,048, and bytes of state after 2,048 and 20,000."""
    runs, found = {}, {name: dict[str, float]() for name in names}
    for name in names:
        model = Trained(ARMS[name], "composed", 0, root).model.eval()
        engine = make_engine(model, NOISE, engine="eager")
        for length in (20_000, LENGTH):
            tokens = torch.randint(model.embedding.num_embeddings, (1, length))
            index = torch.arange(length)[None]
            where = torch.stack((index, index // 4, index // 64), dim=-1)
            state = engine.prefill(tokens, where)[1]
            size = sum(x.nbytes for x in tensors(state))
            found[name][f"state bytes after {length:,}"] = size
        runs[name] = Steps(engine, tokens[:, 0], where[:, -1], state)
    for name, times in measure.interleaved(runs, 5, clock=time.process_time).items():
        found[name]["decoding seconds"] = statistics.median(times) / Steps.count
    return found


def tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a state of any kind of attention."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from tensors(part)
    elif hasattr(state, "__dict__"):
        yield from tensors([*vars(state).values()])


@dataclass
class Steps:
    """Decoding of 32 tokens."""

    engine: Engine
    token: torch.Tensor
    where: torch.Tensor
    state: ModelState
    count: ClassVar = 32

    def __call__(self) -> None:
        for _ in range(self.count):
            logits, self.state = self.engine.step(self.token, self.where, self.state)
            self.token = logits.argmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", default="data/POP909", help="POP909's folder")
    parser.add_argument("--seconds", type=float, default=50, help="CPU time of a training")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--corpora", nargs="*", default=[*CORPORA])
    parser.add_argument("--arms", nargs="*", default=[*ARMS])
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    args = parser.parse_args()
    set_up_cpu()
    torch.set_num_threads(1)
    path = measure.RESULTS / "race_recall.json"
    content: dict[str, Any] = {"arms": {}, "rows": []}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        content = {key: found[key] for key in content}
    if any(name not in content["arms"] for name in args.arms):  # all, to compare their times
        times, decoded = seconds_per_step([*ARMS], args.root), decoding([*ARMS], args.root)
        for name, settings in ARMS.items():
            training = {"seconds a step": times[name], "tokens a step": LENGTH}
            content["arms"][name] = {"settings": settings, **training, **decoded[name]}
    for seed, corpus in product(args.seeds, args.corpora):
        pieces = held_out(corpus, args.root)
        for name in args.arms:
            num_steps = round(args.seconds / content["arms"][name]["seconds a step"])
            key: dict[str, Any] = {"arm": name, "corpus": corpus, "seconds": args.seconds}
            key |= {"seed": seed, "steps": num_steps}
            if any(row.items() >= key.items() for row in content["rows"]):
                continue
            trained = Trained(ARMS[name], corpus, seed, args.root, num_steps)
            start = time.process_time()
            for _ in range(num_steps):
                trained.step()
            key["CPU seconds"] = time.process_time() - start
            content["rows"].append(key | losses(trained, *pieces))
            print(content["rows"][-1], flush=True)
            measure.write_results(__file__, content, args)


if __name__ == "__main__":
    main()
