import numpy as np
import pytest

from musicgen.composer import compose_groove, compose_pop
from musicgen.data.preparation.duplicates import sketch
from musicgen.data.preparation.shared import (
    LineHashes,
    PassageHashes,
    find_shared,
    line_hashes,
    top_line,
)
from musicgen.midi import Score, Track, notes_from
from tests.data.preparation.test_duplicates import changed


def line(pitches, *, start=0, step=240):
    """Return the rows of a line of notes of equal length."""
    return [(start + i * step, step, int(p), 64) for i, p in enumerate(pitches)]


def song(melody, seed):
    """Return a melody, in eighths, over chords of its own."""
    rng = np.random.default_rng(seed)
    roots = rng.integers(36, 46, len(melody) // 4)
    chords = [(960 * i, 960, int(r) + d, 50) for i, r in enumerate(roots) for d in (0, 4, 7)]
    return Score(480, [Track("a", notes=notes_from(line(melody) + chords))])


def walk(seed, length=120):
    """Return the pitches of a random melody within 64 to 80, without repeated notes."""
    rng, pitches = np.random.default_rng(seed), [72]
    while len(pitches) < length:
        pitch = pitches[-1] + rng.choice([-4, -3, -2, -1, 1, 2, 3, 4])
        pitches += [pitch] if 64 <= pitch <= 80 else []
    return np.array(pitches)


def medley(*scores):
    rows, start = [], 0
    for score in scores:
        rows += [(n["onset"] + start, *list(n)[1:]) for t in score.tracks for n in t.notes]
        start += -(-score.end // 1920) * 1920
    return Score(480, [Track("a", notes=notes_from(rows))])


def find(scores, splits):
    return find_shared(LineHashes(map(line_hashes, scores)), splits)


def test_twins_covers_and_medleys_are_found_across_splits_alone():
    songs = [song(walk(i), i) for i in range(6)]
    twin, cover = changed(songs[0], shift=-5), song(walk(1) + 3, seed=99)
    held_out = [
        twin,
        cover,
        medley(songs[4], changed(songs[2], shift=2), songs[5]),
        song(walk(9), 9),
    ]
    pairs = find([*songs, *held_out], ["train"] * 4 + ["test"] * 2 + ["val"] * 4)
    assert [(p.piece, p.other, p.kind) for p in pairs] == [
        *[(4, 8, "texture"), (5, 8, "texture")],  # test pieces in a medley for validation
        *[(6, 0, "texture"), (7, 1, "melody"), (8, 2, "texture")],
    ]
    assert all(pair.share > 0.95 for pair in pairs)
    assert [pair.part for pair in pairs] == pytest.approx([1 / 3, 1 / 3, 1, 1, 3], rel=0.4)
    assert find([*songs, *held_out], ["train"] * 10) == []


def test_the_share_is_that_of_the_runs_in_common():
    # With 64 runs or fewer, a line has all of its hashes.
    for seed in range(4):
        own, more = walk(seed, 60), walk(50 + seed, 30)
        other = np.concatenate([own[: 32 + 3 * seed], more - more[0] + own[31 + 3 * seed] + 1])
        scores = [Score(480, [Track(notes=notes_from(line(p)))]) for p in (own, other)]
        expected = {}
        for kind, first, length in (("melody", 1, 8), ("texture", 0, 16)):
            runs = [
                {tuple(np.diff(p)[i : i + length]) for i in range(first, len(p) - length)}
                for p in (own, other)
            ]
            expected[kind] = len(runs[0] & runs[1]) / min(map(len, runs))
        [pair] = find(scores, ["train", "val"])
        assert pair.kind == ("texture" if expected["texture"] >= 1 / 3 else "melody")
        assert pair.share == pytest.approx(expected[pair.kind])


def test_the_top_line_leaves_out_what_is_below():
    rows = [(0, 480, 72, 64), (240, 240, 60, 64), (480, 240, 74, 64), (480, 240, 62, 64)]
    rows += [(720, 240, 60, 64), (960, 240, 71, 64), (9000, 240, 50, 64)]
    assert top_line(notes_from(rows), 8 * 480)["pitch"].tolist() == [72, 74, 71, 50]
    assert top_line(notes_from(rows), 0)["pitch"].tolist() == [72, 74, 60, 71, 50]


def test_figures_and_basses_are_no_melodies():
    figure = Score(480, [Track(notes=notes_from(line([60, 64, 67, 64] * 60)))])
    assert len(line_hashes(figure)) == 0
    bass = Score(480, [Track(notes=notes_from(line(walk(0) - 36)))])
    assert set(line_hashes(bass) & np.uint64(255)) == {0}


def test_music_of_other_songs_and_families_is_not_shared():
    pops = [compose_pop(3, i) for i in range(24)]
    grooves = [compose_groove(3, f, 0, i) for f in ("rock", "samba", "swing") for i in range(4)]
    assert find(pops, ["train", "val"] * 12) == []
    assert find(grooves, ["train"] * 4 + ["val"] * 4 + ["test"] * 4) == []


def test_sketches_find_twins_and_pieces_in_medleys():
    songs = [song(walk(i), i) for i in range(6)]
    held_out = [changed(songs[0], shift=4), medley(songs[4], changed(songs[1], shift=2), songs[5])]
    sketches = [sketch(score) for score in [*songs, *held_out]]
    pieces = [0, 1, 2, 3, 6, 7]
    pairs = find_shared(PassageHashes(sketches, pieces), ["train"] * 4 + ["val"] * 2)
    assert [(pair.piece, pair.other) for pair in pairs] == [(4, 0), (5, 1)]
