"""Infilling: the losses of bars after what precedes them, and after what follows them, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.evaluation.infilling import middle_losses
from musicgen.generation.model import MusicModel
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Row, Sampler, gap_context
from musicgen.midi import Score, Track, notes_from
from musicgen.position import RoPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Chorale
from musicgen.tokenization.chorale.frames import score_of_frames
from tests.generation.test_continuation import small_model

NOISE = NoiseKey((0,))


def music_model(tokenizer, position=None):
    content = SimpleNamespace(config={"loader": {"length": 1024}})
    return MusicModel(small_model(tokenizer, position), tokenizer, content, Path("model.ckpt"))


def nats(model, ids, last, number):
    """Mean nats of so many tokens before the token `last`."""
    row = torch.from_numpy(ids)[None]
    with torch.no_grad():
        log_p = model.model(row, noise=NOISE.fold(0)).log_softmax(-1)[0]
    at = torch.arange(last - number, last)
    return -float(log_p[at - 1, row[0, at]].mean())


def test_both_losses_are_those_of_the_true_bars():
    tokenizer = Chorale()
    model = music_model(tokenizer, RoPE)
    pitches = np.random.default_rng(0).integers(50, 70, (6 * 16, 4))
    tokens = tokenizer.encode(score_of_frames(pitches))
    known, filled = middle_losses(model, tokens, 16, 2, NOISE)  # bars 3 and 4 of 6

    assert known == pytest.approx(nats(model, tokens, 1 + 4 * 64, 128), abs=1e-4)
    gap = tokenizer.gap(tokens, 32, 64, [True] * 4, 1025)
    progression = np.empty((0, 2), np.int64)
    prompt = SimpleNamespace(tokens=gap.tokens, bar_length=16, progression=progression)
    rows = [Row(gap_context(prompt, gap), NOISE.fold(i)) for i in range(1, 16)]
    list(Sampler(model.model, tokenizer, GenerationRequest(fill=1, engine="eager")).steps(rows))
    pieces = [tokens[: 1 + 4 * 80], *(row.all_tokens for row in rows)]
    shares = np.exp([-64 * nats(model, piece, 1 + 4 * 80, 64) for piece in pieces])
    gain = np.log(16 * shares[0] / shares.sum()) / 128
    assert filled == pytest.approx(known - gain, abs=1e-4)
    assert abs(gain) > 1e-3
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
