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
from musicgen.midi.io import to_library
from musicgen.midi.replacement import replace_notes
from tests.generation.builders import BAR, PromptFile, meta, notes, scale

SPAN = BAR, 2 * BAR
WORDS = [*meta(0, 3, b"Hands"), *meta(BAR, 5, b"la"), *meta(BAR, 6, b"solo"), (BAR, b"\xf0\1\xf7")]
BASS = [
    *meta(BAR, 6, b"solo"),  # as another track has
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


def in_ticks(track, tick=0):
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
    was, now = (sum(messages(file), Counter()) for file in (data, found))
    bent, centred = (f"pitchwheel channel=2 pitch={pitch} time=0" for pitch in (2048, 0))
    pressed = (BAR + 9, "control_change channel=2 control=64 value=127 time=0")
    assert was - now == Counter([pressed, (BAR + 9, bent)] * (old != new))
    assert now - was == Counter([(BAR, centred), (2 * BAR, bent)] * (old != new))


@pytest.mark.parametrize(
    ("pedal", "expected"),
    [
        # Pressed where the span begins: it belongs to the notes that leave.
        ([(BAR, 127), (3 * BAR, 0)], [(2 * BAR, 127), (3 * BAR, 0)]),
        # Pressed where the span ends: it stays, once.
        ([(2 * BAR, 127), (3 * BAR, 0)], [(2 * BAR, 127), (3 * BAR, 0)]),
        ([(9, 127), (3 * BAR, 0)], [(9, 127), (BAR, 0), (2 * BAR, 127), (3 * BAR, 0)]),
        ([(9, 127), (BAR, 0)], [(9, 127), (BAR, 0)]),
        ([(9, 127), (2 * BAR, 0)], [(9, 127), (BAR, 0), (2 * BAR, 0)]),
    ],
)
def test_a_pedal_is_up_within_the_span_and_has_no_event_twice(pedal, expected):
    presses = [(tick, bytes([0xB0, 64, value])) for tick, value in pedal]
    data = PromptFile([[*notes((0, 60), (BAR, 62), (3 * BAR, 64)), *presses]]).data()
    old = loads(data)
    rows = [row for row in old.tracks[0].notes.tolist() if row[0] != BAR]
    new = replace(old, tracks=[replace(old.tracks[0], notes=notes_from(rows))])
    file = mido.MidiFile(file=io.BytesIO(replace_notes(data, old, new, SPAN)))
    found = [(x.time, x.value) for x in in_ticks(file.tracks[0]) if x.type == "control_change"]
    assert found == expected


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


@pytest.mark.parametrize(
    ("events", "rows"),
    [
        # Channel 15, whose number is in the status of every meta event.
        ([*notes((0, 60), channel=15), (BAR + 60, b"\xbf\7\1")], [(2 * BAR, 9, 62, 64)]),
        # Two notes and a single end, which stays where it is for the second.
        ([(BAR, b"\x90\x3c\x40"), *notes((2 * BAR, 60), (3 * BAR, 50))], []),
        (notes((BAR, 60, 500), (BAR, 60, 100), (0, 50)), [(BAR, 100, 60, 70)]),
        ([(2 * BAR, b"\xc0\x20"), *notes((2 * BAR, 60))], [(BAR, 100, 60, 70)]),
        ([(0, b"\xc0\4"), *notes((0, 60), (BAR, 60)), (BAR, b"\xc0\5")], [(BAR, 9, 50, 70)]),
    ],
    ids=["channel 15", "no end", "twice", "before its program", "another program"],
)
def test_notes_keep_their_ends_and_have_the_program_of_their_part(events, rows):
    data = PromptFile([events]).data()
    track, *others = (old := loads(data)).tracks
    rows = [row for row in track.notes.tolist() if not BAR <= row[0] < 2 * BAR] + rows
    new = replace(old, tracks=[replace(track, notes=notes_from(rows)), *others])
    assert loads(replace_notes(data, old, new, SPAN)).tracks == new.tracks


def test_other_libraries_read_names_that_are_not_utf8():
    data = PromptFile([[*meta(0, 3, b"Fl\xf6te"), *scale()]]).data()
    assert to_library(data, "miditoolkit").instruments[0].name == "Flöte"
    assert len(to_library(data, "muspy").tracks[0].notes) == 16
