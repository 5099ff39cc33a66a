import numpy as np
import pytest

from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.data.corpora import SPLITS, Piece
from musicgen.data.preparation.splits import NO_PASSAGE, find_duplicates, similarity, sketch
from musicgen.midi import Score, Track, notes_from, read, write
from musicgen.tokenization import REMI
from tests.data.builders import prepare


def changed(score, *, shift=0, delay=0, scale=1, resolution=1):
    """Return the same music: transposed, later, louder, in other ticks, with reversed tracks."""
    tracks = []
    for track in score.tracks:
        notes = track.notes.copy()
        if not track.is_drum:
            notes["pitch"] += shift
        notes["onset"] = (notes["onset"] + delay) * resolution
        notes["duration"] = notes["duration"] * resolution // 2
        notes["velocity"] = np.clip(notes["velocity"] * scale, 1, 127)
        tracks.append(Track("x", 3, track.is_drum, notes))
    return Score(score.ticks_per_beat * resolution, tracks[::-1])


def test_the_same_music_has_the_same_sketch():
    for score in (compose_pop(0, 1), compose_groove(0, next(iter(FAMILIES)), 0, 0)):
        own = sketch(score)
        assert (np.diff(own[own < NO_PASSAGE].astype(float)) > 0).all()
        for variant in (
            changed(score, shift=5),
            changed(score, shift=-3, scale=0.5),
            changed(score, delay=480 * 3),
            changed(score, resolution=2),
        ):
            assert np.array_equal(sketch(variant), own)


def test_the_estimate_is_near_the_share_of_passages_in_common():
    rng = np.random.default_rng(0)
    for shared, own in [(100, 0), (60, 20), (30, 60), (0, 90)]:
        common = rng.integers(0, 2**63, shared)
        estimates = []
        for _ in range(60):
            one, other = (
                np.sort(np.append(common, rng.integers(0, 2**63, own)).astype(np.uint64))[:32]
                for _ in range(2)
            )
            estimates.append(similarity(one, other))
        assert np.mean(estimates) == pytest.approx(shared / (shared + 2 * own), abs=0.12)


def test_a_changed_note_and_a_missing_end_do_not_matter_much():
    score = compose_pop(0, 2)
    almost = changed(score)
    almost.tracks[0].notes["pitch"][100] += 1
    assert similarity(sketch(score), sketch(almost)) > 0.7
    most = score.clip(0, score.end * 4 // 5)
    assert similarity(sketch(score), sketch(most)) > 0.6
    assert similarity(sketch(score), sketch(compose_pop(0, 3))) < 0.2


def test_too_little_music_is_no_duplicate_and_a_common_passage_is_ignored():
    for rows in ([], [(480 * i, 100, 60, 80) for i in range(3)]):
        own = sketch(Score(480, [Track(notes=notes_from(rows))]))
        assert (own == NO_PASSAGE).all()
        assert find_duplicates(np.stack([own, own]), range(2)) == [0, 1]
    sketches = np.full((100, 32), NO_PASSAGE)
    sketches[:, 0] = 5
    sketches[:, 1] = np.arange(100) + 10
    assert find_duplicates(sketches, range(100)) == list(range(100))


def test_groups_equal_those_of_comparing_all_pairs():
    rng = np.random.default_rng(1)
    for _ in range(20):
        bases = rng.integers(0, 2**63, (6, 40)).astype(np.uint64)
        rows = []
        for _ in range(30):
            own = bases[rng.integers(6)].copy()
            change = rng.random(40) < rng.choice([0, 0.1, 0.3, 0.6])
            own[change] = rng.integers(0, 2**63, change.sum())
            rows.append(np.sort(own)[:32])
        sketches = np.stack(rows)
        label = list(range(30))
        for i in range(30):
            for j in range(i):
                if similarity(sketches[i], sketches[j]) >= 0.5 and label[i] != label[j]:
                    old, new = max(label[i], label[j]), min(label[i], label[j])
                    label = [new if value == old else value for value in label]
        assert find_duplicates(sketches, range(30)) == label


def test_duplicates_share_the_split_of_the_first_by_name(tmp_path, capsys):
    pieces = []
    for i in range(24):
        score = compose_pop(0, i // 2).clip(0, 16 * 1920)
        name = f"{'b' if i % 2 else 'a'}{i // 2}.mid"
        write(changed(score, shift=i % 2 * 4) if i % 2 else score, tmp_path / name)
        pieces.append(Piece(name, tmp_path / name, name))
    cache = prepare(pieces[::-1], read, REMI(), tmp_path / "cache", fractions=(0.3, 0.3))
    where = dict(zip(cache.names, cache.splits, strict=True))
    assert set(where.values()) == set(SPLITS)
    assert all(where[f"b{i}.mid"] == where[f"a{i}.mid"] for i in range(12))
    alone = prepare(pieces[::2], read, REMI(), tmp_path / "cache", fractions=(0.3, 0.3))
    assert dict(zip(alone.names, alone.splits, strict=True)).items() <= where.items()
    assert "duplicates: 12, in the splits of their originals: b" in capsys.readouterr().err
    report = (cache.folder / "report.csv").read_text()
    assert all(f",a{i}.mid," in report for i in range(12))
