"""Infilling: the losses of bars after what precedes them, and after what follows them, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.evaluation.infilling import middle_losses
from musicgen.generation.model import MusicModel
from musicgen.midi import Score, Track, notes_from
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Chorale
from musicgen.tokenization.chorale.frames import score_of_frames
from tests.generation.test_continuation import small_model

NOISE = NoiseKey((0,))


def music_model(tokenizer):
    content = SimpleNamespace(config={"loader": {"length": 1024}})
    return MusicModel(small_model(tokenizer), tokenizer, content, Path("model.ckpt"))


def nats(model, ids, last, number):
    """Mean nats of so many tokens before the token `last`."""
    row = torch.from_numpy(ids)[None]
    with torch.no_grad():
        log_p = model.model(row, noise=NOISE.fold(0)).log_softmax(-1)[0]
    at = torch.arange(last - number, last)
    return -float(log_p[at - 1, row[0, at]].mean())


def test_both_losses_are_those_of_the_true_bars():
    tokenizer = Chorale(fill_probability=0.5)
    model = music_model(tokenizer)
    pitches = np.random.default_rng(0).integers(50, 70, (6 * 16, 4))
    tokens = tokenizer.encode(score_of_frames(pitches))
    known, filled = middle_losses(model, tokens, 16, 2, NOISE)  # bars 3 and 4 of 6

    assert known == pytest.approx(nats(model, tokens, 1 + 4 * 64, 128), abs=1e-4)
    moved = tokenizer.fill(tokens, 64, 4)
    assert filled == pytest.approx(nats(model, moved, len(moved) - 1, 128), abs=1e-4)
    assert middle_losses(model, tokens, 16, 5, NOISE) is None


def test_both_losses_of_bars_for_the_piano():
    tokenizer = REMI(fill_probability=0.5)
    model = music_model(tokenizer)
    rows = [(480 * i, 480, 60 + i % 7, 64) for i in range(4 * 12)]
    tokens = tokenizer.encode(Score(480, [Track(notes=notes_from(rows))]))
    known, filled = middle_losses(model, tokens, 16, 2, NOISE)  # bars 6 and 7 of 12
    size = 2 + 2 * 4 * 4  # Bar, and Beat, Pitch, Velocity, Duration of each quarter
    assert known == pytest.approx(nats(model, tokens, 7 * size // 2, size) * size / 8, abs=1e-4)
    moved = tokenizer.fill(tokenizer.until_end(tokens), 0, 7)  # the bars before them are given
    assert filled == pytest.approx(nats(model, moved, len(moved) - 1, size) * size / 8, abs=1e-4)
