"""What a change of structure must leave as it is: samples, weights after training, losses.

The samples cover every option of a request: kept parts, chords, guidance, forms, endings, filters.

`python tests/golden/test_golden.py` writes golden.json anew, for a change that means to alter them.
"""

import functools
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import musicgen
from musicgen.attention import FAVOR, LinearAttention
from musicgen.composer import compose_pop
from musicgen.composer.bands import compose_band
from musicgen.composer.songs import compose_song
from musicgen.evaluation.position_loss import position_losses
from musicgen.midi import NOTE, Score, Track
from musicgen.position import SineSPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, TIME_SIGNATURES
from tests.end_to_end.deaths import train
from tests.generation.builders import music_model

GOLDEN = Path(__file__).with_name("golden.json")
VOICES = "Soprano", "Alto", "Tenor", "Bass"
IN_C = [(72, 67, 64, 48), (74, 67, 65, 47), (76, 67, 60, 48), (72, 69, 65, 53)]
MODELS = "songs-small", "groove-small", "bach-chorales"
UNTRAINED = {
    "position": functools.partial(SineSPE, num_realizations=8),
    "attention": functools.partial(LinearAttention, feature_map=FAVOR),
    "num_layers": 2,
}
FREE = {"fix_tempo": False, "fix_time_signature": False}
LONG = {"limit_durations": False}
RUNS = {
    "default": [],
    "sine_spe": ["position=sine_spe", "attention=favor"],
    "conv_spe": ["position=conv_spe", "attention=favor"],
    "span": ["attention=softmax", "span=gaussian"],
}
SMALL = (
    "data.num_pieces=6",
    "model.dim=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.ff_dim=64",
    "loader.length=129",
    "loader.batch_size=2",
    "trainer.max_steps=20",
    "trainer.val_check_interval=20",
)


load = functools.cache(musicgen.load)


def chorale(chords: list[tuple[int, int, int, int]]) -> Score:
    """Four voices in quarters, 24 ticks each."""
    voices = [
        Track(
            name,
            notes=np.array([(24 * i, 24, pitch, 80) for i, pitch in enumerate(voice)], dtype=NOTE),
        )
        for name, voice in zip(VOICES, zip(*chords, strict=True), strict=True)
    ]
    return Score(24, voices)


def prompts(name: str) -> list[Score]:
    if name == "songs-small":
        return [compose_song(1000, index) for index in range(2)]
    if name == "groove-small":
        return [compose_band(1000, band, 0) for band in range(2)]
    return [chorale(IN_C), chorale([tuple(p + 2 for p in chord) for chord in reversed(IN_C)])]


def samples(name: str) -> list[str]:
    """A hash of the tokens of each sample: two prompts by three seeds."""
    model = load(name)
    return [
        hashlib.sha256(piece.tokens.astype("<i8").tobytes()).hexdigest()[:16]
        for seed in range(3)
        for piece in model.generate(
            prompts(name), prompt_bars=2, bars=3, seed=seed, limit_durations=False
        )
    ]


def three_bars(score: Score) -> Score:
    """Three bars of a piece in 4/4 in which all of its parts play."""
    bar = 4 * score.ticks_per_beat
    return score.clip(12 * bar, 15 * bar)


