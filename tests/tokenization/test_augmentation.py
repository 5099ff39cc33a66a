"""Random changes of training crops, by the shares and distances that they have."""

import numpy as np

from musicgen.tokenization import REMI, Songs
from tests.tokenization.test_songs import PARTS, SONGS, song


def test_a_scramble_moves_values_within_their_reach():
    """A pitch becomes another of the crop up to 7 semitones away, a duration up to 3 ids."""
    remi = REMI()
    pitch, duration = (remi.families[name].start for name in ("Pitch", "Duration"))
    window = np.array([pitch, pitch + 7, pitch + 8, duration, duration + 3, duration + 4])
    rng = np.random.default_rng(0)
    found = np.array([remi.augmentation.scramble(window, rng) for _ in range(300)])
    assert [sorted({*column}) for column in found.T.tolist()] == [
        [pitch, pitch + 7],
        [pitch, pitch + 7, pitch + 8],
        [pitch + 7, pitch + 8],
        [duration, duration + 3],
        [duration, duration + 3, duration + 4],
        [duration + 3, duration + 4],
    ]
    unchanged = np.mean(np.all(found == window, axis=1))
    assert 0.45 < unchanged < 0.6  # half, and the draws of the same values


def test_passages_of_a_scramble_return_as_they_were_or_with_other_notes():
    """Half of the bars that return have a map; it changes all, some or, rarely, none of 20 notes."""
    remi, rng = REMI(), np.random.default_rng(0)
    bar, beat, pitch = (remi.families[name].start for name in ("Bar", "Beat", "Pitch"))
    notes = pitch + np.arange(20)  # each of them may become one of the others
    window = np.concatenate([[bar, beat + i, *notes] for i in range(16)])
    changed = []
    for _ in range(300):
        scrambled = remi.augmentation.scramble(window, rng).reshape(16, -1)
        for rhythm in np.unique(scrambled[:, 1]):
            earlier, *returns = scrambled[scrambled[:, 1] == rhythm, 2:]
            changed += [np.mean(earlier != later) for later in returns]
    found = np.array(changed)
    assert 0.4 < np.mean(found == 0) < 0.6
    assert 0.15 < np.mean((found > 0) & (found < 0.5)) < 0.3
    assert 0.15 < np.mean(found > 0.5) < 0.3


def test_other_parts_lead_in_their_share_of_the_crops():
    """One of three parts alone leads in half of these, and any set of parts in the others.

    Of the 16 sets of these parts and chords, 6 give an order that one part alone gives: {Voice},
    {Piano}, {Piano, Drums}, {Drums}, {Drums, Chords}, and {Drums, Chords, Voice}.
    """
    tokens, rng = SONGS.encode(song()), np.random.default_rng(0)
    alone = [
        SONGS.lead(tokens, [part == name for part in PARTS]).tolist()
        for name in ("Voice", "Piano", "Drums")
    ]
    for probability in (0.1, 1):
        songs = Songs(**SONGS.settings() | {"lead_probability": probability})
        crops = [songs.rearrange(tokens, rng).tolist() for _ in range(2000)]
        share = np.mean([crop in alone for crop in crops])
        assert abs(share - probability * (1 / 2 + 6 / 16 / 2)) < 0.03
