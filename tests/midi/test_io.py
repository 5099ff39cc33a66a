import io

import miditoolkit
import mido
import muspy
import numpy as np
import pretty_midi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.errors import UserError
from musicgen.midi import (
    TEMPO,
    KeySignature,
    Marker,
    Score,
    TimeSignature,
    Track,
    as_score,
    dumps,
    find_music,
    loads,
    notes_from,
    read,
    write,
)

# Exactly representable in a MIDI file: tempi of integer microseconds, no overlaps at one pitch.
texts = st.text(st.characters(codec="utf-8"), max_size=20)
ticks = st.integers(0, 20_000)
tempos = st.lists(
    st.tuples(ticks, st.integers(100_000, 2_000_000).map(lambda us: 60_000_000 / us)), max_size=5
)
signatures = st.builds(
    TimeSignature, ticks, st.integers(2, 255), st.sampled_from([1, 2, 4, 8, 16, 32, 64])
)
markers = st.builds(Marker, ticks, texts.filter(bool))


@st.composite
def tracks(draw):
    voices = draw(st.dictionaries(st.integers(0, 127), st.lists(st.integers(0, 600), max_size=6)))
    rows = []
    for pitch, lengths in voices.items():
        at = 0
        for rest, duration in zip(lengths[::2], lengths[1::2], strict=False):
            rows.append((at + rest, duration + 1, pitch, draw(st.integers(1, 127))))
            at += rest + duration + 1
    return Track(draw(texts), draw(st.integers(0, 127)), draw(st.booleans()), notes_from(rows))


@st.composite
def scores(draw):
    def by_tick(events):
        return sorted(draw(st.lists(events, max_size=4)), key=lambda event: event[0])

    return Score(
        draw(st.integers(1, 32767)),
        draw(st.lists(tracks().filter(lambda track: len(track.notes)), max_size=4)),
        np.array(sorted(draw(tempos), key=lambda tempo: tempo[0]), dtype=TEMPO),
        by_tick(signatures),
        by_tick(markers),
        key_signatures=by_tick(st.builds(KeySignature, ticks, st.integers(-7, 7), st.booleans())),
    )


@given(scores())
def test_reading_inverts_writing(score):
    assert loads(dumps(score)) == score


def piece():
    piano = [(0, 480, 60, 80), (0, 240, 64, 70), (480, 100, 60, 90), (1000, 77, 60, 1)]
    return Score(
        220,
        [
            Track("Piano, left (1)", 0, notes=notes_from(piano)),
            Track("Señor 音楽 🎵", 40, notes=notes_from([(3, 7, 127, 127), (50, 9, 0, 20)])),
            Track("Drums", 8, is_drum=True, notes=notes_from([(0, 20, 36, 100)])),
        ],
        np.array([(0, 120), (0, 80), (240, 100), (240, 60), (900, 150)], TEMPO),
        [TimeSignature(0, 3, 4), TimeSignature(660, 6, 8)],
        [Marker(0, "A_M7_E"), Marker(0, "é"), Marker(17, "two\nlines")],
        key_signatures=[KeySignature(0, -3), KeySignature(660, 2, True)],
    )


def test_equal_scores_give_equal_bytes():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = zip(*rng.integers([[0], [0], [60], [1]], [[6], [5], [62], [3]], (4, 9)), strict=True)
        notes = notes_from(rows)  # many at one tick and pitch
        shuffled = notes[rng.permutation(len(notes))]
        one, other = Score(tracks=[Track(notes=notes)]), Score(tracks=[Track(notes=shuffled)])
        assert one == other
        assert dumps(one) == dumps(other)


def test_a_metre_of_one_beat_is_none():
    """617 songs of POP909 say 1/4, whose bars have four quarters."""
    notes = notes_from([(3840, 480, 60, 64)])
    signatures = [TimeSignature(0, 1, 4), TimeSignature(960, 3, 4), TimeSignature(2400, 1, 8)]
    score = loads(dumps(Score(480, [Track(notes=notes)], time_signatures=signatures)))
    assert score.time_signatures == signatures[1:2]
    assert score.repairs == ["2 metres of one beat or past 64ths left out"]
    assert score.bar_starts().tolist() == [0, 960, 2400, 3840]


def test_overlaps_at_one_pitch_end_first_in_first_out():
    score = Score(tracks=[Track(notes=notes_from([(0, 100, 60, 80), (10, 20, 60, 70)]))])
    again = loads(dumps(score))
    assert again.tracks[0].notes.tolist() == [(0, 30, 60, 80), (10, 90, 60, 70)]
    assert loads(dumps(again)) == again


def test_tracks_without_notes_can_be_written():
    notes = notes_from([(0, 1, 60, 1)])
    score = Score(480, [Track("A"), Track("B", 5, notes=notes), Track("C", is_drum=True)])
    assert loads(dumps(score)) == Score(480, [Track("B", 5, notes=notes)])
    assert loads(dumps(Score(96))) == Score(96)


