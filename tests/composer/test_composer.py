"""Composed corpora are reproducible, playable and structured."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pretty_midi
import pytest
import symusic
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.composer import FAMILIES, compose_band, compose_corpus, compose_groove, compose_pop
from musicgen.composer.groove.bands import _strum
from musicgen.composer.groove.patterns import parse
from musicgen.composer.groove.song import PARTS
from musicgen.composer.harmony import (
    INTERVALS,
    ROOTS,
    Chord,
    Key,
    lead_basses,
    scale_over,
    spell,
    voice,
)
from musicgen.composer.render import remove_overlaps
from musicgen.evaluation.descriptors import chord_changes
from musicgen.metrics.key import find_key, in_key_share
from musicgen.metrics.listening import listening_measures
from musicgen.metrics.style import style_similarity
from musicgen.midi import Score, dumps, find_midi, pitched_notes

seeds = st.integers(0, 2**40)
families = st.sampled_from(sorted(FAMILIES))


def test_same_seed_gives_the_same_bytes_in_every_process():
    pieces = [compose_pop(3, i) for i in range(6)]
    pieces += [compose_groove(3, family, 1, 2) for family in FAMILIES]
    pieces += [compose_band(3, band, 1) for band in range(5)]
    here = hashlib.sha256(b"".join(map(dumps, pieces))).hexdigest()
    code = """
import hashlib
from musicgen.composer import FAMILIES, compose_band, compose_groove, compose_pop
from musicgen.midi import dumps
pieces = [compose_groove(3, family, 1, 2) for family in FAMILIES]
pieces += [compose_band(3, band, 1) for band in range(5)]
pieces = [compose_pop(3, i) for i in range(6)] + pieces
print(hashlib.sha256(b"".join(map(dumps, pieces))).hexdigest())
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert there.strip() == here


def test_global_random_state_is_not_used():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = compose_pop(0, 0)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert compose_pop(0, 0) == first


def test_pieces_differ():
    pieces = [compose_pop(seed, index) for seed in range(3) for index in range(10)]
    pieces += [
        compose_groove(seed, "funk", style, song)
        for seed in range(2) for style in range(2) for song in range(2)
    ]  # fmt: skip
    assert len({dumps(piece) for piece in pieces}) == len(pieces)


