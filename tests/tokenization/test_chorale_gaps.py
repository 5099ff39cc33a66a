"""Gaps of chorales: what follows comes first, in all four voices."""

from dataclasses import replace

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import loads
from musicgen.tokenization import Chorale
from musicgen.tokenization.chorale_grammar import LEAD
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.voices import VOICES
from tests.generation.builders import music_model
from tests.generation.test_keep import BAR, song

CHORALE = Chorale(lead_probability=0.5, gap_probability=1.0)
NUM_VOICES, NAMES = 4, ("index", "time")


def crop(size=160):
    """BOS and frames of four voices."""
    rng = np.random.default_rng(1)
    pitches = rng.integers(*(CHORALE.families["Pitch"][i] for i in (20, 60)), 4 * size)
    return np.append(CHORALE.families["BOS"].start, pitches)


@pytest.mark.parametrize("lead", [0.0, 1.0])
def test_crops_have_the_bars_before_the_gap_and_those_behind_it(lead):
    tokenizer = Chorale(**CHORALE.settings() | {"lead_probability": lead} | {"gap_probability": 1})
    if not lead:
        tokenizer = Chorale(gap_probability=1)
    window = crop()
    frames = CHORALE.frames(window)
    for seed in range(6):
        turned = tokenizer.rearrange(window, np.random.default_rng(seed))
        assert len(turned) <= len(window)
        tokenizer.grammar().start(turned[None])
        first = tokenizer.future_length(turned)
        future = turned[1 : first - 1].reshape(-1, 4)
        assert len(future) % 16 == 0
        gap_end = len(frames) - 1 - LEAD - len(future)
        assert future.tolist() == frames[gap_end : gap_end + len(future)].tolist()
        own = tokenizer.frames(turned)
        known = own != CHORALE.families["Empty"].start
        assert (own == frames[: len(own)])[known].all()
        assert known[:gap_end].all()
        index, time = Coordinates(tokenizer).of(turned[:-1], NAMES).T
        assert time[0] == gap_end
        assert time[first - 2] == gap_end + len(future) - 1
        assert index[first : first + 2].tolist() == [0, 1]  # voices follow from the index
        assert time[first:].tolist() == tokenizer.times(turned[first:-1]).tolist()


@pytest.mark.parametrize(
    ("fill", "bars", "written", "names"),
    [
        ("2-3", (1, 3), [0, 1, 2, 3], VOICES),
        ("2-3", (1, 3), [0, 1, 2, 3], ["Track 1", "Track 2", "Track 3", "Track 4"]),
        ("tenor 2-3", (1, 3), [2], VOICES),
        ("alto, bass bar 5", (4, 5), [1, 3], VOICES),
    ],
)
def test_only_the_voices_and_bars_asked_for_are_written(fill, bars, written, names):
    score = song()
    score.tracks = [replace(x, name=name) for x, name in zip(score.tracks, names, strict=True)]
    (piece,) = music_model(CHORALE).generate(score, fill=fill, seed=1)
    assert CHORALE.future_length(piece.tokens) == (
        0 if bars[1] == 5 else 2 + 4 * 12 * (5 - bars[1])
    )
    CHORALE.grammar().start(piece.tokens[None])
    file = loads(piece.midi_file().data)
    assert len(file.tracks) == 4
    first, end = (BAR * bar for bar in bars)
    changed = []
    for i, (track, own) in enumerate(zip(file.tracks, score.tracks, strict=True)):
        assert track.name == names[i]
        if i not in written:
            assert track == own
            continue
        before, after = ([n for n in t.notes.tolist() if n[0] >= end] for t in (track, own))
        assert before == after
        onsets = own.notes["onset"] < first
        assert track.notes[: onsets.sum()][["onset", "pitch"]].tolist() == (
            own.notes[onsets][["onset", "pitch"]].tolist()
        )
        changed.append(track.notes.tolist() != own.notes.tolist())
    assert any(changed)


def test_a_model_that_has_not_learned_gaps_says_so():
    with pytest.raises(UserError, match=r"not learned bars in fill=.*gap_probability above 0"):
        music_model(Chorale(lead_probability=0.5)).generate(song(), fill="2-3")
