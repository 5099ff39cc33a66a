"""Notes that are replaced in a file whose other events stay."""

import io

import mido
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, loads, notes_from
from musicgen.midi.replacement import read_parts, replace_notes

NOTES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 90), st.integers(60, 63), st.integers(1, 127)),
    max_size=12,
)


def without_overlaps(rows):
    """Notes of which none begins while its pitch sounds, as files tell them apart by no more."""
    kept = []
    for onset, duration, pitch, velocity in sorted(rows):
        if all(p != pitch or o + d <= onset for o, d, p, _ in kept):
            kept.append((onset, duration, pitch, velocity))
    return kept


def rows_of(track):
    return [tuple(row) for row in track.notes.tolist()]


@given(st.lists(NOTES.map(without_overlaps), min_size=1, max_size=3), st.data())
def test_other_notes_stay_and_new_ones_are_added(tracks, data):
    names = ["a", "b", "c"]
    score = Score(24, [Track(names[i], i, notes=notes_from(t)) for i, t in enumerate(tracks)])
    file = dumps(score)
    parts = read_parts(file)
    assert [part.track for part in parts] == [track for track in score.tracks if len(track.notes)]
    first, length = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 150))
    last, number = first + length, data.draw(st.integers(0, max(0, len(parts) - 1)))
    new = notes_from([(first, min(5, length), 90, 64), (last - 1, 1, 91, 64)])
    replaced = {number: [(first, last)]} if parts else {}
    extra = Track("new", 40, notes=new)
    found = loads(replace_notes(file, replaced, {number: new}, [extra])).tracks
    expected = []
    for i, part in enumerate(parts):
        rows = rows_of(part.track)
        if i == number:
            rows = [
                (o, first - o if o < first < o + d else d, p, v)
                for o, d, p, v in rows
                if not first <= o < last
            ]
            rows += rows_of(extra)
        if rows:
            expected.append(Track(part.track.name, part.track.program, notes=notes_from(rows)))
    assert [track for track in found if len(track.notes)] == [*expected, extra]


def test_all_other_events_keep_their_ticks_order_and_content():
    song = mido.MidiFile(type=0, ticks_per_beat=96)
    track = mido.MidiTrack()
    song.tracks.append(track)
    note, control = ("note_on", "note_off"), "control_change"
    rows = [
        (0, mido.MetaMessage("track_name", name="Lied")),
        (0, mido.Message("program_change", program=7, channel=1)),
        (0, mido.Message(note[0], note=60, velocity=50)),
        (0, mido.Message(note[0], note=72, velocity=51, channel=1)),
        (10, mido.MetaMessage("lyrics", text="Wer")),
        (5, mido.Message(control, control=64, value=127)),
        (85, mido.Message(note[1], note=72, channel=1)),
        (0, mido.Message(note[0], note=74, velocity=52, channel=1)),
        (0, mido.Message(note[0], note=60, velocity=0)),
        (0, mido.Message(note[0], note=62, velocity=53)),
        (48, mido.Message("sysex", data=[1, 2, 3])),
        (48, mido.Message(control, control=64, value=0)),
        (0, mido.Message(note[0], note=62, velocity=0)),
        (0, mido.Message(note[1], note=74, channel=1)),
        (40, mido.MetaMessage("end_of_track")),
    ]
    track.extend(message.copy(time=delta) for delta, message in rows)
    file = io.BytesIO()
    song.save(file=file)
    data = file.getvalue()
    parts = read_parts(data)
    assert [(part.channel, part.track.name, part.track.program) for part in parts] == [
        (0, "Lied", 0),
        (1, "Lied", 7),
    ]
    new = notes_from([(100, 10, 65, 99)])
    changed = replace_notes(data, {0: [(96, 192)]}, {0: new}, [])

    def events(content, *, channel):
        """The events of a file, but for notes of a channel."""
        tick, found = 0, []
        for message in mido.MidiFile(file=io.BytesIO(content)).tracks[0]:
            tick += message.time
            is_note = message.type.startswith("note") and message.channel == channel
            if not is_note:
                found.append((tick, message.copy(time=0)))
        return found

    assert events(changed, channel=0) == events(data, channel=0)
    assert rows_of(read_parts(changed)[0].track) == [(0, 96, 60, 50), (100, 10, 65, 99)]
    assert replace_notes(data, {}, {}, []) == data


def test_notes_that_nothing_ends_end_where_others_begin():
    """Of three note-ons and one note-off, the note-off ends the first; others hang."""
    track = mido.MidiTrack(
        mido.Message("note_on", note=60, velocity=50, time=time) for time in (0, 10, 90)
    )
    track.append(mido.Message("note_off", note=60, time=20))
    song, file = mido.MidiFile(ticks_per_beat=96), io.BytesIO()
    song.tracks.append(track)
    song.save(file=file)
    (part,) = read_parts(file.getvalue())
    assert rows_of(part.track) == [(0, 120, 60, 50)]
    assert [(tick, pitch) for tick, pitch, _ in part.hanging] == [(10, 60), (100, 60)]
    new = notes_from([(100, 15, 60, 99)])
    changed = replace_notes(file.getvalue(), {0: [(96, 200)]}, {0: new}, [])
    (part,) = read_parts(changed)
    assert rows_of(part.track) == [(0, 96, 60, 50), (10, 86, 60, 50), (100, 15, 60, 99)]
    assert not part.hanging


def test_a_new_part_needs_a_free_channel():
    score = Score(24, [Track("", i, notes=notes_from([(0, 5, 60, 64)])) for i in range(15)])
    file = dumps(score)
    used = {part.channel for part in read_parts(file)}
    added = [Track("new", notes=notes_from([(0, 5, 60, 64)]))] * (16 - len(used))
    with pytest.raises(UserError, match="too few MIDI channels"):
        replace_notes(file, {}, {}, added)


def test_a_new_drum_part_plays_drums():
    notes = notes_from([(0, 5, 36, 64)])
    bass = dumps(Score(24, [Track("Bass", 33, notes=notes)]))
    drums = Track("Drums", is_drum=True, notes=notes)
    for number in (1, 2):  # several parts may share the drums' channel
        _, *found = loads(replace_notes(bass, {}, {}, [drums] * number)).tracks
        assert [(each.name, each.is_drum) for each in found] == [("Drums", True)] * number
