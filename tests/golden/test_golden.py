"""What a change of structure must leave as it is: samples, weights after training, losses.

`python tests/golden/test_golden.py` writes golden.json anew, for a change that means to alter them.
"""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import musicgen
from musicgen.composer.groove.bands import compose_band
from musicgen.composer.pop.song import compose_song
from musicgen.evaluation.losses import position_losses
from musicgen.midi import NOTE, Score, Track
from musicgen.random import NoiseKey
from tests.end_to_end.deaths import train

GOLDEN = Path(__file__).with_name("golden.json")
VOICES = "Soprano", "Alto", "Tenor", "Bass"
MODELS = "songs-small", "groove-small", "bach-chorales"
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
    in_c = [(72, 67, 64, 48), (74, 67, 65, 47), (76, 67, 60, 48), (72, 69, 65, 53)]
    return [chorale(in_c), chorale([tuple(p + 2 for p in chord) for chord in reversed(in_c)])]


def samples(name: str) -> list[str]:
    """A hash of the tokens of each sample: two prompts by three seeds."""
    model = musicgen.load(name)
    return [
        hashlib.sha256(piece.tokens.astype("<i8").tobytes()).hexdigest()[:16]
        for seed in range(3)
        for piece in model.generate(prompts(name), prompt_bars=2, bars=3, seed=seed)
    ]


def losses() -> list[float]:
    """The mean loss of the first tokens of ten pieces."""
    model = musicgen.load("songs-small")
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
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", MODELS)
def test_samples(golden, name):
    assert samples(name) == golden["samples"][name]


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
        "losses": losses(),
        "weights": weights,
    }
    rows = (f'"{name}": {json.dumps(value)}' for name, value in values.items())
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    write_golden()
