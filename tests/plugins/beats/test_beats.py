"""Beats of pieces whose beats are known, because the tests perform them."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.midi import (
    TEMPO,
    Marker,
    Score,
    TimeSignature,
    Track,
    dumps,
    loads,
    notes_from,
)
from musicgen.plugins.beats.beat_map import (
    TICKS_PER_BEAT,
    BeatMap,
    file_onto_beats,
    onto_beats,
)
from musicgen.plugins.beats.beats import (
    Beats,
    _most_likely_bars,
    beats_of_file,
    find_beats,
    read_beats,
)
from musicgen.plugins.beats.network import find_bars

TICKS, NUM_BARS = 480, 24
_CHORDS = ((48, 60, 64, 67), (45, 57, 60, 64), (41, 57, 60, 65), (43, 55, 59, 62))


def waltz(beats_per_bar: int = 3) -> Score:
    """A bass note on each first beat, chords on the others, and a melody in quarters and eighths."""
    rows, rng = [], np.random.default_rng(1)
    for bar in range(NUM_BARS):
        bass, *chord = _CHORDS[bar % 4]
        start = bar * beats_per_bar * TICKS
        rows.append((start, TICKS, bass - 12, 90))
        for beat in range(1, beats_per_bar):
            rows += [(start + beat * TICKS, TICKS // 2, pitch, 60) for pitch in chord]
        melody = [0, *(rng.choice([1, 1, 1, 0.5], beats_per_bar - 1).cumsum())]
        for beat in melody:
            pitch = chord[int(rng.integers(3))] + 12
            rows.append((start + int(beat * TICKS), TICKS // 2, pitch, 80))
    signature = TimeSignature(0, beats_per_bar, 4)
    return Score(TICKS, [Track("Piano", notes=notes_from(rows))], time_signatures=[signature])


def performed(
    score: Score, beat_seconds: np.ndarray, lead: float = 0.5
) -> tuple[Score, np.ndarray]:
    """Return a score as a recording: at 120 quarters a minute, whatever the music's own beats are.

    Args:
        beat_seconds: the length of each beat; the last is repeated. [num_beats]

    Returns:
        The recording, and the seconds of its beats.
    """
    num_beats = int(score.end // TICKS) + 2
    lengths = np.append(beat_seconds, [beat_seconds[-1]] * num_beats)[:num_beats]
    times = lead + np.concatenate([[0], np.cumsum(lengths)])

    def move(ticks: np.ndarray) -> np.ndarray:
        seconds = np.interp(ticks / TICKS, np.arange(len(times)), times)
        return np.round(seconds * 2 * TICKS).astype(np.int64)

    recording = replace(score.moved(move), time_signatures=[], tempos=np.empty(0, TEMPO))
    last = int(score.notes["onset"].max() // TICKS)
    return recording, times[: last + 1]


def f_measure(found: np.ndarray, known: np.ndarray) -> float:
    """Return the F-measure of beats within 70 ms."""
    near = np.abs(found[:, None] - known) <= 0.07
    hits = min(near.any(axis=0).sum(), near.any(axis=1).sum())
    return 2 * hits / (len(found) + len(known))


def test_beats_of_a_rubato_are_found() -> None:
    curve = 0.55 * np.exp(0.18 * np.sin(2 * np.pi * np.arange(NUM_BARS * 3) / 24))
    recording, known = performed(waltz(), curve)
    found = find_beats(recording)
    assert found.source == "played"
    assert f_measure(found.times, known) > 0.95


def test_bars_in_three_are_found() -> None:
    recording, known = performed(waltz(), np.array([0.47]))
    found = find_beats(recording)
    assert found.time_signature == (3, 4)
    assert f_measure(found.times[found.bar_starts], known[::3]) > 0.9


def test_a_recording_in_the_tempo_of_its_file_keeps_it() -> None:
    score = waltz(4)
    late = replace(score.moved(lambda ticks: ticks + 300), time_signatures=[])
    found = find_beats(late)
    assert found.source == "shifted"
    np.testing.assert_allclose(np.diff(found.times), 0.5)
    assert f_measure(found.times, late.seconds_at(np.arange(300, late.end, TICKS))) > 0.98


def test_bars_that_begin_between_those_of_the_file_are_found() -> None:
    rng = np.random.default_rng(0)
    late = waltz(4).moved(lambda ticks: ticks + TICKS + rng.integers(-8, 9, len(ticks)))
    late = replace(late, time_signatures=[TimeSignature(0, 4, 4)])
    found = find_beats(late)
    assert found.source == "shifted"
    np.testing.assert_allclose(np.diff(found.times), 0.5)
    bars = late.seconds_at(np.arange(TICKS, late.end, 4 * TICKS))
    assert f_measure(found.times[found.bar_starts], bars) > 0.9


def test_music_of_less_than_a_bar_has_the_beats_of_its_file() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        onsets = np.unique(rng.integers(0, int(rng.integers(30, 1900)), 20))
        rows = [(int(onset), 60, 60 + i, 80) for i, onset in enumerate(onsets)]
        found = find_beats(Score(TICKS, [Track(notes=notes_from(rows))]))
        assert found.source == "file" or (len(found.times) >= 2 and len(found.bar_starts) >= 1)


@pytest.mark.parametrize("humanised", [0, 8])
def test_a_metronomic_file_stays_as_it_is(humanised: int) -> None:
    rng = np.random.default_rng(0)
    score = waltz()
    score = score.moved(
        lambda t: np.maximum(t + rng.integers(-humanised, humanised + 1, len(t)), 0)
    )
    found = find_beats(score)
    assert found.source == "file"
    assert found.time_signature == (3, 4)
    assert onto_beats(score, found) is score


def test_a_notated_file_of_fast_runs_stays_as_it_is() -> None:
    rows = [(step * TICKS // 12, TICKS // 12, 50 + step % 31, 80) for step in range(12 * 40)]
    score = Score(TICKS, [Track(notes=notes_from(rows))])
    assert find_beats(score).source == "file"


def test_a_notated_slow_movement_with_64ths_stays_as_it_is() -> None:
    in_two_beats = [*range(0, 32, 2), 31]  # 32nds, and a 64th before each second beat
    steps = [32 * beats + step for beats in range(20) for step in in_two_beats]
    rows = [(step * TICKS // 16, TICKS // 16, 50 + step % 31, 80) for step in steps]
    score = Score(TICKS, [Track(notes=notes_from(rows))])
    assert find_beats(score).source == "file"


def test_a_score_on_its_beats_sounds_as_before() -> None:
    curve = 0.5 * np.exp(0.2 * np.sin(np.arange(NUM_BARS * 3)))
    recording, known = performed(waltz(), curve)
    beats = Beats(known, np.arange(0, len(known), 3), (3, 4), "annotated")
    moved = loads(dumps(onto_beats(recording, beats)))
    before = recording.seconds_at(recording.notes["onset"])
    after = moved.seconds_at(moved.notes["onset"])
    np.testing.assert_allclose(after, before, atol=1e-3)
    # Its notes are where the printed score has them, a beat of silence later.
    expected = 1 + waltz().notes["onset"] / TICKS
    np.testing.assert_allclose(moved.notes["onset"] / moved.ticks_per_beat, expected, atol=0.01)
    assert moved.time_signatures == [TimeSignature(0, 3, 4), TimeSignature(moved.start, 3, 4)]


def test_a_file_on_its_beats_keeps_all_its_events() -> None:
    recording, known = performed(waltz(), 0.5 * np.exp(0.2 * np.sin(np.arange(NUM_BARS * 3))))
    recording.markers = [Marker(4000, "B")]
    beats = Beats(known, np.arange(0, len(known), 3), (3, 4), "annotated")
    data = dumps(recording).replace(b"\x00\xc0\x00", b"\x00\xb0\x40\x7f")  # a pedal for a program
    assert data.count(b"\xb0\x40\x7f") == 1
    moved = file_onto_beats(data, loads(data), beats)
    assert b"\xb0\x40\x7f" in moved
    expected = onto_beats(loads(data), beats)
    found = loads(moved)
    assert found.tracks == expected.tracks
    assert found.markers == expected.markers
    assert found.time_signatures == expected.time_signatures
    np.testing.assert_allclose(found.tempos["bpm"], expected.tempos["bpm"], rtol=1e-5)


def test_ticks_and_seconds_are_inverse() -> None:
    times = np.cumsum(np.random.default_rng(3).uniform(0.4, 0.8, 40))
    beat_map = BeatMap(Beats(times, np.arange(1, 40, 4), (4, 4), "annotated"), times[0])
    moments = np.linspace(times[0], times[-1] + 3, 500)
    score = Score(TICKS_PER_BEAT, tempos=beat_map.tempos)
    played = score.seconds_at(beat_map.ticks_at(moments))
    np.testing.assert_allclose(played - played[0], moments - moments[0], atol=1e-3)


def test_an_upbeat_and_odd_bars_have_bars_of_their_own() -> None:
    times = np.arange(13) * 0.5
    beats = Beats(times, np.array([1, 5, 8, 12]), (4, 4), "annotated")
    beat_map = BeatMap(beats, 0.0)
    beat = beat_map.ticks[1] - beat_map.ticks[0]
    expected = [(0, 4), (beat, 4), (5 * beat, 3), (8 * beat, 4)]
    assert [(s.tick, s.numerator) for s in beat_map.time_signatures] == expected


def test_compound_beats_are_three_eighths() -> None:
    beats = Beats(np.arange(9) * 0.9, np.arange(0, 9, 2), (6, 8), "annotated")
    assert (beats.quarters, beats.beats_per_bar) == (1.5, 2)
    score, _ = performed(waltz(), np.array([0.9]), lead=0)
    moved = onto_beats(score, beats)
    assert moved.bar_ticks(moved.first_time_signature()) == 3 * moved.ticks_per_beat
    np.testing.assert_allclose(moved.tempos["bpm"], 100)


def test_beats_of_a_file_are_those_of_its_time_signatures() -> None:
    score = replace(
        waltz(), time_signatures=[TimeSignature(0, 3, 4), TimeSignature(18 * TICKS, 6, 8)]
    )
    beats = beats_of_file(score)
    assert beats.bar_starts[:8].tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    np.testing.assert_allclose(beats.times[:3], [0, 0.5, 1])


def test_tempi_are_means_of_bars() -> None:
    score = waltz()
    score.tempos = np.array([(0, 60), (TICKS, 120), (3 * TICKS, 90)], TEMPO)
    np.testing.assert_allclose(score.mean_tempos()["bpm"][:2], [3 * 60 / (1 + 2 * 0.5), 90])
    lines = score.bar_lines()
    score.tempos = np.array([(0, 60), (lines[-2], 120)], TEMPO)  # the last bar is twice as fast
    bars = len(lines) - 1
    np.testing.assert_allclose(score.mean_tempos(bars)["bpm"], [60 * bars / (bars - 0.5)])


def test_files_of_beats_are_read(tmp_path) -> None:
    path = tmp_path / "beats.txt"
    path.write_text("0.5 2\n1.0 3\n1.5 1\n2.1 2\n2.5 3\n3.0 1\n")
    beats = read_beats(path)
    assert (beats.time_signature, beats.bar_starts.tolist()) == ((3, 4), [2, 5])
    path.write_text("0.1 1.0 0.0\n0.6 0.0 0.0\n1.1 1.0 1.0\n1.6 0.0 0.0\n2.1 1.0 0.0\n")
    assert read_beats(path).bar_starts.tolist() == [2]
    path.write_text("0.5\n1.0\n1.5\n")
    assert not len(read_beats(path).bar_starts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan 1\n1.0 2\n",
        "0.5 1\ninf 2\n",
        "0.5 1\n1.0 nan\n",
        "1.0 1\n0.5 2\n",
        "one\ntwo\n",
        "1.0 2\n2.0 3\n",
        "1 2\n3\n",
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text: str) -> None:
    path = tmp_path / "beats.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"beats\.txt") as error:
        read_beats(path)
    assert "\n" not in str(error.value)


def test_beats_are_described_in_one_line() -> None:
    beats = Beats(0.31 + np.arange(20) * 60 / 92, np.arange(0, 20, 4), (4, 4), "played", 0.1)
    expected = "92 a minute, 4/4, bars begin at 0.31 s (about 10% of the beats may be wrong)"
    assert beats.describe() == expected


def far_note(gap_ticks: int) -> Score:
    """Music in four as it was played, and a note that was struck much later."""
    recording, _ = performed(waltz(4), 0.5 * np.exp(0.1 * np.sin(np.arange(NUM_BARS * 4))))
    late = notes_from([(recording.end + gap_ticks, 100, 60, 80)])
    (track,) = recording.tracks
    return replace(recording, tracks=[replace(track, notes=np.append(track.notes, late))])


@pytest.mark.parametrize("gap_ticks", [20 * TICKS, 2 * 3600 * TICKS, 2**27])
def test_long_silence_is_skipped_and_its_notes_keep_their_times(gap_ticks: int) -> None:
    score, alone = far_note(gap_ticks), far_note(2 * TICKS)
    found = find_beats(score)
    last_bars = alone.seconds_at(alone.end) - 8
    known = find_beats(alone).times
    np.testing.assert_allclose(found.times[found.times < last_bars], known[known < last_bars])
    assert len(found.times) < len(known) + 30
    moved = onto_beats(score, found)
    assert len(moved.tempos) < 200
    data = dumps(moved)
    before, after = (x.seconds_at(x.notes["onset"]) for x in (score, loads(data)))
    np.testing.assert_allclose(after[:-1], before[:-1], atol=2e-3)
    np.testing.assert_allclose(after[-1], before[-1], rtol=1e-4)


def test_a_file_with_a_far_note_needs_little_memory() -> None:
    rng = np.random.default_rng(0)
    rows = [(int(t), 60, 60 + int(t) % 12, 80) for t in np.cumsum(rng.integers(20, 90, 60))]
    score = Score(96, [Track(notes=notes_from([*rows, (2**28 - 100, 90, 60, 80)]))])
    tracemalloc.start()
    found = find_beats(score)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert found.source == "played"


@pytest.mark.parametrize("seed", range(30))
def test_a_performance_keeps_its_times_on_any_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    onset = np.sort(rng.integers(0, 20_000, 60)) + int(rng.choice([0, 0, 200, 3000]))
    rows = [(int(t), int(rng.integers(20, 900)), 40 + i % 40, 80) for i, t in enumerate(onset)]
    score = Score(TICKS, [Track(notes=notes_from(rows))])
    times = np.cumsum(rng.uniform(0.3, 0.9, 40)) + rng.uniform(-1, 3)
    bar = int(rng.integers(2, 5))
    metre = (6, 8) if bar == 2 else (bar, 4)
    beats = Beats(times, np.arange(int(rng.integers(0, bar)), 40, bar), metre, "annotated")
    data = dumps(score)
    moved = loads(file_onto_beats(data, loads(data), beats))
    for each in (moved, onto_beats(score, beats)):
        before, after = (x.seconds_at(x.notes["onset"]) for x in (score, each))
        np.testing.assert_allclose(after, before, atol=1e-3)
    # Beats are whole beats before the bar lines, and bars begin where they did.
    lines = moved.seconds_at(moved.bar_starts())
    for start in beats.times[beats.bar_starts]:
        if 0 < start < before[-1]:
            assert np.abs(lines - start).min() < 2e-3


def test_a_slow_first_beat_that_nothing_tells_is_not_written() -> None:
    times = np.append(0.2, 2.8 + 0.6 * np.arange(30))
    beats = Beats(times, np.arange(1, 31, 4), (4, 4), "played")
    bpm = BeatMap(beats, 0.2).tempos["bpm"]
    assert bpm.min() > 75  # of 100
    assert bpm.max() < 130
    given = BeatMap(replace(beats, source="annotated"), 0.2)
    assert np.isin(times, given.times).all()


def test_songs_in_four_whose_half_bars_begin_like_bars_are_not_in_two() -> None:
    odds = np.tile([3.0, -3.0, 1.0, -3.0], 30)
    ranked = find_bars(odds, (2, 3, 4))
    assert [bars.beats_per_bar for bars in ranked] == [2, 4, 3]
    own = beats_of_file(waltz())
    best, second = _most_likely_bars(odds, False, own, None)
    assert best.starts.tolist() == list(range(0, 120, 4))
    assert second == (2, 4)
    best, second = _most_likely_bars(odds, True, own, None)
    assert best.starts.tolist() == list(range(0, 120, 2))
    clear = np.tile([3.0, -3.0, -3.0, -3.0], 30)
    assert _most_likely_bars(clear, False, own, None)[1] is None
    found = Beats(np.arange(120) * 0.5, best.starts, (4, 4), "played", second=(2, 4))
    assert found.describe().startswith("120 a minute, 4/4 (or time_signature=2/4), bars begin")


@pytest.mark.parametrize("division", [2, 3])
def test_bars_of_two_are_those_of_beats_in_three(division: int) -> None:
    rows = []
    for beat in range(60):
        bass, *chord = _CHORDS[beat // 2 % 4]
        for part in range(division):
            at = round((0.31 + 0.8 * (beat + part / division)) * 960)
            pitches = (bass - 12, *chord) if beat % 2 == part == 0 else chord[part : part + 1]
            rows += [
                (at + 3 * i, 200, pitch, 90 - 25 * (part > 0)) for i, pitch in enumerate(pitches)
            ]
    found = find_beats(Score(TICKS, [Track(notes=notes_from(rows))]))
    assert found.time_signature == ((6, 8) if division == 3 else (4, 4))


def test_the_time_signature_can_be_said() -> None:
    recording, _ = performed(waltz(), 0.5 * np.exp(0.1 * np.sin(np.arange(NUM_BARS * 3))))
    for metre, num_beats in (((2, 4), 2), ((3, 4), 3), ((4, 4), 4), ((5, 4), 5), ((6, 8), 2)):
        found = find_beats(recording, metre=metre)
        assert found.time_signature == metre
        assert np.median(np.diff(found.bar_starts)) == num_beats
        assert found.second is None
    notated = replace(waltz(), time_signatures=[])
    found = find_beats(notated, metre=(3, 4))
    assert found.source == "shifted"
    moved = onto_beats(notated, found)
    assert moved.bar_ticks(moved.time_signature_at(0)) == 3 * moved.ticks_per_beat
    assert find_beats(waltz(), metre=(3, 4)).source == "file"


def test_doubt_is_of_beats_found_from_the_notes_alone() -> None:
    late = replace(waltz(4).moved(lambda ticks: ticks + 300), time_signatures=[])
    assert find_beats(late).doubt == 0
    rng = np.random.default_rng(0)
    onset = np.cumsum(rng.exponential(0.3, 300))  # without any beat
    rows = [(round(960 * t), 200, int(rng.integers(40, 90)), 80) for t in onset.tolist()]
    chance = find_beats(Score(TICKS, [Track(notes=notes_from(rows))]))
    steady, _ = performed(waltz(4), 0.5 * np.exp(0.1 * np.sin(np.arange(NUM_BARS * 3))))
    assert chance.doubt > 0.25
    assert find_beats(steady).doubt < 0.1
    assert "wrong" not in find_beats(steady).describe()


def test_beats_are_read_from_regular_files_only():
    with pytest.raises(UserError, match="/dev/zero: not a regular file"):
        read_beats("/dev/zero")
