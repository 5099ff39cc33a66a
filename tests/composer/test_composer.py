"""Composed corpora are reproducible, playable and structured."""

import os
import subprocess
import sys
from itertools import groupby, pairwise

import numpy as np
import pytest
import symusic
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.composer import FAMILIES, compose_band, compose_corpus, compose_groove, compose_pop
from musicgen.composer.bands import _strum
from musicgen.composer.draw import notes_of_part
from musicgen.composer.families import parse
from musicgen.composer.grooves import PARTS
from musicgen.composer.harmony import Chord, close_voicing, lead_basses, scale_over, spell
from musicgen.composer.songs import compose_song
from musicgen.composer.texture import TEXTURES
from musicgen.metrics.repeated_bars import (
    bar_notes,
    bar_similarities,
    copied_and_varied_shares,
    repeated_bar_share,
)
from musicgen.metrics.style import style_similarity
from musicgen.midi import NOTE, Score, dumps, find_music, pitched_notes
from musicgen.midi.key import Key, find_key, in_key_share
from musicgen.tokenization.chords import INTERVALS, QUALITIES, ROOTS, chord_index

seeds = st.integers(0, 2**40)
families = st.sampled_from(sorted(FAMILIES))


def test_same_seed_gives_the_same_bytes_in_every_process():
    code = """
import hashlib
from musicgen.composer import FAMILIES, compose_band, compose_groove, compose_pop, compose_song
from musicgen.midi import dumps
pieces = [compose_groove(3, family, 1, 2) for family in FAMILIES]
pieces += [compose_band(3, band, 1) for band in range(5)]
pieces += [compose(3, i) for compose in (compose_pop, compose_song) for i in range(6)]
digest = hashlib.sha256(b"".join(map(dumps, pieces))).hexdigest()
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", f"{code}print(digest)"]
    there = subprocess.check_output(command, env=environment, text=True)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    here: dict = {}
    exec(code, here)
    assert there.strip() == here["digest"]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def assert_playable(score: Score, step: int, velocities: range) -> None:
    """Notes lie on a grid, none lasts into the next of its pitch, and another reader finds all."""
    for track in score.tracks:
        assert np.isin(track.notes["onset"], range(0, score.end, step)).all()
        assert np.isin(track.notes["duration"], range(step, 1921, step)).all()
        assert np.isin(track.notes["pitch"], range(21, 109)).all()
        assert np.isin(track.notes["velocity"], velocities).all()
        for pitch in np.unique(track.notes["pitch"]):
            same = track.notes[track.notes["pitch"] == pitch]
            assert (same["onset"][1:] >= (same["onset"] + same["duration"])[:-1]).all()
    assert symusic.Score.from_midi(dumps(score)).note_num() == score.num_notes


@settings(max_examples=40)
@given(seeds, st.integers(0, 10_000))
def test_properties_of_pop_pieces(seed, index):
    score = compose_pop(seed, index)
    assert [(t.name, t.program, t.is_drum) for t in score.tracks] == [("Piano", 0, False)]
    assert [tuple(signature) for signature in score.time_signatures] == [(0, 4, 4)]
    assert 24 <= len(score.bar_starts()) <= 64
    assert_playable(score, 120, range(40, 87, 2))

    bpm = score.tempos["bpm"]
    assert np.isin(bpm, range(32, 225, 3)).all()
    assert (np.diff(bpm) != 0).all()
    assert (np.diff(score.tempos["tick"], prepend=-1) > 0).all()
    assert score.tempos["tick"][0] == score.markers[0].tick == 0
    for marker in score.markers:
        root, quality, bass = marker.text.split("_")
        assert ROOTS.index(bass) in Chord(ROOTS.index(root), quality, 0).pitch_classes
        assert marker.tick % 960 == 0
    assert all(a.text != b.text for a, b in pairwise(score.markers))


@settings(max_examples=40)
@given(seeds, st.integers(0, 10_000))
def test_properties_of_songs(seed, index):
    score = compose_song(seed, index)
    voice, piano = score.tracks
    assert [(track.name, track.program) for track in score.tracks] == [("Voice", 52), ("Piano", 0)]
    [metre] = score.time_signatures
    bar, second_chord = {(4, 4): (1920, 960), (3, 4): (1440, 960), (6, 8): (1440, 720)}[metre[1:]]
    assert score.end in range(24 * bar, 65 * bar, bar)
    assert_playable(score, 120, range(40, 87, 2))
    assert np.isin([marker.tick % bar for marker in score.markers], (0, second_chord)).all()
    assert np.isin(score.tempos["tick"] % bar, (0,)).all()

    # A singer: one note at a time within an octave and a half. A chord of the piano ends the piece.
    assert (np.diff(voice.notes["onset"]) >= voice.notes["duration"][:-1]).all()
    assert np.ptp(voice.notes["pitch"]) <= 17
    last = piano.notes["pitch"][piano.notes["onset"] + piano.notes["duration"] >= score.end - 480]
    root, quality, _ = score.markers[-1].text.split("_")
    assert {*(last % 12)} >= {*Chord(ROOTS.index(root), quality, 0).pitch_classes[:2]}
    scale = Key(7 * score.key_signatures[0].fifths % 12, major=True).scale
    assert np.isin(voice.notes["pitch"] % 12, scale).mean() > 0.5


@settings(max_examples=80)
@given(seeds, st.none() | families, st.integers(0, 50), st.integers(0, 50))
def test_properties_of_grooves_and_bands(seed, family, style, song):
    if family is None:
        score = compose_band(seed, style, song)
    else:
        score = compose_groove(seed, family, style, song)
        assert 24 * 1920 - 1920 < score.end <= 32 * 1920
        assert all(len(track.notes) for track in score.tracks[:2])
    assert tuple(track.name for track in score.tracks) == PARTS
    assert [track.is_drum for track in score.tracks] == [name == "Drums" for name in PARTS]
    assert_playable(score, 40, range(20, 128))


def test_songs_of_a_band_share_their_style_and_bands_differ_more_than_grooves():
    songs = [[compose_band(0, band, song) for song in (0, 1)] for band in range(16)]
    same = [style_similarity(first, second) for first, second in songs]
    others = [style_similarity(a[0], b[1]) for a, b in pairwise(songs)]
    grooves = [compose_groove(0, family, 0, 0) for family in FAMILIES]
    between_grooves = [style_similarity(a, b) for a, b in pairwise(grooves)]
    assert np.nanmean(same) > 0.75
    assert np.nanmean(others) < np.nanmean(between_grooves) < np.nanmean(same)


def chord_tones(score):
    """Return the pitch classes of each chord."""
    chords = [divmod(chord_index(marker.text), len(QUALITIES)) for marker in score.markers]
    return [
        {(root + step) % 12 for step in INTERVALS[QUALITIES[quality]]} for root, quality in chords
    ]


def share_of_chord_tones(score, notes):
    """Return how many of the notes belong to the chord at their beginning."""
    at = np.searchsorted([m.tick for m in score.markers], notes["onset"], side="right") - 1
    tones = chord_tones(score)
    return np.mean([p % 12 in tones[i] for i, p in zip(at, notes["pitch"], strict=True)])


def test_pop_pieces_are_near_real_ones():
    """Means within what the songs of POP909 have."""
    found = []
    for index in range(20):
        score = compose_pop(0, index)
        num_bars, notes = len(score.bar_starts()), pitched_notes(score)
        returns = repeated_bar_share(bar_similarities(bar_notes(score)[:, :3]))
        changes = len(list(groupby(chord_tones(score))))
        in_key = in_key_share(score, find_key(notes))
        fit = share_of_chord_tones(score, notes)
        copies, _ = copied_and_varied_shares(bar_notes(score.clip(0, 24 * 1920)), first=8)
        found.append([in_key, fit, changes / num_bars, score.num_notes / num_bars, returns, copies])
    in_key, fit, chords_per_bar, notes_per_bar, returns, copies = np.mean(found, axis=0)
    assert in_key > 0.95
    assert 0.8 < fit < 0.95  # not every note is a chord tone
    assert 1.2 < chords_per_bar < 1.6
    assert 16 < notes_per_bar < 24
    assert 0.25 < returns < 0.45
    assert 0.01 < copies < 0.1  # bars return with changes


def test_songs_have_the_beats_of_their_metre_and_two_independent_parts():
    onsets = {metre: np.zeros(12, int) for metre in ((4, 4), (3, 4), (6, 8))}
    found = []
    for index in range(48):
        score = compose_song(0, index)
        voice, piano = (track.notes for track in score.tracks)
        onsets[score.time_signature_at(0)[1:]] += np.bincount(
            voice["onset"] // 120 % 12, minlength=12
        )
        code = [128 * part["onset"] + part["pitch"] for part in (voice, piano)]
        rests = np.diff(voice["onset"]) - voice["duration"][:-1] >= 240
        found.append([share_of_chord_tones(score, piano), np.isin(*code).mean(), rests.mean()])
    assert onsets[3, 4][[4, 8]].min() > onsets[3, 4][6]  # quarters
    assert onsets[6, 8][6] > 2 * onsets[6, 8][8]  # dotted quarters
    means = np.mean(found, axis=0)  # chord tones of the piano, doubled notes and rests of the voice
    assert ((means > (0.95, 0, 0.1)) & (means < (1, 0.1, 0.2))).all()


def test_textures_fill_their_bar_and_no_more():
    for metre, length in (("4/4", 16), ("3/4", 12), ("6/8", 12)):
        for build, _ in TEXTURES[metre].values():
            strokes = [s for seed in range(30) for s in build(np.random.default_rng(seed), 2)]
            assert max(s.step + s.length for s in strokes) == length


def test_corpus_is_varied():
    pieces = [compose_pop(0, index) for index in range(60)]
    assert len({piece.markers[-1].text.split("_")[0] for piece in pieces}) == 12
    assert len({piece.tempos["bpm"][0] for piece in pieces}) >= 15
    qualities = {marker.text.split("_")[1] for piece in pieces for marker in piece.markers}
    assert qualities >= set(INTERVALS) - {"o"}
    assert len({len(piece.bar_starts()) for piece in pieces}) >= 8


def test_larger_corpora_begin_with_smaller_ones_and_have_more_styles(tmp_path):
    few, many = 2 * len(FAMILIES), 15 * len(FAMILIES) + 1  # three styles of five songs, and one
    paths, more = (
        compose_corpus(tmp_path / str(count), kind="groove", num_pieces=count, seed=0)
        for count in (few, many)
    )
    names = [path.relative_to(tmp_path / str(many)).with_suffix("").as_posix() for path in more]
    assert [f"{path.parent.name}/{path.stem}" for path in paths] == names[:few]
    family = names[0].partition("/")[0]
    own = [f"{style:02d}_{song}" for style in range(3) for song in range(5)] + ["03_0"]
    found = {name for name in names if name.startswith(f"{family}/")}
    assert found == {f"{family}/{family}-{number}" for number in own}
    assert len(set(names)) == many
    assert {name.partition("/")[0] for name in names} == set(FAMILIES)
    numbers = [map(int, path.stem.rpartition("-")[2].split("_")) for path in paths]
    folders = [path.parent.name for path in paths]
    scores = [compose_groove(0, *key, *n) for *key, n in zip(folders, numbers, strict=True)]
    assert [path.read_bytes() for path in paths] == [*map(dumps, scores)]


def test_complete_corpora_are_kept_and_others_composed_again(tmp_path, monkeypatch):
    def compose(num_pieces=3, seed=0):
        return compose_corpus(tmp_path, kind="pop", num_pieces=num_pieces, seed=seed)

    def states():
        return [(path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]

    paths = compose()
    assert [path.name for path in paths] == [f"pop_{i:04d}.mid" for i in range(3)]
    assert find_music(tmp_path) == paths
    assert [path.read_bytes() for path in paths] == [dumps(compose_pop(0, i)) for i in range(3)]
    whole, before = paths[1].read_bytes(), states()
    assert compose() == paths
    assert states() == before
    paths[1].unlink()
    assert compose()[1].read_bytes() == whole
    (tmp_path / "composed.json").write_text("{")  # damaged
    paths[1].write_bytes(b"")
    assert compose()[1].read_bytes() == whole
    (tmp_path / "mine.mid").touch()
    with monkeypatch.context() as patch:
        patch.setattr("musicgen.composer.corpus.write", None)
        with pytest.raises(TypeError):  # interrupted
            compose(2, seed=1)
    assert compose(2, seed=1)[1].read_bytes() == dumps(compose_pop(1, 1))
    assert (tmp_path / "mine.mid").exists()


@pytest.mark.parametrize(
    ("numeral", "tonic", "marker"),
    [
        ("I", 0, "C_M_C"), ("vi7", 0, "A_m7_A"), ("V7", 7, "D_7_D"), ("bVII", 2, "C_M_C"),
        ("iih7", 9, "B_/o7_B"), ("viio", 0, "B_o_B"), ("IVM7", 0, "F_M7_F"), ("V7/ii", 0, "A_7_A"),
        ("viio7/V", 0, "F#_o7_F#"), ("I+", 1, "C#_+_C#"), ("Vsus4", 0, "G_sus4_G"),
    ],
)  # fmt: skip
def test_roman_numerals(numeral, tonic, marker):
    assert spell(numeral, tonic).marker == marker


def test_scales_voicings_and_inversions():
    # Over E7 in C major, G sharp displaces G and the A a semitone above it.
    assert scale_over(Chord(4, "7", 4), Key(0, major=True)) == (0, 2, 4, 5, 8, 11)
    assert scale_over(Chord(0, "M", 0), Key(0, major=True)) == (0, 2, 4, 5, 7, 9, 11)
    # Voicings move least: C E G to F: C stays, E and G rise to F and A.
    assert close_voicing(Chord(5, "M", 5), (60, 64, 67), 57, 70, 3) == (60, 65, 69)
    # A seventh chord in three voices leaves its fifth out.
    assert {p % 12 for p in close_voicing(Chord(7, "7", 7), (60, 64, 67), 57, 70, 3)} == {7, 11, 5}
    # Inversions make the bass move by step.
    chords = [spell(numeral, 0) for numeral in ("I", "V", "vi")]
    assert [chord.bass for chord in lead_basses(chords, keep=set())] == [0, 11, 9]
    assert [chord.bass for chord in lead_basses(chords, keep={1})] == [0, 7, 9]


def test_chords_are_strummed_and_overlaps_at_one_pitch_removed():
    rows = [(0, 12, 64, 80), (0, 12, 60, 80), (24, 2, 72, 80), (0, 12, 67, 80)]
    chord = np.array(rows, NOTE)
    _strum(chord, 1)
    assert [row[:3] for row in chord.tolist()] == [
        (1, 11, 64),
        (0, 12, 60),
        (24, 2, 72),
        (2, 10, 67),
    ]
    rows = [(0, 8, 60, 50), (4, 4, 60, 60), (4, 2, 60, 70), (0, 8, 64, 50)]
    notes = notes_of_part(rows, step=10)
    assert notes.tolist() == [(0, 40, 60, 50), (0, 80, 64, 50), (40, 20, 60, 70)]


def test_patterns_hold_and_rest_and_those_of_every_family_parse():
    assert parse("1---..5-........") == [(0, 12, "1"), (18, 6, "5")]
    assert parse("x..x.xx..x.x")[1] == (12, 4, "x")
    assert parse(".") == parse("") == []
    for family in FAMILIES.values():
        others = " ".join((family.piano, family.guitar, family.strings)).split()
        drums, bass = " ".join(family.drums.values()).split(), family.bass.split()
        for symbols, pool in (("xXo", drums), ("13578a", bass), ("c01234", others)):
            assert all(symbol in symbols for pattern in pool for *_, symbol in parse(pattern))
        lengths = {len(pattern) for pattern in (*drums, *bass, *others) if pattern != "."}
        assert len(lengths) == 1, "one subdivision a family"
        for numerals in family.progressions:
            assert [spell(numeral, 0) for numeral in numerals.split()]
    assert {len(p) for family in FAMILIES.values() for p in family.bass.split()} == {12, 16}
