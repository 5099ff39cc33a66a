"""The page's data has every note exactly once, and the same times as mido."""

import json

import mido
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.midi.score import TEMPO, Marker, Score, TimeSignature, Track, notes_from
from musicgen.report.html import chord_label, score_payload, tempo_map

ticks = st.integers(0, 20_000)
note_rows = st.lists(
    st.tuples(ticks, st.integers(0, 5_000), st.integers(0, 127), st.integers(1, 127)), max_size=30
)


def rows_of(track: dict) -> list[tuple[int, int, int, int]]:
    """Decode the notes of a track."""
    onsets = np.cumsum(track["onset"], dtype=int).tolist()
    return list(zip(onsets, track["duration"], track["pitch"], track["velocity"], strict=True))


@given(st.lists(note_rows, max_size=4), ticks)
def test_payload_has_every_note_once_and_in_order(tracks, prompt_end):
    score = Score(tracks=[Track(notes=notes_from(rows)[::-1]) for rows in tracks])
    payload = json.loads(json.dumps(score_payload(score, prompt_end)))
    for track, rows in zip(payload["tracks"], tracks, strict=True):
        found = rows_of(track)
        assert sorted(found) == sorted(rows)
        assert [row[0] for row in found] == sorted(row[0] for row in rows)


def seconds_at(segments: list, tick: int) -> float:
    first, second, rate = [s for s in segments if s[0] <= tick][-1]
    return second + (tick - first) * rate


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(100_000, 2_000_000)), max_size=12))
def test_tempo_map_agrees_with_mido(changes):
    track = mido.MidiTrack()
    tempos, tick = [], 0
    for delta, microseconds in changes:
        tick += delta
        track.append(mido.MetaMessage("set_tempo", tempo=microseconds, time=delta))
        tempos.append((tick, 60e6 / microseconds))
    track.append(mido.Message("note_on", note=60, velocity=1, time=777))
    file = mido.MidiFile(ticks_per_beat=220, tracks=[track])
    segments = tempo_map(Score(ticks_per_beat=220, tempos=np.array(tempos, TEMPO)))
    assert seconds_at(segments, tick + 777) == pytest.approx(file.length, abs=1e-4)
    assert tempo_map(Score(ticks_per_beat=100)) == [[0, 0.0, 0.005]]


def test_bars_beats_signatures_and_the_end():
    notes = notes_from([(0, 6_000, 60, 90)])
    metres = [TimeSignature(1_920, 3, 4), TimeSignature(4_800, 6, 8)]
    payload = score_payload(Score(480, [Track(notes=notes)], time_signatures=metres), 1_920)
    assert np.cumsum(payload["bars"]).tolist() == [0, 1_920, 3_360, 4_800]
    assert payload["meters"] == [[0, 480, "4/4"], [1_920, 480, "3/4"], [4_800, 240, "6/8"]]
    assert (payload["promptEnd"], payload["end"]) == (1_920, 6_000)
    short = Score(tracks=[Track(notes=notes_from([(0, 100, 60, 90)]))])
    assert score_payload(short, 1_920)["end"] == 1_920  # the prompt ends after the last note
    assert score_payload(Score(), 0)["end"] == 0


@pytest.mark.parametrize(
    ("text", "label"),
    [
        *(("A_M7_E", "Amaj7/E"), ("C_M_C", "C"), ("F#_m_F#", "F#m"), ("B_/o7", "Bm7♭5")),
        *(("N_N", "N.C."), ("N_N_N", "N.C."), ("Verse 2", "Verse 2"), ("take_m_1", "take_m_1")),
        *(("_M_", "_M_"), ("", "")),
    ],
)
def test_chord_labels(text, label):
    assert chord_label(text) == label
    assert score_payload(Score(markers=[Marker(5, text)]), 0)["markers"] == [[5, label]]
