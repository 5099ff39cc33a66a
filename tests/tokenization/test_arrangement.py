"""Chorales with voices ahead of the others."""

import numpy as np
import pytest
import torch

from musicgen.tokenization import Chorale
from musicgen.tokenization.chorale.frames import score_of_frames
from musicgen.tokenization.chorale.grammar import LEADING

chorale = Chorale(lead_probability=0.5)
SOPRANO, OUTER = [True, False, False, False], [True, False, False, True]


def random_piece(rng, num_frames):
    """The ids of a piece, and its pitches [F, 4]; -1 for silence. The last frame sounds."""
    held = rng.integers(40, 80, (num_frames, 4)).repeat(rng.integers(1, 5), axis=0)[:num_frames]
    held[rng.random(held.shape) < 0.1] = -1
    held[-1] = 60
    return chorale.encode(score_of_frames(held))


def frames_of(score):
    """The pitches of the voices of a score [F, 4], without silence at the end."""
    return [
        chorale.vocabulary.token(int(i)).removeprefix("Pitch_") for i in chorale.encode(score)[1:-1]
    ]


def test_a_leading_voice_is_a_bar_ahead(names):
    tokens = chorale.encode(score_of_frames(np.array([[72, 67, 64, 48]] * 17 + [[-1, 67, 64, 50]])))
    rest = "Empty Empty Empty"
    expected = ["Lead_Soprano", *[f"Ahead_72 {rest}"] * 16, "Ahead_72 Pitch_67 Pitch_64 Pitch_48"]
    expected += ["Empty Pitch_67 Pitch_64 Pitch_48"] * 16 + ["EOS"]  # the end is the soprano's
    moved = chorale.lead(tokens, SOPRANO)
    assert names(chorale, moved) == " ".join(expected)
    assert chorale.times(moved)[[0, 1, 2, 5, 64, 65, 66, 69, 70, -1]].tolist() == [
        0, 0, 0, 1, 0, 16, 0, 17, 1, 17,
    ]  # fmt: skip
    # Of the beginning of a piece, as of a training crop.
    assert names(chorale, chorale.lead(tokens[:10], OUTER)) == (
        "Lead_Soprano+Bass Ahead_72 Empty Empty Ahead_48 Ahead_72 Empty Empty Ahead_48"
    )


@pytest.mark.parametrize("num_frames", [1, 15, 40, 300])
def test_every_arrangement_decodes_to_its_music_in_order(num_frames):
    rng = np.random.default_rng(num_frames)
    tokens = random_piece(rng, num_frames)
    whole = frames_of(chorale.decode(tokens))
    for voices in LEADING:
        moved = chorale.lead(tokens, voices)
        assert chorale.grammar().accepts(moved[None]).all()
        assert frames_of(chorale.decode(moved)) == whole
        ahead = frames_of(chorale.decode(moved[: 1 + 4 * num_frames]))[:4]
        sounds = np.array(voices) | (num_frames > 16)
        assert ahead == [x if y else "Silence" for x, y in zip(whole, sounds, strict=False)][:4]


def test_training_crops_are_arranged_as_often_as_asked():
    rng = np.random.default_rng(0)
    tokens = random_piece(rng, 120)
    kinds = []
    for number in range(400):
        length = [len(tokens) + 64, 300, 200, 5][number % 4]
        window = chorale.arrange(tokens[:length], rng, length, 16)
        assert 0 < len(window) <= length
        assert (
            chorale.times(window)[-1]
            == chorale.grammar().start(torch.from_numpy(window)[None]).time
        )
        if length > len(tokens):
            assert window[-1] == chorale.vocabulary.id("EOS")
        if length == 300:
            kinds.append(chorale.vocabulary.token(int(window[0])).partition("_")[0])
    counts = [kinds.count(kind) for kind in ("BOS", "Lead")]
    assert abs(counts[0] - 50) < 15
    plain = Chorale()
    assert np.array_equal(plain.arrange(tokens, rng, len(tokens), 16), tokens)


def test_without_leading_voices_the_vocabulary_is_as_in_the_literature():
    assert Chorale().settings() == {"max_beats": 16384, "max_transposition": 6}
    assert chorale.vocabulary.tokens[:91] == Chorale().vocabulary.tokens
