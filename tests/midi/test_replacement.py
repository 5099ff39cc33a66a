"""Notes replaced in a file; mido reads what is around them."""

import io
from collections import Counter
from dataclasses import replace

import mido
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.errors import UserError
from musicgen.midi import Marker, Track, loads, notes_from
from musicgen.midi.replacement import replace_notes
from tests.generation.builders import BAR, PromptFile, meta, notes, scale

SPAN = BAR, 2 * BAR
WORDS = [*meta(0, 3, b"Hands"), *meta(BAR, 5, b"la"), *meta(BAR, 6, b"solo"), (BAR, b"\xf0\1\xf7")]
BASS = [
    *notes((0, 40), (BAR, 43), (3 * BAR, 45), channel=2),
    *[(tick, b"\xb2\x40" + bytes([127 * (tick % BAR > 0)])) for tick in (9, BAR, BAR + 9, 2 * BAR)],
    *[(tick, bending) for tick in (9, BAR + 9) for bending in (b"\xe2\0\x50", b"\xb2\7\x50")],
]


def messages(data: bytes) -> list[Counter]:
    """Ticks and messages of each track but those of notes."""
    return [
        Counter(
            (x.time, str(x.copy(time=0))) for x in track if not x.type.startswith(("note", "end"))
        )
        for track in map(in_ticks, mido.MidiFile(file=io.BytesIO(data)).tracks)
    ]


def in_ticks(track):
    tick = 0
    return [message.copy(time=(tick := tick + message.time)) for message in track]


@given(
    st.booleans(), st.lists(st.booleans(), min_size=19), st.lists(st.integers(1, BAR), max_size=9)
)
@settings(max_examples=60)
def test_the_file_has_the_new_notes_and_every_other_event(is_one_track, stays, added):
    """But pedals and bends of the notes that leave; nothing changes if the notes do not."""
    tracks = [[*WORDS, *scale(), *BASS]] if is_one_track else [[*WORDS, *scale()], BASS]
    data = PromptFile(tracks, format=len(tracks) - 1).data()
    old = loads(data)
    rows = [(3 * tick, tick, 80 + i, 5) for i, tick in enumerate(added)]
    bass = [row for row, stay in zip(old.tracks[1].notes.tolist(), stays, strict=False) if stay]
    new = replace(
        old, tracks=[old.tracks[0], replace(old.tracks[1], notes=notes_from(bass + rows))]
    )
    found = replace_notes(data, old, new, SPAN)
    assert loads(found).tracks == [track for track in new.tracks if len(track.notes)]
    left = sum(messages(data), Counter()) - sum(messages(found), Counter())
    assert sorted(left) == [
        (BAR + 9, "control_change channel=2 control=64 value=127 time=0"),
        (BAR + 9, "pitchwheel channel=2 pitch=2048 time=0"),
    ] * (old != new)
    assert sum(messages(found), left) == sum(messages(data), Counter())


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
