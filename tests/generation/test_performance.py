"""Continuations are played like their prompts: velocities, timing, articulation, pedal."""

from dataclasses import replace

import mido
import numpy as np
import pytest

import musicgen
from musicgen.errors import UserError
from musicgen.generation.performance import Performance
from musicgen.midi import Score, Track, loads, notes_from
from musicgen.midi.extension import repeat_pedal
from musicgen.midi.tracks import open_file
from musicgen.tokenization import REMI, Chorale
from tests.generation.builders import BAR, BEAT, PromptFile, music_model, notes, timed
from tests.generation.test_keep import BAR as BAR_OF_THREE
from tests.generation.test_keep import song

STEP = BEAT // 4


def performance_of(played: Score, num_bars: int, written: Score | None = None, **options):
    bars = np.arange(num_bars + 1) * 16
    roles = list(range(len(played.tracks)))
    options = {"has_kept": False} | options
    return Performance.of(played, written or played, roles, (bars * STEP, bars), bars, 4, **options)


def piano(rows, name="Piano", is_drum=False) -> Score:
    return Score(BEAT, [Track(name, is_drum=is_drum, notes=notes_from(rows))])


def random_rows(rng, num_bars, first_bar=0):
    """Notes on the grid of sixteenths: chords of up to four."""
    rows = []
    for step in np.flatnonzero(rng.random(16 * num_bars) < 0.6).tolist():
        for pitch in rng.choice(np.arange(40, 90), rng.integers(1, 5), replace=False).tolist():
            length = int(rng.integers(1, 9)) * STEP
            rows.append((first_bar * BAR + step * STEP, length, pitch, int(rng.integers(1, 128))))
    return rows


def continued(prompt_rows, new_rows, num_bars, seed=0, **options) -> np.ndarray:
    """The new notes, as they are played behind the prompt."""
    performance = performance_of(piano(prompt_rows), num_bars, **options)
    score = piano([*prompt_rows, *((on, length, key, 1) for on, length, key, _ in new_rows)])
    played = performance.play(score, num_bars * BAR, [0], seed)
    return played.tracks[0].notes[len(prompt_rows) :]


def test_new_notes_are_played_like_those_of_the_same_beat_and_role():
    # Chords of half a quarter, each beat later and softer than the one before, the top loudest.
    prompt = [
        (beat * BEAT + 10 * beat, 240, pitch, 100 - 10 * beat + loudness)
        for beat in range(4)
        for pitch, loudness in ((48, 0), (55, -20), (72, 20))
    ]
    written = [(beat * BEAT, BEAT, pitch, 1) for beat in range(4) for pitch in (48, 55, 72)]
    performance = performance_of(piano(prompt), 1, piano(written))
    score = piano([*written, *((on + BAR, length, key + 2, 1) for on, length, key, _ in written)])
    new = performance.play(score, BAR, [0], seed=3).tracks[0].notes[len(written) :]
    assert new.tolist() == [(on + BAR, n, key + 2, loud) for on, n, key, loud in prompt]


def test_a_drum_is_played_like_the_same_drum():
    pattern = [(i * STEP, STEP, pitch, pitch + 40) for i in range(16) for pitch in (36, 38, 42)]
    score = piano([*pattern, (BAR, STEP, 38, 1), (BAR + STEP, STEP, 36, 1)], "Kit", is_drum=True)
    kit = piano(pattern, "Kit", is_drum=True)
    new = performance_of(kit, 1).play(score, BAR, [0], seed=0).tracks[0].notes[len(pattern) :]
    assert new["velocity"].tolist() == [78, 76]


def test_a_part_is_played_like_itself_wherever_it_plays():
    voice, low = piano([(0, BEAT, 72, 90)], "Voice"), piano([(BAR, 2 * BEAT, 40, 30)])
    prompt = replace(voice, tracks=[*voice.tracks, *low.tracks])
    added = piano([(2 * BAR, BEAT, 72, 1)]).tracks  # the piano, like the voice in all else
    score = replace(prompt, tracks=[Track("Voice"), *added])
    played = performance_of(prompt, 2).play(score, 2 * BAR, [0, 1], 0)
    assert played.tracks[1].notes["velocity"].tolist() == [30]


