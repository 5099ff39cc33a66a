"""POP909's reader on small songs made by hand."""

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from, read, write
from tests.data.builders import POP909

read_song = POP909(".").read
LABELS = ["N", "Bb:min7/b3", "C#:hdim7", "F:sus4(b7)", "Eb:minmaj7"]


def make_song(
    root,
    notes,
    *,
    bars=(4, 4, 4, 4),
    pickup=0,
    period=0.5,
    beats=None,
    chords=None,
    start=1.0,
    name="001",
):
    """A song folder. Beats are `period` seconds apart from `start` on.

    `notes` are (seconds, seconds, pitch, velocity); the file's own ticks are thousandths of a
    second, so that they have nothing to do with the beats.
    """
    folder = root / name
    score = Score(480, [Track("MELODY"), Track("BRIDGE"), Track("PIANO")])
    score.tempos = np.array([(0, 125.0)], TEMPO)  # 480 ticks in 0.48 s
    ticks = [(round(1000 * on), round(1000 * long), *rest) for on, long, *rest in notes]
    for track, rows in zip(score.tracks, (ticks[:1], ticks[1:2], ticks[2:]), strict=True):
        track.notes = notes_from(rows)
    write(score, folder / f"{name}.mid")
    flags = [0] * pickup + [int(k == 0) for bar in bars for k in range(bar)]
    if beats is None:
        beats = [start + period * k for k in range(len(flags))]
    rows = [
        f"{t} {k % 2:.1f} {flag:.1f}" for k, (t, flag) in enumerate(zip(beats, flags, strict=True))
    ]
    (folder / "beat_midi.txt").write_text("\n".join(rows))
    chords = chords or [(beats[0], beats[-1], "N")]
    (folder / "chord_midi.txt").write_text("\n".join(f"{a}\t{b}\t{c}" for a, b, c in chords))
    return folder


def played(score):
    """Notes of all tracks as (beats, beats, pitch)."""
    return sorted((n["onset"] / 480, n["duration"] / 480, int(n["pitch"])) for n in score.notes)


def at(*beats, period=0.5, start=1.0):
    """Notes of one beat, with rising pitches, at onsets in beats."""
    return [(start + period * b, period, 60 + i, 64) for i, b in enumerate(beats)]


def test_a_plain_song(tmp_path):
    folder = make_song(tmp_path, at(0, 1.5, 4, 7.75))
    score = read_song(folder)
    assert played(score) == [(0, 1, 60), (1.5, 1, 61), (4, 1, 62), (7.75, 1, 63)]
    tracks = [(t.name, t.program, len(t.notes)) for t in score.tracks]
    assert tracks == [("MELODY", 0, 1), ("BRIDGE", 0, 1), ("PIANO", 0, 2)]
    assert score.ticks_per_beat == 480
    assert score.time_signatures == [TimeSignature(0, 4, 4)]
    assert score.tempos.tolist() == [(0, 120.0)]
    assert score.markers == [Marker(0, "N_N")]
    write(score, tmp_path / "copy.mid")
    assert played(read(tmp_path / "copy.mid")) == played(score)


def test_irregular_beats(tmp_path):
    beats = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 7.25]
    notes = [(1.25, 0.5, 60, 64), (3.5, 1.0, 61, 64), (4.5, 3.0, 62, 64)]
    score = read_song(make_song(tmp_path, notes, bars=(4, 4, 2), beats=beats))
    # The last note runs from 5.5 to 10, one beat of a quarter second past the last annotation.
    assert played(score) == [(0.5, 1, 60), (4.5, 1, 61), (5.5, 4.5, 62)]
    assert score.tempos.tolist() == [(0, 120.0), (4 * 480, 60.0), (8 * 480, 240.0)]


@pytest.mark.parametrize(
    ("tempos", "expected"),
    [
        # Of two tempi at one tick the later holds; 500 ticks are played at double speed: the
        # second note, at tick 3000, now sounds at 2 + 0.25 + 0.5 s.
        ([(0, 60.0), (0, 125.0), (2000, 250.0), (2500, 125.0)], [(0, 1, 60), (3.5, 1, 61)]),
        # At 120 bpm, 1000 and 3000 ticks are 1.042 and 3.125 seconds.
        ([], [(40 / 480, 500 / 480, 60), (4.25, 500 / 480, 61)]),
    ],
)
def test_tempi_of_the_file_only_convert_its_ticks(tmp_path, tempos, expected):
    folder = make_song(tmp_path, at(0, 4))
    song = read(folder / "001.mid")
    song.tempos = np.array(tempos, TEMPO)
    write(song, folder / "001.mid")
    assert played(read_song(folder)) == expected


