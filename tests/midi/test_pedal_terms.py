"""Each term of the repeated pedal and of the limits within which new notes are played, by value."""

import numpy as np
import pytest

from musicgen.generation.performance import Performance
from musicgen.midi import Score, Track, notes_from
from musicgen.midi.extension import repeat_pedal
from musicgen.midi.tracks import open_file
from tests.generation.builders import PromptFile

BEAT, BAR = 480, 1920


def state(*changes):
    """A track with the sustain pedal at ticks, and another controller, which does not count."""
    events = [(tick, bytes([0xB0, 64, value])) for tick, value in changes]
    (track,) = open_file(PromptFile([[*events, (9, b"\xb0\x01\x7f")]]).data()).tracks
    return track


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (BAR + 1000, [(BAR + 100, 127), (BAR + 900, 0)]),
        (BAR + 901, [(BAR + 100, 127), (BAR + 900, 0)]),
        (BAR + 900, [(BAR + 100, 127), (BAR + 900, 0)]),  # where the new bar ends
        (BAR + 500, [(BAR + 100, 127), (BAR + 500, 0)]),
        (BAR + 100, []),
    ],
)
def test_the_pedal_of_a_longer_bar_ends_with_the_new_bar(end, expected):
    pedalled = state((100, 127), (900, 0), (1500, 127), (1600, 0))
    assert repeat_pedal(pedalled, 0, [(BAR, end, 0, BAR)]) == expected


def test_the_pedal_of_the_next_bar_is_not_repeated():
    pedalled = state((100, 127), (900, 0), (BAR, 100), (BAR + 50, 0))
    assert repeat_pedal(pedalled, 0, [(2 * BAR, 4 * BAR, 0, BAR)]) == [
        (2 * BAR + 100, 127),
        (2 * BAR + 900, 0),
    ]


def test_a_pedal_that_is_down_before_a_bar_is_down_at_its_beginning_once():
    pedalled = state((100, 90), (BAR + 700, 63), (BAR + 800, 64))
    bars = [(4 * BAR, 5 * BAR, BAR, 2 * BAR), (5 * BAR, 6 * BAR, BAR, 2 * BAR)]
    assert repeat_pedal(pedalled, 0, bars) == [
        (4 * BAR, 90),
        (4 * BAR + 700, 63),
        (4 * BAR + 800, 64),
        (5 * BAR + 700, 63),  # it was still down at the line
        (5 * BAR + 800, 64),
        (6 * BAR, 0),
    ]
    # A change on the line belongs to the bar that begins there.
    assert repeat_pedal(state((BAR, 90)), 0, [(4 * BAR, 5 * BAR, BAR, 2 * BAR)]) == [
        (4 * BAR, 90),
        (5 * BAR, 0),
    ]


def test_a_pedal_goes_up_at_a_bar_that_begins_without_it():
    pedalled = state((100, 127), (BAR + 10, 0))
    bars = [(4 * BAR, 5 * BAR, 0, BAR), (5 * BAR, 6 * BAR, 0, BAR)]
    assert repeat_pedal(pedalled, 0, bars) == [
        (4 * BAR + 100, 127),
        (5 * BAR, 0),
        (5 * BAR + 100, 127),
        (6 * BAR, 0),
    ]


# How new notes are played


def played(prompt, written, new, roles=(0,)):
    """Onsets from the second bar on, and durations, of new notes after a prompt of one bar."""
    tracks = [[Track(notes=notes_from(rows))] for rows in (prompt, written)]
    grid_map = np.array([0, 9 * BAR]), np.array([0, 9 * 16])
    performance = Performance.of(
        *(Score(BEAT, each) for each in tracks),
        roles,
        grid_map,
        np.array([0, 16]),
        4,
        has_kept=False,
    )
    rows = [*written, *((BAR + on, length, pitch, 1) for on, length, pitch in new)]
    score = Score(BEAT, [Track(notes=notes_from(rows))])
    notes = performance.play(score, BAR, [0], 0).tracks[0].notes[len(written) :]
    return [(int(note["onset"]) - BAR, int(note["duration"])) for note in notes]


def beats(late=0, length=BEAT, pitch=60):
    return [(BEAT * i + late, length, pitch, 80) for i in range(1, 4)]


def test_no_note_begins_before_the_continuation():
    new = [(0, BEAT, 60), (BEAT, BEAT, 60)]
    assert [onset for onset, _ in played(beats(-47), beats(), new)] == [0, BEAT - 47]
    assert [onset for onset, _ in played(beats(47), beats(), new)] == [47, BEAT + 47]


@pytest.mark.parametrize(
    ("late", "expected"),
    [(50, [0 + 48, 120 + 50, 600 + 50]), (-50, [0, 120 - 48, 600 - 50])],
)
def test_a_note_moves_by_two_fifths_of_the_way_to_the_next_or_the_one_before(late, expected):
    new = [(0, 60, 60), (120, 60, 64), (600, 60, 67)]
    assert [onset for onset, _ in played(beats(late), beats(), new)] == expected


@pytest.mark.parametrize(
    ("length", "expected"), [(240, 240), (719, 719), (720, 720), (721, 720), (1900, 720), (1, 1)]
)
def test_a_note_lasts_half_longer_than_written_at_most(length, expected):
    rows = beats(length=length)[:1]
    assert played(rows, beats()[:1], [(BEAT, BEAT, 60)]) == [(BEAT, expected)]


def test_a_note_ends_where_its_pitch_is_struck_again_and_not_with_other_pitches():
    new = [(BEAT, BEAT, 60), (2 * BEAT, BEAT, 60), (3 * BEAT, BEAT, 62)]
    long = beats(length=BEAT + BEAT // 4)
    assert [length for _, length in played(long, beats(), new)] == [BEAT, 600, 600]
