"""Exported models in fp32, fp16 and int8: their size, logits beside torch's, loss and music.

20 held-out composed pieces × 512 steps, and 16 bars after 24 prompts of 4 bars, one each.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch

import musicgen
from benchmarks import measure
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.export.weights import DTYPES
from musicgen.generation.engines import OnnxEngine
from musicgen.generation.model import MusicModel
from musicgen.generation.sampler import Sampler
from musicgen.metrics.key import find_key, in_key_share
from musicgen.midi import Score, pitched_notes
from musicgen.random import NoiseKey

MODELS = ("pop-piano-small", "groove-small")
SEED = 4242  # of pieces that no model was trained on
NUM_PIECES, NUM_STEPS, NUM_PROMPTS = 20, 512, 24


def piece(model: MusicModel, number: int) -> Score:
    if model.tokenizer.name == "remi":
        return compose_pop(SEED, number)
    names = list(FAMILIES)
    family, style = divmod(number, len(names))
    return compose_groove(SEED, names[family], style, 0)


def logits_of(engine: OnnxEngine, model: MusicModel, tokens: torch.Tensor) -> torch.Tensor:
    """Scan pieces [B, L] step by step; return the logits after all but the first token."""
    positions = torch.stack([torch.from_numpy(model.positions(row.numpy())) for row in tokens])
    _, state = model.model.forward_with_state(tokens[:, :1], positions=positions[:, :1])
    outputs = []
    for i in range(1, tokens.shape[1]):
        logits, state = engine.step(tokens[:, i], positions[:, i], state)
        outputs.append(logits)
    return torch.stack(outputs, dim=1)


def engine_of(model: MusicModel, graph: Path) -> OnnxEngine:
    """Return an engine that runs an exported graph."""
    engine = OnnxEngine(model.model, NoiseKey((0,)))
    engine._session = onnxruntime.InferenceSession(graph)  # in place of the one that it makes
    return engine


@torch.inference_mode()
def rows(name: str) -> list[dict[str, Any]]:
    """Export a model in each type, and measure it."""
    model, found = musicgen.load(name), []
    pieces = [piece(model, i) for i in range(NUM_PIECES)]
    tokens = torch.from_numpy(
        np.stack([model.tokenizer.encode(each)[: NUM_STEPS + 1] for each in pieces])
    )
    positions = np.stack([model.positions(row.numpy()) for row in tokens])
    expected = model.model(tokens, positions=torch.from_numpy(positions))[:, 1:-1]
    prompts = [model.prompt(piece(model, i), prompt_bars=4) for i in range(NUM_PROMPTS)]
    for dtype in DTYPES:
        with TemporaryDirectory() as folder:
            model.save_onnx(folder, dtype=dtype)
            graph = Path(folder) / "model.onnx"
            size = graph.stat().st_size / 1e6
            engine = engine_of(model, graph)
        logits = logits_of(engine, model, tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 2:])
        sampler = Sampler(model.model, model.tokenizer, model.request(bars=16, engine="onnx"))
        sampler.engine = engine
        music = sampler.continuations(prompts)
        in_key = [in_key_share(c.new_score, find_key(pitched_notes(c.prompt.score))) for c in music]
        found.append(
            {
                "model": name,
                "weights": dtype,
                "MB": size,
                "largest difference of a logit": float((logits - expected).abs().max()),
                "equal argmax": float((logits.argmax(-1) == expected.argmax(-1)).double().mean()),
                "nats a token": float(loss),
                "notes in key": float(np.nanmean(in_key)),
            }
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = [row for name in MODELS for row in rows(name)]
    measure.write_results(__file__, {"rows": found}, argparse.Namespace(device="cpu"))


if __name__ == "__main__":
    main()
