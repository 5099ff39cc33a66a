"""Infilling: the losses of bars after what precedes them, and after what follows them, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.evaluation.infilling import middle_losses
from musicgen.generation.filling import gap_context
from musicgen.generation.model import MusicModel
from musicgen.generation.request import GenerationRequest
from musicgen.generation.rows import Row
from musicgen.generation.sampler import Sampler
from musicgen.midi import Score, Track, notes_from
from musicgen.position import RoPE
from musicgen.random import NoiseKey
from musicgen.tokenization import REMI, Chorale, Groove2Groove
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
    first, last = 1 + 4 * 32, 1 + 4 * 64
    empty = tokens.copy()
    empty[first:last] = tokenizer.vocabulary.id("Silence")
    (gap,) = tokenizer.gaps(empty, 32, 64, [True] * 4, 16)
    assert gap.tokens.tolist() == tokens[:first].tolist()
    prompt = SimpleNamespace(tokens=empty, bar_length=16, progression=np.empty((0, 2), np.int64))
    context = gap_context(tokenizer, prompt, [True] * 4, empty, gap, gap.tokens, 32)
    rows = [Row(context, NOISE.fold(i)) for i in range(1, 16)]
    list(Sampler(model.model, tokenizer, GenerationRequest(fill=1, engine="eager")).steps(rows))
    pieces = [tokens[: 1 + 4 * 80], *(row.all_tokens for row in rows)]
    shares = np.exp([-64 * nats(model, piece, 1 + 4 * 80, 64) for piece in pieces])
    gain = np.log(16 * shares[0] / shares.sum()) / 128
    assert filled == pytest.approx(known - gain, abs=1e-4)
    assert abs(gain) > 1e-3
    assert middle_losses(model, tokens, 16, 5, NOISE) is None


@pytest.mark.parametrize("tokenizer", [REMI(), Groove2Groove()])
def test_notes_that_sound_across_the_edges_end_there(tokenizer):
    """What is known is the loss of the bars with such notes cut."""
    model = music_model(tokenizer)
    long = [(480 * i, 480 * (2 + 2 * (i % 8 == 7)), 60 + i % 7, 64) for i in range(4 * 12)]
    short = list(long)
    for edge in (5, 7):
        for i, (onset, duration, *rest) in enumerate(short):
            if onset < 1920 * edge < onset + duration:
                short[i] = onset, 1920 * edge - onset, *rest
    known = []
    for rows in long, short:
        tokens = tokenizer.encode(Score(480, [Track("Piano", notes=notes_from(rows))]))
        known.append(middle_losses(model, tokens, 4 * tokenizer.steps_per_beat, 2, NOISE))
    assert known[0] == known[1]
    times = tokenizer.times(tokens)
    first, last = np.searchsorted(
        times, (20 * tokenizer.steps_per_beat, 28 * tokenizer.steps_per_beat)
    )
    whole = nats(model, tokens, int(last), int(last - first)) * (last - first) / 8
    assert known[0][0] == pytest.approx(whole, abs=1e-3)
    assert known[0][1] >= known[0][0] - np.log(16) / 8 - 1e-6  # one of 16
