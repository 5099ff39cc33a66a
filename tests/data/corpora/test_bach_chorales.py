"""Bach's chorales of music21: their voices, and a split without melodies in common."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product

import pytest

from benchmarks.chorale_split import ROOT, SAME, likeness, runs, split_chorales
from musicgen.data.corpora import BachChorales
from musicgen.data.corpora.chorales import without_dorian_signature
from musicgen.midi import KeySignature, Score, Track, find_music, notes_from
from musicgen.tokenization import Chorale


@pytest.fixture(scope="module")
def corpus():
    return BachChorales()


def piece(corpus, name):
    (found,) = (piece for piece in corpus.pieces() if piece.name == name)
    return corpus.read_piece(found)


def test_the_split_lists_each_four_part_chorale_once(corpus):
    pieces = corpus.pieces()
    names = {piece.path.name for piece in pieces}
    result = json.loads((ROOT / "benchmarks/results/chorale_split.json").read_text("utf-8"))
    counts = {split: sum(p.split == split for p in pieces) for split in ("train", "val", "test")}
    assert counts == result["pieces"] == {"train": 334, "val": 39, "test": 34}
    assert len(names) == len({piece.name for piece in pieces}) == 407
    everything = {path.name for path in find_music(corpus.root)}
    assert names | set(result["left out"]) == everything
    assert all(piece.path.is_file() for piece in pieces)


def test_instruments_are_left_out_and_bars_start_after_the_pickup(corpus):
    score = piece(corpus, "bwv1.6")  # with a horn
    assert [track.name for track in score.tracks] == ["Soprano", "Alto", "Tenor", "Bass"]
    # Wie schön leuchtet der Morgenstern: the upbeat F4, then C5 A4 F4 C5 in the first whole bar.
    assert score.tracks[0].notes["pitch"][:5].tolist() == [65, 72, 69, 65, 72]
    assert score.tracks[0].notes["onset"][:2].tolist() == [3 * 480, 4 * 480]
    tokenizer = Chorale()
    tokens = tokenizer.encode(score)
    starts = tokenizer.bar_starts(tokens, tokenizer.bar_length(score))
    assert starts[1] == 16
    names = [tokenizer.vocabulary.token(int(token)) for token in tokens[1 + 16 * 4 :][:1]]
    assert names == ["Pitch_72"]


@pytest.mark.parametrize(
    ("key", "last", "fifths"), [((-1, True), 43, -2), ((-1, True), 45, -1), ((0, False), 41, 0)]
)
def test_minor_pieces_with_the_flats_of_dorian_are_in_their_key(key, last, fifths):
    """One flat and an end on G: not D minor, but G minor; an end on the dominant is none."""
    bass = Track("Bass", notes=notes_from([(0, 480, 50, 80), (480, 480, last, 80)]))
    score = Score(480, [Track("Soprano"), bass], key_signatures=[KeySignature(0, *key)])
    found = without_dorian_signature(score)
    assert found.key_signatures == [KeySignature(0, fifths, key[1])]
    assert found.tracks == score.tracks


def test_what_belongs_to_the_training_pieces_of_jsb_is_for_training():
    sources = dict.fromkeys("abcd", "music21") | {"t": "train", "v": "val", "w": "val"}
    group = {"a": 0, "t": 0, "v": 0, "b": 1, "w": 1, "c": 2, "d": 2}
    expected = {"train": ["a"], "val": ["b"], "test": ["c", "d"]}
    assert split_chorales(sources, group) == expected


@pytest.mark.slow
def test_no_melody_and_no_bass_is_in_two_splits(corpus):
    by_split = {"train": [], "val": [], "test": []}
    pieces = [
        p for i, p in enumerate(corpus.pieces()) if i % (48 if p.split == "train" else 4) == 0
    ]
    with ThreadPoolExecutor(2) as threads:  # each score is read by a process of its own
        for each, score in zip(pieces, threads.map(corpus.read_piece, pieces), strict=True):
            by_split[each.split].append(runs(score))
    for one, other in combinations(by_split.values(), 2):
        assert max(likeness(*pair) for pair in product(one, other)) < SAME