def test_the_first_new_bar_is_as_loud_as_the_last_one():
    crescendo = [
        (bar * BAR + beat * BEAT, BEAT, 60, 20 + 25 * bar) for bar in range(4) for beat in range(4)
    ]
    new = continued(crescendo, [(4 * BAR + i * BEAT, BEAT, 60, 1) for i in range(16)], 4)
    assert new["velocity"].reshape(4, 4).tolist() == [[v] * 4 for v in (95, 70, 45, 20)]


@pytest.mark.parametrize("seed", range(20))
def test_flat_stays_flat_and_the_grid_stays_the_grid(seed):
    rng = np.random.default_rng(seed)
    prompt = [(on, length, pitch, 77) for on, length, pitch, _ in random_rows(rng, 3)]
    new_rows = random_rows(rng, 4, first_bar=3)
    new = continued(prompt, new_rows, 3, seed)
    assert new.tolist() == notes_from([(*row[:3], 77) for row in new_rows]).tolist()


def test_notated_notes_between_the_steps_are_no_deviations():
    def deviations(score):
        prompt = musicgen.load("songs-small").prompt(score, prompt_bars=2)
        return prompt.source.performance.notes["deviation"]

    beats = [BEAT * beat for beat in range(8)]
    rows = [
        (on + late, STEP // 2, 60, 80) for on in beats for late in (0, BEAT // 4, BEAT * 7 // 8)
    ]
    assert not deviations(piano(rows)).any()  # a 32nd, which is half a step off the grid
    late = [(on + 10, length, pitch, velocity) for on, length, pitch, velocity in rows]
    assert deviations(piano(late)).any()


@pytest.mark.parametrize("seed", range(20))
def test_played_notes_keep_their_order_and_do_not_begin_before_the_continuation(seed):
    rng = np.random.default_rng(seed)
    prompt = [
        (
            max(0, on + int(rng.integers(-59, 60))),
            max(1, int(length * rng.uniform(0.2, 1.4))),
            *rest,
        )
        for on, length, *rest in random_rows(rng, 3)
    ]
    new_rows = random_rows(rng, 4, first_bar=3)
    new_rows = [row for i, row in enumerate(new_rows) if i == 0 or new_rows[i - 1][0] != row[0]]
    new = continued(prompt, new_rows, 3, seed)
    assert new["pitch"].tolist() == [row[2] for row in new_rows]
    written = np.array([row[0] for row in new_rows])
    assert (new["onset"] >= 3 * BAR).all()
    # Half a step, or the spread of notes that begin together between steps.
    assert (np.abs(new["onset"] - written) <= 0.3 * BEAT).all()
    assert len(set((new["onset"] - written).tolist())) > 3
    assert {*new["velocity"].tolist()} <= {row[3] for row in prompt}
    assert (new["duration"] >= 1).all()
    for pitch in np.unique(new["pitch"]):
        own, lengths = new[new["pitch"] == pitch], [r[1] for r in new_rows if r[2] == pitch]
        ends = [
            r[0] + n for r, n in zip([r for r in new_rows if r[2] == pitch], lengths, strict=True)
        ]
        apart = np.array(ends[:-1]) <= np.array([r[0] for r in new_rows if r[2] == pitch][1:])
        assert (own["onset"] + own["duration"])[:-1][apart].tolist() <= own["onset"][1:][
            apart
        ].tolist()
    assert continued(prompt, new_rows, 3, seed).tolist() == new.tolist()
    assert continued(prompt, new_rows, 3, seed + 1).tolist() != new.tolist()


@pytest.mark.parametrize("late", [47, -47])
def test_a_note_moves_by_two_fifths_of_the_way_to_its_neighbours_at_most(late):
    prompt = [(BEAT * i + late, BEAT, 60, 80) for i in range(1, 4)]
    written = [(BEAT * i, BEAT, 60, 80) for i in range(1, 4)]
    performance = performance_of(piano(prompt), 1, piano(written))
    onsets = [0, 60, 540, 1020]  # no neighbour is nearer than 60 ticks
    score = piano([*written, *((BAR + on, 60, 60, 1) for on in onsets)])
    new = performance.play(score, BAR, [0], 0).tracks[0].notes[3:]
    gaps = {47: [24, 47, 47, 47], -47: [0, -24, -47, -47]}[late]
    assert (new["onset"] - BAR).tolist() == [on + by for on, by in zip(onsets, gaps, strict=True)]


def test_articulation_is_limited_to_half_more_than_is_written():
    written = [(BEAT * i, BEAT, 60, 80) for i in range(4)]
    for length, expected in ((240, 240), (600, 600), (720, 720), (960, 720)):
        prompt = piano([(on, length, *rest) for on, _, *rest in written])
        performance = performance_of(prompt, 1, piano(written))
        score = piano([*written, (BAR, BEAT, 60, 1)])
        new = performance.play(score, BAR, [0], 0).tracks[0].notes[4:]
        assert new["duration"].tolist() == [expected]


def test_parts_that_the_prompt_lacks_are_played_like_the_others():
    prompt = replace(
        piano([(0, BEAT, 60, 99)]), tracks=[*piano([(0, BEAT, 60, 99)]).tracks, Track()]
    )
    performance = performance_of(prompt, 1)
    new = replace(prompt, tracks=[Track(), *piano([(BAR, BEAT, 40, 1)]).tracks])
    assert performance.play(new, BAR, [0, 1], 0).tracks[1].notes["velocity"].tolist() == [99]
    assert performance_of(Score(BEAT, [Track()]), 1) is None
    empty = Score(BEAT, [Track()])
    assert performance.play(empty, BAR, [0], 0) == empty


def test_new_notes_of_a_kept_piece_are_played_like_those_of_their_own_bars():
    rows = [(bar * BAR + i * BEAT, BEAT, 60, 40 + bar) for bar in range(9) for i in range(4)]
    performance = performance_of(piano(rows), 9, has_kept=True)
    score = piano([(on, length, pitch, 1) for on, length, pitch, _ in rows])
    assert performance.play(score, 0, [0], 0).tracks[0].notes.tolist() == rows


# The pedal

PEDAL = [(0, 127), (1800, 0), (BAR + 60, 127), (2 * BAR + 20, 0), (2 * BAR + 90, 100)]
EVENTS = [(tick, bytes([0xB0, 64, value])) for tick, value in PEDAL]


def bars_like(*models):
    return [
        ((3 + i) * BAR, (4 + i) * BAR, model * BAR, (model + 1) * BAR)
        for i, model in enumerate(models)
    ]


def test_new_bars_have_the_pedal_of_earlier_ones():
    (state,) = open_file(PromptFile([EVENTS]).data()).tracks
    # The pedal of the second bar goes up in the third: here it goes on, and then goes up.
    assert repeat_pedal(state, 0, bars_like(0, 1)) == [
        (3 * BAR, 127),
        (3 * BAR + 1800, 0),
        (4 * BAR + 60, 127),
        (5 * BAR, 0),
    ]
    assert repeat_pedal(state, 0, bars_like(2, 0)) == [
        (3 * BAR, 127),
        (3 * BAR + 20, 0),
        (3 * BAR + 90, 100),
        (4 * BAR, 0),
        (4 * BAR, 127),
        (4 * BAR + 1800, 0),
    ]
    assert repeat_pedal(state, 1, bars_like(0, 1)) == []


def file_of(tmp_path, *events):
    path = tmp_path / "played.mid"
    path.write_bytes(PromptFile([[*events]]).data())
    return path


def sixteenths(num_bars=4):
    return notes(*[(i * 120, 60 + 2 * i % 12, 100) for i in range(16 * num_bars)])


def pedals(data: bytes):
    import io

    file = mido.MidiFile(file=io.BytesIO(data))
    found = [e for track in file.tracks for e in timed(track) if e[1].is_cc(64)]
    return [(tick, message.value) for tick, message in found]


def test_the_pedal_of_a_file_goes_on_and_ends_up(tmp_path):
    model = music_model(REMI(chords=False))
    held = [
        (bar * BAR + tick, bytes([0xB0, 64, v]))
        for bar in range(4)
        for tick, v in ((30, 99), (1900, 0))
    ]
    path = file_of(tmp_path, *sixteenths(), *held)
    (piece,) = model.generate(path, prompt_bars=2, bars=3)
    found = pedals(piece.midi_file().data)
    assert found[:4] == [(30, 99), (1900, 0), (BAR + 30, 99), (BAR + 1900, 0)]
    assert len(found) > 4
    repeated = [(bar * BAR + at, v) for bar in range(9) for at, v in ((30, 99), (1900, 0))]
    assert found[:-1] == repeated[: len(found) - 1]
    assert found[-1][1] == 0  # at the latest where the last note ends
    (piece,) = model.generate(path, prompt_bars=2, bars=3, performance="none")
    assert pedals(piece.midi_file().data) == found[:4]
    (piece,) = model.generate(file_of(tmp_path, *sixteenths()), prompt_bars=2, bars=3)
    assert pedals(piece.midi_file().data) == []


def test_rewritten_bars_keep_their_pedal(tmp_path):
    model = musicgen.load("songs-small")
    path = file_of(tmp_path, *sixteenths(), (BAR + 30, b"\xb0\x40\x63"), (BAR + 900, b"\xb0\x40\0"))
    (piece,) = model.generate(path, rewrite=2)
    assert pedals(piece.midi_file().data) == [(BAR + 30, 99), (BAR + 900, 0)]
    (piece,) = model.generate(path, rewrite=2, performance="none")
    assert (BAR + 30, 99) not in pedals(piece.midi_file().data)


# Whole continuations


def swung(num_bars=4) -> Score:
    """Eighths whose second ones are late and soft, over a loud bass on the first beat."""
    rows = []
    for eighth in range(8 * num_bars):
        is_late = eighth % 2
        onset = eighth * 240 + 50 * is_late
        rows.append((onset, 150, 67 + eighth % 5, 60 if is_late else 90))
        if eighth % 8 == 0:
            rows.append((onset, 900, 43, 110))
    return piano(rows)


def test_a_real_model_goes_on_as_its_prompt_is_played():
    model = musicgen.load("songs-small")
    options = {"prompt_bars": 4, "bars": 4, "beats": "file", "seed": 1}
    (piece,) = model.generate(swung(), **options)
    (again,) = model.generate(swung(), **options)
    (plain,) = model.generate(swung(), performance="none", **options)
    assert piece.tokens.tolist() == plain.tokens.tolist()
    assert piece.score == again.score
    assert piece.new_on_grid == plain.new_score
    new, grid = piece.new_score.notes, plain.new_score.notes
    assert {*new["velocity"].tolist()} <= {60, 90, 110}
    assert len({*new["velocity"].tolist()}) > 1
    assert len({*grid["velocity"].tolist()}) == 1
    saved = loads(piece.midi_file().data)
    later = np.concatenate([t.notes[t.notes["onset"] >= 4 * BAR] for t in saved.tracks])
    columns = ["pitch", "velocity"]
    assert sorted(later[columns].tolist()) == sorted(new[columns].tolist())


def test_velocities_of_tokens_are_those_of_the_prompt_too():
    model = music_model(REMI(chords=False))
    (piece,) = model.generate(swung(), prompt_bars=2, bars=2, beats="file")
    (plain,) = model.generate(swung(), prompt_bars=2, bars=2, beats="file", performance="none")
    velocities = {*np.concatenate([track.notes["velocity"] for track in swung().tracks]).tolist()}
    new, grid = (each.new_score.notes for each in (piece, plain))
    assert {*new["velocity"].tolist()} <= velocities
    assert {*grid["velocity"].tolist()} <= {*range(40, 87, 2)}  # the vocabulary's
    assert not {*grid["velocity"].tolist()} <= velocities
    assert new["pitch"].tolist() == grid["pitch"].tolist()


def test_chorales_on_the_grid_have_the_median_velocity_of_their_voices():
    model = music_model(Chorale())
    score = song()
    (piece,) = model.generate(score, prompt_bars=2, bars=2, performance="none")
    for track, own in zip(piece.new_score.tracks, score.tracks, strict=True):
        median = int(np.median(own.notes["velocity"][own.notes["onset"] < 2 * BAR_OF_THREE]))
        assert {*track.notes["velocity"].tolist()} <= {median}


def test_an_unknown_performance_is_refused():
    with pytest.raises(UserError, match="performance"):
        music_model(REMI()).prompt(swung(), performance="loud")


@pytest.mark.parametrize("performance", ["prompt", "none"])
def test_notes_of_the_next_bar_that_are_early_do_not_stay(performance, tmp_path):
    model = music_model(REMI(chords=False))
    rows = [(i * BEAT - 20 * (i > 0), 60 + i % 5, 240) for i in range(16)]
    path = file_of(tmp_path, *notes(*rows))
    options = {"prompt_bars": 2, "bars": 1, "beats": "file", "performance": performance}
    (piece,) = model.generate(path, **options)
    (track,) = loads(piece.midi_file().data).tracks
    kept = track.notes[track.notes["onset"] < 2 * BAR]
    assert kept["onset"].tolist() == [row[0] for row in rows[:8]]
    assert kept["duration"].tolist() == [240] * 8


# Spread chords, voicing, repeated notes, pedalled durations
