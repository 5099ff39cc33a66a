"""Infilling: the losses of bars after what precedes them, and after what follows them, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from musicgen.evaluation.infilling import middle_losses
from musicgen.generation.model import MusicModel
from musicgen.random import NoiseKey
from musicgen.tokenization import Chorale
from musicgen.tokenization.chorale.frames import score_of_frames
from tests.generation.test_continuation import small_model

NOISE = NoiseKey((0,))


def test_both_losses_are_those_of_the_true_bars():
    tokenizer = Chorale(fill_probability=0.5)
    content = SimpleNamespace(config={"loader": {"length": 1024}})
    model = MusicModel(small_model(tokenizer), tokenizer, content, Path("model.ckpt"))
    pitches = np.random.default_rng(0).integers(50, 70, (6 * 16, 4))
    tokens = tokenizer.encode(score_of_frames(pitches))
    known, filled = middle_losses(model, tokens, 16, 2, NOISE)  # bars 3 and 4 of 6

    def nats(ids, last):
        """Mean nats of the voices of two bars that end before the token `last`."""
        row = torch.from_numpy(ids)[None]
        with torch.no_grad():
            log_p = model.model(row, noise=NOISE.fold(0)).log_softmax(-1)[0]
        at = torch.arange(last - 128, last)
        return -float(log_p[at - 1, row[0, at]].mean())

    assert known == pytest.approx(nats(tokens, 1 + 4 * 64), abs=1e-4)
    moved = tokenizer.fill(tokens, 64, 4)
    assert filled == pytest.approx(nats(moved, len(moved) - 1), abs=1e-4)
    assert middle_losses(model, tokens, 16, 5, NOISE) is None
