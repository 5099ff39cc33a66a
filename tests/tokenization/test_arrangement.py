"""Chorales with voices ahead of the others."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

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
def test_every_arrangement_decodes_to_its_music_in_order(num_frames, grammar_error):
    rng = np.random.default_rng(num_frames)
    tokens = random_piece(rng, num_frames)
    whole = frames_of(chorale.decode(tokens))
    for voices in LEADING:
        moved = chorale.lead(tokens, voices)
        assert grammar_error(chorale, moved, complete=True) is None
        assert frames_of(chorale.decode(moved)) == whole
        ahead = frames_of(chorale.decode(moved[: 1 + 4 * num_frames]))[:4]
        sounds = np.array(voices) | (num_frames > 16)
        assert ahead == [x if y else "Silence" for x, y in zip(whole, sounds, strict=False)][:4]


def test_training_crops_are_arranged_as_often_as_asked(grammar_error):
    rng = np.random.default_rng(0)
    tokens = random_piece(rng, 120)
    kinds = []
    for number in range(400):
        length = [len(tokens) + 64, 300, 200, 5][number % 4]
        window = chorale.arrange(tokens[:length], rng, length, 16)
        assert 0 < len(window) <= length
        assert grammar_error(chorale, window) is None
        assert chorale.grammar().accepts(torch.from_numpy(window)[None]).all()
        assert (
            chorale.times(window)[-1]
            == chorale.grammar().start(torch.from_numpy(window)[None]).time
        )
        if length > len(tokens):
            assert grammar_error(chorale, window, complete=True) is None
        if length == 300:
            kinds.append(chorale.vocabulary.token(int(window[0])).partition("_")[0])
    counts = [kinds.count(kind) for kind in ("BOS", "Lead")]
    assert abs(counts[0] - 50) < 15
    plain = Chorale()
    assert np.array_equal(plain.arrange(tokens, rng, len(tokens), 16), tokens)


def test_the_grammar_accepts_exactly_the_arrangements(walk, grammar_error):
    """Random walks, each with one error: the masks agree with the reference in plain Python."""
    tokenizer = Chorale(max_beats=6, lead_probability=0.5)
    rng, pad = np.random.default_rng(0), tokenizer.vocabulary.pad_id
    rows, positions = walk(tokenizer, 60, 110, seed=3)
    damaged, kinds = [], set()
    for row, position in zip(rows, positions, strict=True):
        tokens = row[row != pad]
        kinds.add(tokenizer.vocabulary.token(int(tokens[0])).partition("_")[0])
        assert np.array_equal(tokenizer.times(row), position[:, 1])
        assert grammar_error(tokenizer, tokens, complete=True) is None
        for _ in range(4):
            at = int(rng.integers(len(tokens)))
            new = rng.choice(tokens) if rng.random() < 0.5 else rng.integers(pad)
            changed = np.where(np.arange(len(tokens)) == at, new, tokens)
            damaged += [np.delete(tokens, at), np.insert(tokens, at, new), changed]
    assert kinds == {"BOS", "Lead"}
    batch = pad_sequence(list(map(torch.from_numpy, damaged)), True, padding_value=pad)
    accepted = tokenizer.grammar().accepts(batch).tolist()
    assert accepted == [grammar_error(tokenizer, row) is None for row in damaged]
    assert 0.02 < np.mean(accepted) < 0.8


def test_without_leading_voices_the_vocabulary_is_as_in_the_literature():
    assert Chorale().settings() == {"max_beats": 16384, "max_transposition": 6}
    assert chorale.vocabulary.tokens[:91] == Chorale().vocabulary.tokens