@settings(max_examples=40)
@given(seeds, st.integers(0, 10_000))
def test_properties_of_pop_pieces(seed, index):
    score = compose_pop(seed, index)
    bar = 4 * score.ticks_per_beat
    assert score.ticks_per_beat == 480
    assert [(track.name, track.program, track.is_drum) for track in score.tracks] == [
        ("Piano", 0, False)
    ]
    assert [tuple(signature) for signature in score.time_signatures] == [(0, 4, 4)]
    assert 24 <= len(score.bar_starts()) <= 64
    notes = score.tracks[0].notes
    assert all_within(notes["onset"], range(0, score.end, 120))
    assert all_within(notes["duration"], range(120, bar + 1, 120))
    assert all_within(notes["pitch"], range(21, 109))
    assert all_within(notes["velocity"], range(40, 87, 2))
    assert_playable(score)

    bpm = score.tempos["bpm"]
    assert all_within(bpm, range(32, 225, 3))
    assert (np.diff(bpm) != 0).all()
    assert (np.diff(score.tempos["tick"], prepend=-1) > 0).all()
    assert score.tempos["tick"][0] == 0

    assert score.markers[0].tick == 0
    for marker in score.markers:
        root, quality, bass = marker.text.split("_")
        tones = Chord(ROOTS.index(root), quality, 0).pitch_classes
        assert ROOTS.index(bass) in tones
        assert marker.tick % (bar // 2) == 0
    texts = [marker.text for marker in score.markers]
    assert all(a != b for a, b in pairwise(texts))


@settings(max_examples=40)
@given(seeds, families, st.integers(0, 50), st.integers(0, 50))
def test_properties_of_grooves(seed, family, style, song):
    score = compose_groove(seed, family, style, song)
    assert tuple(track.name for track in score.tracks) == PARTS
    assert [track.is_drum for track in score.tracks] == [name == "Drums" for name in PARTS]
    assert 24 * 1920 - 1920 < score.end <= 32 * 1920
    assert all(len(track.notes) for track in score.tracks[:2])
    for track in score.tracks:
        notes = track.notes
        assert all_within(notes["onset"], range(0, score.end, 40))
        assert all_within(notes["duration"], range(40, 1921, 40))
        assert all_within(notes["pitch"], range(21, 109))
        assert all_within(notes["velocity"], range(1, 128))
    assert_playable(score)


@settings(max_examples=40)
@given(seeds, st.integers(0, 50), st.integers(0, 50))
def test_properties_of_bands(seed, band, song):
    score = compose_band(seed, band, song)
    assert tuple(track.name for track in score.tracks) == PARTS
    for track in score.tracks:
        assert all_within(track.notes["onset"], range(0, score.end, 40))
        assert all_within(track.notes["duration"], range(40, 1921, 40))
        assert all_within(track.notes["pitch"], range(21, 109))
        assert all_within(track.notes["velocity"], range(20, 128))
    assert_playable(score)


def test_songs_of_a_band_share_their_style_and_bands_differ_more_than_grooves():
    songs = [[compose_band(0, band, song) for song in (0, 1)] for band in range(16)]
    same = [style_similarity(first, second) for first, second in songs]
    others = [style_similarity(a[0], b[1]) for a, b in pairwise(songs)]
    grooves = [compose_groove(0, family, 0, 0) for family in FAMILIES]
    between_grooves = [style_similarity(a, b) for a, b in pairwise(grooves)]
    assert np.nanmean(same) > 0.75
    assert np.nanmean(others) < np.nanmean(between_grooves) < np.nanmean(same)


def test_strummed_chords_begin_one_note_after_another():
    rows = np.array([(0, 12, 64, 80), (0, 12, 60, 80), (24, 2, 72, 80), (0, 12, 67, 80)])
    _strum(rows, 1)
    assert rows[:, :3].tolist() == [[1, 11, 64], [0, 12, 60], [24, 2, 72], [2, 10, 67]]


def all_within(values: np.ndarray, allowed: range) -> bool:
    return set(values.tolist()) <= set(allowed)


def assert_playable(score: Score) -> None:
    """No note lasts into the next of its pitch, and two readers find all notes."""
    for track in score.tracks:
        for pitch in np.unique(track.notes["pitch"]):
            same = track.notes[track.notes["pitch"] == pitch]
            assert (same["onset"][1:] >= (same["onset"] + same["duration"])[:-1]).all()
    reread = symusic.Score.from_midi(dumps(score))
    assert sum(len(track.notes) for track in reread.tracks) == score.num_notes


def test_chord_markers_match_the_notes():
    """Where a chord is marked, its bass sounds lowest."""
    lowest_is_bass = []
    for index in range(20):
        score = compose_pop(0, index)
        notes = score.tracks[0].notes
        for marker in score.markers:
            struck = notes[notes["onset"] == marker.tick]
            if len(struck) and struck["pitch"].min() < 48:
                bass = ROOTS.index(marker.text.split("_")[2])
                lowest_is_bass.append(struck["pitch"].min() % 12 == bass)
    assert np.mean(lowest_is_bass) > 0.98


def test_songs_repeat_their_own_material():
    """Bars recur within a piece far more often than in other pieces."""
    pieces = [bars_of(compose_pop(0, index)) for index in range(12)]
    own = np.mean([len(bars) - len(set(bars)) > 0.15 * len(bars) for bars in pieces])
    foreign = [len(set(a) & set(b)) for i, a in enumerate(pieces) for b in pieces[:i]]
    assert own > 0.7
    assert np.mean(foreign) < 0.5


def bars_of(score: Score) -> list[frozenset[tuple[int, int]]]:
    """The notes of every bar as a set of (onset in the bar, pitch)."""
    notes = score.tracks[0].notes
    bars = []
    for start in score.bar_starts().tolist():
        inside = notes[(notes["onset"] >= start) & (notes["onset"] < start + 1920)]
        onsets, pitches = (inside["onset"] - start).tolist(), inside["pitch"].tolist()
        bars.append(frozenset(zip(onsets, pitches, strict=True)))
    return bars


def test_pop_pieces_are_near_real_ones():
    """Means within what the songs of POP909 have; data/README.md gives their figures."""
    found = []
    for index in range(20):
        score = compose_pop(0, index)
        in_key = in_key_share(score, find_key(pitched_notes(score)))
        found.append({"in_key": in_key, **listening_measures(score, chord_changes(score))})
    mean = {name: np.nanmean([row[name] for row in found]) for name in found[0]}
    assert mean["in_key"] > 0.95
    assert 0.7 < mean["chord_tone_share"] < 0.9  # not every strong note is a chord tone
    assert mean["chord_fit"] > 0.9
    assert 1.2 < mean["chords_per_bar"] < 1.6
    assert 16 < mean["notes_per_bar"] < 24
    assert 35 < mean["melody_range"] < 55
    assert mean["melody_rhythms"] > 0.25
    assert mean["motif_return_8"] > 0.03
    assert mean["motif_return_16"] > 0.03


def test_corpus_is_varied():
    pieces = [compose_pop(0, index) for index in range(60)]
    assert len({piece.markers[-1].text.split("_")[0] for piece in pieces}) == 12
    assert len({piece.tempos["bpm"][0] for piece in pieces}) >= 15
    qualities = {marker.text.split("_")[1] for piece in pieces for marker in piece.markers}
    assert qualities >= set(INTERVALS) - {"o"}
    assert len({len(piece.bar_starts()) for piece in pieces}) >= 8


def test_styles_of_a_family_resemble_each_other():
    """The nearest style by the drums' onset profile is mostly one of the same family."""
    keys = [(family, style) for family in FAMILIES for style in range(3)]
    profiles = np.array([drum_profile(compose_groove(0, *key, 0)) for key in keys])
    similarity = profiles @ profiles.T - 2 * np.eye(len(keys))
    nearest = [keys[i][0] for i in similarity.argmax(1)]
    assert np.mean([family == key[0] for family, key in zip(nearest, keys, strict=True)]) > 0.6
    # Songs of one style differ in the number of phrases and the fills only.
    for key, profile in zip(keys, profiles, strict=True):
        assert profile @ drum_profile(compose_groove(0, *key, 1)) > 0.9


def drum_profile(score: Score) -> np.ndarray:
    notes = score.tracks[1].notes
    counts = np.zeros((48, 128))
    np.add.at(counts, (notes["onset"] // 40 % 48, notes["pitch"]), 1)
    return counts.ravel() / np.linalg.norm(counts)


def assert_hold(paths, scores) -> None:
    """Files hold these pieces, which another reader finds in them."""
    for path, score in zip(paths, scores, strict=True):
        assert path.read_bytes() == dumps(score)
        found = pretty_midi.PrettyMIDI(str(path)).instruments
        assert sum(len(instrument.notes) for instrument in found) == score.num_notes


def test_corpus_on_disk(tmp_path):
    paths = compose_corpus(tmp_path, kind="pop", num_pieces=5, seed=1)
    assert [path.name for path in paths] == [f"pop_{i:04d}.mid" for i in range(5)]
    assert find_midi(tmp_path) == paths
    assert_hold(paths, [compose_pop(1, index) for index in range(5)])


def test_families_are_folders(tmp_path):
    count = 2 * len(FAMILIES)
    paths = compose_corpus(tmp_path / "new", kind="groove", num_pieces=count, seed=0)
    assert len(FAMILIES) >= 12
    assert len(set(paths)) == count
    parts = [(path.parent.name, *path.stem.rpartition("-")[::2]) for path in paths]
    assert {family for family, *_ in parts} == set(FAMILIES)
    assert all(folder == family for folder, family, _ in parts)
    numbers = [map(int, number.split("_")) for *_, number in parts]
    scores = [compose_groove(0, p[0], *n) for p, n in zip(parts, numbers, strict=True)]
    assert_hold(paths, scores)
    more = compose_corpus(tmp_path / "more", kind="groove", num_pieces=count + 3, seed=0)
    assert [p.relative_to(tmp_path / "more") for p in more][:count] == [
        p.relative_to(tmp_path / "new") for p in paths
    ]


def test_larger_corpora_have_more_styles(tmp_path):
    count = len(FAMILIES) * 3 * 5 + 1  # three styles of five songs, and a song of the next style
    stems = [p.stem for p in compose_corpus(tmp_path, kind="groove", num_pieces=count, seed=0)]
    family = stems[0].partition("-")[0]
    assert len(set(stems)) == count
    own = {stem for stem in stems if stem.partition("-")[0] == family}
    expected = {f"{family}-{style:02d}_{song}" for style in range(3) for song in range(5)}
    assert own == {*expected, f"{family}-03_0"}


def test_complete_corpora_are_kept_and_others_composed_again(tmp_path, monkeypatch):
    def compose(num_pieces=3, seed=0):
        return compose_corpus(tmp_path, kind="pop", num_pieces=num_pieces, seed=seed)

    def states():
        return [(path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]

    paths = compose()
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


def test_applied_dominants_raise_the_leading_note():
    # Over E7 in C major, G sharp displaces G and the A a semitone above it.
    assert scale_over(Chord(4, "7", 4), Key(0, "major")) == (0, 2, 4, 5, 8, 11)
    assert scale_over(Chord(0, "M", 0), Key(0, "major")) == (0, 2, 4, 5, 7, 9, 11)


def test_voicings_move_least():
    # C E G to F: C stays, E and G rise to F and A.
    assert voice(Chord(5, "M", 5), (60, 64, 67), 57, 70, 3) == (60, 65, 69)
    # A seventh chord in three voices leaves its fifth out.
    assert {p % 12 for p in voice(Chord(7, "7", 7), (60, 64, 67), 57, 70, 3)} == {7, 11, 5}


def test_inversions_make_the_bass_move_by_step():
    chords = [spell(numeral, 0) for numeral in ("I", "V", "vi")]
    assert [chord.bass for chord in lead_basses(chords, keep=set())] == [0, 11, 9]
    assert [chord.bass for chord in lead_basses(chords, keep={1})] == [0, 7, 9]


def test_patterns_hold_and_rest():
    assert parse("1---..5-........") == [(0, 12, "1"), (18, 6, "5")]
    assert parse("x..x.xx..x.x")[1] == (12, 4, "x")
    assert parse("") == []


def test_removes_overlaps_at_one_pitch():
    notes = remove_overlaps(
        [(0, 8, 60, 50), (4, 4, 60, 60), (4, 2, 60, 70), (0, 8, 64, 50)], step=10
    )
    assert notes.tolist() == [(0, 40, 60, 50), (0, 80, 64, 50), (40, 20, 60, 70)]


def test_every_pattern_of_every_family_parses():
    for family in FAMILIES.values():
        others = (*family.piano, *family.guitar, *family.strings)
        drums = [pattern for pool in family.drums.values() for pattern in pool]
        for symbols, pool in (("xXo", drums), ("13578a", family.bass), ("c01234", others)):
            assert all(hit.symbol in symbols for pattern in pool for hit in parse(pattern))
        lengths = {len(pattern) for pattern in (*drums, *family.bass, *others) if pattern}
        assert len(lengths) == 1, "one subdivision a family"
        for numerals in family.progressions:
            assert [spell(numeral, 0) for numeral in numerals.split()]
    assert {len(p) for family in FAMILIES.values() for p in family.bass} == {12, 16}
