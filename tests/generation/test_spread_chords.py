"""How new chords are spread and voiced, and how long pedalled notes last."""

import numpy as np
import pytest

from tests.generation.builders import BAR, BEAT
from tests.generation.test_performance import STEP, continued, performance_of, piano


def test_repeated_notes_that_are_pulled_together_keep_their_onsets():
    early_and_late = [(i * STEP + (59 if i % 2 else -59) * (i > 0), 60, 60, 80) for i in range(32)]
    written = [(i * STEP, STEP, 60, 80) for i in range(32)]
    performance = performance_of(piano(early_and_late), 2, piano(written))
    new_rows = [(2 * BAR + i * STEP, STEP, 60, 1) for i in range(32)]
    for seed in range(5):
        played = performance.play(piano(written + new_rows), 2 * BAR, [0], seed)
        onset = played.tracks[0].notes["onset"][32:]
        assert (np.diff(onset) >= STEP / 5 - 1).all()


def spread_chords():
    """Chords of four notes from the bass up, with a loud melody; single notes on the other beats."""
    played, written = [], []
    for bar in range(2):
        for beat in range(4):
            pitches = (48, 55, 60, 76) if beat % 2 == 0 else (72,)
            for i, pitch in enumerate(pitches):
                at = bar * BAR + beat * BEAT
                loud = 90 if pitch > 70 else 70 if pitch == 48 else 60
                played.append((at + 14 * i, BEAT, pitch, loud))
                written.append((at, BEAT, pitch, 1))
    return performance_of(piano(played), 2, piano(written)), written


@pytest.mark.parametrize("size", [2, 3, 5])
def test_new_chords_are_spread_and_voiced_like_those_of_the_prompt(size):
    performance, written = spread_chords()
    pitches = [*(40, 50, 57, 64)[: size - 1], 79]
    new_rows = [(2 * BAR + i * BEAT, BEAT, pitch, 1) for i in range(8) for pitch in pitches]
    played = performance.play(piano(written + new_rows), 2 * BAR, [0], seed=1)
    chords = played.tracks[0].notes[len(written) :]
    chords = chords[np.lexsort((chords["pitch"], np.rint(chords["onset"] / BEAT)))].reshape(8, size)
    assert (np.ptp(chords["onset"], axis=1) == 3 * 14).all()
    assert (np.diff(chords["onset"], axis=1) >= 0).all()
    assert (chords["velocity"][:, -1] == 90).all()
    assert (chords["velocity"][:, 0] == 70).all()
    assert (chords["velocity"][:, 1:-1] <= 70).all()


def test_durations_of_a_pedalled_transcription_are_kept():
    # Every note lasts three times as long as the time to the next one.
    rows = [(i * STEP + 7 * (i % 3), 3 * STEP, 50 + i % 12, 80) for i in range(32)]
    new_rows = [(2 * BAR + i * 2 * STEP, STEP, 50 + i % 12, 1) for i in range(16)]
    new = continued(rows, new_rows, 2)
    assert (np.abs(new["duration"][:-1] - 6 * STEP) < STEP).all()
    dry = [(on, 60, pitch, velocity) for on, _, pitch, velocity in rows]
    assert (continued(dry, new_rows, 2)["duration"] <= STEP).all()


def test_a_chord_that_is_spread_over_several_steps_is_one_chord():
    pitches, roll = (48, 55, 60, 76), 36  # ticks from note to note; a step has 120
    rows = [
        (bar * BAR + beat * BEAT + roll * i, BEAT, pitch, 80)
        for bar in range(2)
        for beat in range(4)
        for i, pitch in enumerate(pitches)
    ]
    written = [(round(on / STEP) * STEP, *rest) for on, *rest in rows]
    assert len({row[0] for row in written}) == 16  # two steps each
    performance = performance_of(piano(rows), 2, piano(written))
    new_rows = [(2 * BAR + i * BEAT, BEAT, pitch, 1) for i in range(8) for pitch in pitches]
    played = performance.play(piano(written + new_rows), 2 * BAR, [0], seed=1)
    chords = np.sort(played.tracks[0].notes["onset"][len(written) :]).reshape(8, 4)
    assert (np.diff(chords[1:], axis=1) == roll).all()
    # A fast run is none: its notes do not sound together.
    run = [(i * 40, 40, 60 + i, 80) for i in range(24)]
    steps = np.round(np.arange(24) / 3).astype(np.int64)
    found = performance_of(
        piano(run), 1, piano([(int(s) * STEP, 40, 60 + i, 80) for i, s in enumerate(steps)])
    )
    assert len(np.unique(found.notes["position"])) == len(np.unique(steps))