# What a request can ask of the tokens and of the logits: checkpoint and options of `generate`.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "kept part": ("songs-small", {"keep": "voice", "guidance": 1}),
    "guidance": ("songs-small", {"keep": "voice", "guidance": 3, "prompt_bars": 1}),
    "likeliest token with guidance": (
        "songs-small",
        {"keep": "piano", "temperature": 0, "prompt_bars": 1},
    ),
    "rewritten bars": ("songs-small", {"rewrite": "2-3", "chords": "C Am | F"}),
    "rewritten part": ("songs-small", {"rewrite": "3", "keep": "piano", "key": "Eb"}),
    "chords": ("songs-small", {"prompt_bars": 1, "bars": 2, "chords": "C Am | F | G"}),
    "new song": ("songs-small", {"bars": 2, "tempo": 90, "key": "F#m", "chords": "Bb F"}),
    "closed song": ("songs-small", {"prompt_bars": 2, "bars": 2, "ending": "close"}),
    "form": ("songs-small", {"prompt_bars": 1, "bars": 2, "form": "AAB", "section_bars": 1}),
    "one note at once": ("songs-small", {"prompt_bars": 2, "bars": 2, "max_notes": 1}),
    "free tempo and metre": ("songs-small", {"prompt_bars": 1, "bars": 2, **FREE}),
    "closed groove": ("groove-small", {"prompt_bars": 2, "bars": 1, "ending": "close", **LONG}),
    "limited notes": (
        "groove-small",
        {"prompt_bars": 2, "bars": 1, "max_notes": [1, 2, 1, 2, 3], **LONG},
    ),
    "longer notes": ("groove-small", {"prompt_bars": 2, "bars": 2, **LONG}),
    "short notes": ("groove-small", {"prompt_bars": 2, "bars": 2}),
    "kept soprano": ("bach-chorales", {"keep": "soprano"}),
    "kept voices": (
        "bach-chorales",
        {"keep": "alto,bass", "guidance": 2, "top_k": 5, "prompt_bars": 1},
    ),
    "no parallels": ("bach-chorales", {"keep": "bass", "avoid_parallels": True, "prompt_bars": 1}),
    "closed chorale": ("bach-chorales", {"bars": 1, "ending": "close", "avoid_parallels": True}),
    "filters": ("bach-chorales", {"bars": 1, "top_k": 9, "min_p": 0.02, "typical_p": 0.8}),
    "tokens in all": ("songs-small", {"prompt_bars": 1, "total_tokens": 99, "allow_end": True}),
    "untrained REMI": ("remi", {"prompt_bars": 1, "bars": 3, "chords": "C Am | F"}),
    "free REMI": ("remi", {"prompt_bars": 1, "bars": 2, **FREE}),
    "closed REMI": ("remi", {"prompt_bars": 1, "bars": 2, "ending": "close", "tempo": 77}),
}


def request_sample(name: str) -> str:
    """A hash of the tokens of a request's samples: of two with kept parts, else of one."""
    checkpoint, options = REQUESTS[name]
    if checkpoint == "remi":
        model, score = (
            music_model(REMI(time_signatures=TIME_SIGNATURES), **UNTRAINED),
            three_bars(compose_pop(1000, 0)),
        )
    elif checkpoint == "bach-chorales":
        model, score = load(checkpoint), chorale([*IN_C, *reversed(IN_C), *IN_C])
    else:
        model, score = load(checkpoint), three_bars(prompts(checkpoint)[0])
    num_samples = 2 if "kept" in name else 1
    prompt = None if name == "new song" else score
    pieces = model.generate(prompt, num_samples=num_samples, **options)
    tokens = np.concatenate([piece.tokens.astype("<i8") for piece in pieces])
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]


def losses() -> list[float]:
    """The mean loss of the first tokens of ten pieces."""
    model = load("songs-small")
    pieces = [model.tokenizer.encode(compose_song(1000, index))[:400] for index in range(10)]
    key = NoiseKey((0,))
    return [
        position_losses(model.model, piece, key, positions=model.positions(piece)).mean()
        for piece in pieces
    ]


def trained_norms(overrides: list[str], folder: Path) -> list[float]:
    """The norm of each parameter after 20 steps, ascending, as names may change."""
    arguments = [*SMALL, *overrides, "hydra.run.dir=run", "paths.data_dir=data"]
    assert train(folder, *arguments) == 0, (folder / "stderr").read_text()
    model = musicgen.load(folder / "run").model
    return sorted(round(float(p.detach().double().norm()), 7) for p in model.parameters())


@pytest.fixture(scope="module")
def golden():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield json.loads(GOLDEN.read_text())
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MODELS)
def test_samples(golden, name):
    assert samples(name) == golden["samples"][name]


@pytest.mark.parametrize("name", REQUESTS)
def test_samples_of_requests(golden, name):
    assert request_sample(name) == golden["requests"][name]


def test_losses(golden):
    np.testing.assert_allclose(losses(), golden["losses"], rtol=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_weights_after_20_steps(golden, tmp_path, name):
    np.testing.assert_allclose(
        trained_norms(RUNS[name], tmp_path), golden["weights"][name], rtol=2e-4, atol=1e-6
    )


def write_golden() -> None:
    torch.set_num_threads(1)
    weights = {}
    for name, overrides in RUNS.items():
        with TemporaryDirectory() as folder:
            weights[name] = trained_norms(overrides, Path(folder))
    values = {
        "samples": {name: samples(name) for name in MODELS},
        "requests": {name: request_sample(name) for name in REQUESTS},
        "losses": losses(),
        "weights": weights,
    }
    rows = (f'"{name}": {json.dumps(value)}' for name, value in values.items())
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    write_golden()
