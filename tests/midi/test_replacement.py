"""Notes replaced in a file; mido reads what is around them."""

import io
from collections import Counter
from dataclasses import replace

import mido
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.errors import UserError
from musicgen.midi import Marker, Track, loads, notes_from
from musicgen.midi.replacement import replace_notes
from tests.generation.builders import BAR, PromptFile, meta, notes, scale

SPAN = BAR, 2 * BAR
WORDS = [
    *meta(0, 0x03, b"Hands"),
    *meta(BAR + 10, 0x05, b"la"),
    *meta(BAR + 9, 0x06, b"solo"),
    (BAR + 11, b"\xf0\x03\x7e\x7f\xf7"),
]
CONTROLS = [(tick, b"\xb2" + bytes([7, tick // BAR + 60])) for tick in (0, BAR + 5, 2 * BAR + 5)]
PEDAL = [(tick + on, b"\xb2\x40" + bytes([127 * (on > 0)])) for tick in (0, BAR) for on in (9, 0)]


def messages(data: bytes) -> list[Counter]:
    """Ticks and messages of each track but those of notes."""
    found = []
    for track in mido.MidiFile(file=io.BytesIO(data)).tracks:
        tick, rows = 0, Counter()
        for message in track:
            tick += message.time
            if not message.type.startswith(("note_", "end_of")):
                rows[tick, str(message.copy(time=0))] += 1
        found.append(rows)
    return found


@st.composite
def rewritten(draw):
    """A file of one or two tracks and two channels, its score, and other notes for it."""
    tracks = [[*WORDS, *scale()], [*notes((0, 40), (BAR, 43), (3 * BAR, 45), channel=2), *CONTROLS]]
    tracks = [tracks[0] + tracks[1]] if draw(st.booleans()) else tracks
    data = PromptFile(tracks, format=len(tracks) - 1).data()
    old = loads(data)
    rows = st.tuples(st.integers(0, 4 * BAR), st.integers(1, BAR), st.integers(80, 99), st.just(5))
    changed = []
    for track in old.tracks:
        stays = np.array(draw(st.lists(st.booleans(), min_size=len(track.notes), max_size=99)))
        kept = track.notes[stays[: len(track.notes)]].tolist()
        others = draw(st.lists(rows, max_size=9, unique_by=lambda row: row[2]))
        changed.append(replace(track, notes=notes_from([*kept, *others])))
    return data, old, replace(old, tracks=changed)


@given(rewritten())
@settings(max_examples=60)
def test_the_file_has_the_new_notes_and_every_other_event(case):
    data, old, new = case
    found = replace_notes(data, old, new, SPAN)
    assert loads(found).tracks == [track for track in new.tracks if len(track.notes)]
    assert messages(found) == messages(data)


def test_pedals_and_bends_leave_with_their_notes():
    bends = [(tick, b"\xe2\x00\x50") for tick in (9, BAR + 9)]
    held = notes((0, 40), (BAR, 43), channel=2)
    data = PromptFile([scale(), [*held, *PEDAL, *bends, *CONTROLS]]).data()
    old = loads(data)
    new = replace(old, tracks=[old.tracks[0], replace(old.tracks[1], notes=notes_from([]))])
    left = messages(data)[1] - messages(replace_notes(data, old, new, SPAN))[1]
    assert sorted(left) == [
        (BAR + 9, "control_change channel=2 control=64 value=127 time=0"),
        (BAR + 9, "pitchwheel channel=2 pitch=2048 time=0"),
    ]
    same = replace_notes(data, old, old, SPAN)
    first, second = (mido.MidiFile(file=io.BytesIO(each)).tracks for each in (data, same))
    assert first == second


def test_other_markers_and_new_tracks():
    data = PromptFile([[*WORDS, *scale(channel=1)]], format=0).data()
    old, tune = loads(data), notes_from([(BAR, 480, 72, 64)])
    added = [Track("Flute", 73, notes=tune), Track("Drums", 0, True, tune)]
    new = replace(old, tracks=[*old.tracks, *added], markers=[Marker(BAR, "C_M")])
    found = loads(replace_notes(data, old, new, SPAN))
    assert (found.tracks, found.markers) == (new.tracks, new.markers)
    many = [Track(str(i), i, notes=tune) for i in range(15)]
    with pytest.raises(UserError, match="too few MIDI channels"):
        replace_notes(data, old, replace(old, tracks=[*old.tracks, *many]), SPAN)