def test_tempi_are_rounded_to_a_microsecond_per_beat_and_to_the_slowest_of_the_format():
    score = Score(tempos=np.array([(0, 121.0), (5, 33.3), (6, 3.5), (9, 3.6)], TEMPO))
    written = loads(dumps(score)).tempos["bpm"]
    np.testing.assert_allclose(written, [121, 33.3, 60e6 / (2**24 - 1), 3.6], rtol=1e-6)


def test_other_libraries_read_our_files():
    score, data = piece(), dumps(piece())
    expected = [(t.is_drum, t.program, t.notes.tolist()) for t in score.tracks]

    seconds = pretty_midi.PrettyMIDI(io.BytesIO(data))
    for instrument, (is_drum, program, notes) in zip(seconds.instruments, expected, strict=True):
        assert (instrument.is_drum, instrument.program) == (is_drum, program)
        assert sorted((n.pitch, n.velocity) for n in instrument.notes) == sorted(
            (pitch, velocity) for _, _, pitch, velocity in notes
        )
    # 240 ticks at 80 bpm, then at 60: in seconds, at 220 ticks a beat.
    (last,) = [n for n in seconds.instruments[0].notes if n.velocity == 1]
    at = (240 * 60 / 80 + (900 - 240) * 60 / 60 + (1000 - 900) * 60 / 150) / 220
    assert last.start == pytest.approx(at, abs=1e-5)

    messages = mido.MidiFile(file=io.BytesIO(data), charset="utf-8")
    assert (messages.type, messages.ticks_per_beat) == (1, 220)
    metres = [m for m in messages.tracks[0] if m.type == "time_signature"]
    assert [(m.numerator, m.denominator) for m in metres] == [(3, 4), (6, 8)]


def test_objects_of_other_libraries_become_equal_scores(tmp_path):
    path = tmp_path / "piece.mid"
    write(piece(), path)
    ours = read(path)
    from_miditoolkit = as_score(miditoolkit.MidiFile(str(path), charset="utf-8"))
    # Of several tempi at a tick they may keep the last alone.
    in_force = pytest.approx({0: 80, 240: 60, 900: 150})
    assert dict(from_miditoolkit.tempos.tolist()) == in_force
    from_miditoolkit.tempos = ours.tempos
    assert from_miditoolkit == ours

    from_muspy = as_score(muspy.read_midi(path))
    assert dict(from_muspy.tempos.tolist()) == in_force
    from_muspy.tempos, from_muspy.markers = ours.tempos, ours.markers
    for track, own in zip(from_muspy.tracks, ours.tracks, strict=True):
        track.name = own.name
    assert from_muspy == ours
    assert as_score(ours) is ours
    with pytest.raises(TypeError, match="got int"):
        as_score(1)

    theirs = muspy.Music(
        resolution=24,
        tracks=[muspy.Track(program=3, notes=[muspy.Note(12, 60, 6), muspy.Note(15, 62, 6, 0)])],
        tempos=[muspy.Tempo(30, 90.0), muspy.Tempo(0, 0.0), muspy.Tempo(12, 60.0)],
        time_signatures=[muspy.TimeSignature(0, 3, 4)],
        annotations=[muspy.Annotation(9, "C_M_C")],
        key_signatures=[
            muspy.KeySignature(0, fifths=3),
            muspy.KeySignature(6, root=2, mode="dorian", fifths=0),
            muspy.KeySignature(9, root=2, mode="minor"),
            muspy.KeySignature(12),
        ],
    )
    assert as_score(theirs) == Score(
        24,
        [Track("", 3, notes=notes_from([(12, 6, 60, 64), (15, 6, 62, 0)]))],
        np.array([(12, 60), (30, 90)], TEMPO),
        [TimeSignature(0, 3, 4)],
        [Marker(9, "C_M_C")],
        key_signatures=[
            KeySignature(*key) for key in ((0, 3, False), (6, 0, False), (9, -1, True))
        ],
    )
    assert as_score(miditoolkit.MidiFile()).num_notes == 0


def test_unreadable_paths_name_the_file(tmp_path):
    for path, reason in [(tmp_path / "gone.mid", "No such file"), (tmp_path, "directory")]:
        with pytest.raises(UserError, match=reason) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
    (tmp_path / "text.mid").write_text("hello")
    with pytest.raises(UserError, match=r"text\.mid: not a MIDI file"):
        read(tmp_path / "text.mid")


def test_find_music(tmp_path):
    names = ["b/My Song (1).mid", "a,b.mid", "Señor.midi", "UPPER.MID", "b/c/x.MiDi"]
    for name in [*names, "._a,b.mid", ".hidden.mid", "notes.txt", "mid", "b/x.mid.bak"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.mid").mkdir()
    (tmp_path / "dangling.mid").symlink_to(tmp_path / "nothing")
    assert find_music(tmp_path) == sorted(tmp_path / name for name in names)
    assert find_music(str(tmp_path / "b" / "c")) == [tmp_path / "b" / "c" / "x.MiDi"]
    with pytest.raises(UserError, match="no such folder"):
        find_music(tmp_path / "gone")
    with pytest.raises(UserError, match="holds no"):
        find_music(tmp_path / "folder.mid")