@pytest.mark.parametrize(
    ("onsets", "bars", "expected"),
    [
        # Bars of 2, 6 and 4 beats: the beats 0-1 | 2-5, 6-7 | 8-11.
        ((0, 1, 2, 5, 6, 7, 8), (2, 6, 4, 4, 4), [0, 1, 4, 7, 8, 9, 12]),
        # Just before a short bar's end, a note belongs to the next.
        ((0, 1.5, 1.95, 6), (2, 4, 4, 4), [0, 1.5, 3.95, 8]),
        # After the last beat.
        ((0, 21.5), (4, 4), [0, 21.5]),
    ],
)
def test_short_bars_are_padded_and_long_ones_split(tmp_path, onsets, bars, expected):
    found = played(read_song(make_song(tmp_path, at(*onsets), bars=bars)))
    assert [onset for onset, *_ in found] == pytest.approx(expected, abs=0.01)
    assert [duration for _, duration, _ in found] == pytest.approx([1] * len(found), abs=0.01)


@pytest.mark.parametrize(
    ("pickup", "first", "expected"),
    [
        (0, 0, 0),  # on the first downbeat
        (2, 0, 2),  # two beats of upbeat end their bar
        (0, -1.5, 2.5),  # before the first annotated beat
        (1, -4, 3),  # a whole bar before: 4 + 4 - 1 - 4
        (0, -0.05, 0),  # a little early is no upbeat
        (0, 9, 1),  # two empty bars are left out
        (5, 0, 3),  # more than a bar of upbeat
    ],
)
def test_the_first_note_is_in_the_first_bar(tmp_path, pickup, first, expected):
    folder = make_song(tmp_path, at(first, 16 + pickup, start=10), pickup=pickup, start=10)
    score = read_song(folder)
    onsets = [onset for onset, *_ in played(score)]
    assert onsets[0] == expected
    # The last is on a downbeat.
    assert onsets[1] % 4 == 0


def test_chords_are_at_their_changes_with_the_names_of_remi(tmp_path):
    chords = [(1.0 + 2 * k, 3.0 + 2 * k, label) for k, label in enumerate(LABELS)]
    chords.insert(1, (2.0, 3.0, "N"))
    score = read_song(make_song(tmp_path, at(0, 19), bars=(4,) * 5, chords=chords))
    assert score.markers == [
        Marker(0, "N_N"),
        Marker(4 * 480, "A#_m7"),
        Marker(8 * 480, "C#_/o7"),
        Marker(12 * 480, "F_sus4"),
        Marker(16 * 480, "D#_m"),
    ]


def test_chords_start_with_the_first_bar_and_end_with_the_notes(tmp_path):
    chords = [(1.0, 2.0, "C:maj"), (2.0, 4.0, "G:7"), (4.0, 6.0, "A:aug"), (6.0, 9.0, "D:dim")]
    score = read_song(make_song(tmp_path, at(4, 9, start=1.0), bars=(4,) * 4, chords=chords))
    # The music is the beats 4-10: G:7 began at beat 2, A:aug at 6, D:dim at 10, as it ends.
    assert score.markers == [Marker(0, "G_7"), Marker(2 * 480, "A_+")]


def test_velocities_are_rescaled_for_the_song_as_a_whole(tmp_path):
    notes = [(1 + i, 0.5, 60, velocity) for i, velocity in enumerate([10, 20, 60, 110])]
    score = read_song(make_song(tmp_path, notes))
    velocities = [int(v) for track in score.tracks for v in track.notes["velocity"]]
    assert velocities == [40, 45, 63, 86]  # 40 + 46 · (v - 10) / 100


def test_triple_metre_and_a_song_without_notes_are_refused(tmp_path):
    with pytest.raises(UserError, match="most bars have 3 beats"):
        read_song(make_song(tmp_path, at(0, 1), bars=(3,) * 4))
    with pytest.raises(UserError, match="no notes"):
        read_song(make_song(tmp_path, []))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("beat_midi.txt", None),
        ("beat_midi.txt", "2.0 1.0 1.0\n1.0 0.0 1.0"),
        ("beat_midi.txt", "<html>"),
        ("chord_midi.txt", "1.0 C:maj"),
        ("chord_midi.txt", "1.0 2.0 C:maj9"),
        ("001.mid", "version https://git-lfs.github.com/spec/v1"),
    ],
)
def test_the_error_of_a_broken_file_names_it(tmp_path, file, text):
    folder = make_song(tmp_path, at(0, 1))
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(UserError, match=file):
        read_song(folder)


def test_the_pieces_are_the_song_folders(tmp_path):
    for name in ("010", "002"):
        make_song(tmp_path / "POP909", at(0), name=name)
    assert [piece.path.name for piece in POP909(tmp_path).pieces()] == ["002", "010"]
