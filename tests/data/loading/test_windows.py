from itertools import chain

import numpy as np
import pytest
import torch

from musicgen.batches import IGNORED, StreamBatches
from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.data.corpora import Piece
from musicgen.data.loading import EvalWindows, TrainingWindows, collate
from musicgen.midi import read, write
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.builders import prepare

NUM_PIECES = 6
LENGTH = 48


def cache_of(scores, tokenizer, folder):
    """The cache of pieces."""
    pieces = [Piece(f"{i}.mid", folder / f"{i}.mid", str(i)) for i in range(len(scores))]
    for score, piece in zip(scores, pieces, strict=True):
        write(score, piece.path)
    return prepare(pieces, read, tokenizer, folder / "cache")


@pytest.fixture(scope="module", params=["remi", "groove2groove"])
def corpus(request, tmp_path_factory):
    """A tokenizer and the cache of a few composed pieces."""
    if request.param == "remi":
        tokenizer, scores = REMI(), [compose_pop(0, i) for i in range(NUM_PIECES)]
    else:
        families = [*FAMILIES][:NUM_PIECES]
        tokenizer, scores = Groove2Groove(), [compose_groove(0, x, 0, 0) for x in families]
    short = [score.clip(0, 8 * 4 * score.ticks_per_beat) for score in scores]
    return tokenizer, cache_of(short, tokenizer, tmp_path_factory.mktemp("windows"))


UNMOVED = REMI(max_transposition=0)


def windows(corpus, seed=0, pieces=(0, 1, 2, 3, 4, 5), length=LENGTH):
    tokenizer, cache = corpus
    return TrainingWindows(cache, list(pieces), tokenizer, length, seed)


def test_an_item_depends_on_the_seed_and_its_number_alone(corpus):
    forwards = windows(corpus)
    expected = [forwards[i][0].tolist() for i in range(30)]
    np.random.default_rng(5)
    torch.manual_seed(5)
    backwards = windows(corpus)
    assert [backwards[i][0].tolist() for i in reversed(range(30))] == expected[::-1]
    other = windows(corpus, seed=1)
    assert sum(other[i][0].tolist() == expected[i] for i in range(30)) < 5
    assert len({tuple(item) for item in expected}) > 25, "epochs do not repeat themselves"


def test_each_epoch_visits_every_piece_once(corpus):
    stream = windows(corpus, pieces=(5, 3, 2, 0))
    epochs = [tuple(stream.piece(i + j) for j in range(4)) for i in range(0, 80, 4)]
    assert all(sorted(epoch) == [0, 2, 3, 5] for epoch in epochs)
    assert len(set(epochs)) > 10
    assert all(stream[i][0][0] in corpus[1].mapped(stream.piece(i)) for i in range(20))


@pytest.mark.parametrize("length", [7, LENGTH, 100_000])
def test_windows_are_grammatical_and_within_their_length(corpus, length):
    stream, grammar = windows(corpus, length=length), corpus[0].grammar()
    crops = [stream[i][0] for i in range(NUM_PIECES if length > 100 else 24)]
    assert all(2 <= len(crop) <= length + 1 for crop in crops)
    assert length > 100 or max(map(len, crops)) == length + 1
    for crop in crops:
        state = grammar.start(torch.from_numpy(crop)[None])
        assert state.finished.item() == (crop[-1] == grammar.eos)
        assert length < 100 or state.finished.item()


def test_random_windows_are_full_and_uniform_over_their_bars(tmp_path):
    pieces = cache_of([compose_pop(0, 0)], UNMOVED, tmp_path)
    (tokens,), starts = pieces, pieces.crop_starts(0)
    length = len(tokens) // 3
    bars = starts[:, 0].tolist()
    full = [start for start in bars if start + length + 1 < len(tokens)]
    last = bars[len(full)]  # from here on the piece ends within the window
    assert len(full) > 20
    stream = TrainingWindows(pieces, [0], UNMOVED, length, 0)
    counts = dict.fromkeys([*full, last], 0)
    rows = {tuple(tokens[start : start + length + 1].tolist()): start for start in counts}
    for item in range(4000):
        counts[rows[tuple(stream[item][0].tolist())]] += 1
    expected = 4000 * 15 / 16 / len(counts)
    end = counts.pop(last)
    assert all(abs(n - expected) < 5 * expected**0.5 for n in counts.values())
    assert end == pytest.approx(4000 / 16 + expected, abs=100)


def test_earlier_bars_replace_what_augmentation_removes(tmp_path, monkeypatch):
    """Without velocities the end of a piece is short; only what was drawn as the end stays so."""
    tokenizer = REMI(max_transposition=0)
    pieces = cache_of([compose_pop(0, 0)], tokenizer, tmp_path)
    velocities = tokenizer.families["Velocity"]

    def crop(tokens, starts, length, **options):
        rest = tokens[starts[0, 0] :]
        return rest[~np.isin(rest, velocities)][:length]

    monkeypatch.setattr(tokenizer.augmentation, "crop", crop)
    length = len(pieces[0]) // 3
    stream = TrainingWindows(pieces, [0], tokenizer, length, 0)
    lengths = [len(stream[item][0]) for item in range(1000)]
    num_starts = np.count_nonzero(pieces.crop_starts(0)[:, 0] < len(pieces[0]) - length)
    share_of_ends = 1 / 16 + 15 / 16 / num_starts
    assert np.mean(np.array(lengths) <= length) == pytest.approx(share_of_ends, abs=0.04)


def test_windows_from_the_beginning_may_skip_groups_of_four_bars(tmp_path):
    scores = [compose_pop(3, 0), compose_pop(3, 1).clip(0, 7 * 4 * 480)]
    pieces = cache_of(scores, UNMOVED, tmp_path)
    starts = pieces.crop_starts(0)[:, 0]
    assert len(pieces.crop_starts(1)) == 7

    def beginnings(piece, **kwargs):
        stream = TrainingWindows(pieces, [piece], UNMOVED, 64, 0, window="beginning", **kwargs)
        windows = [tuple(stream[item][0].tolist()) for item in range(600)]
        bars = {tuple(pieces[piece][s : s + 65]): i for i, s in enumerate(starts[::-1])}
        return windows, bars

    windows, _ = beginnings(0)
    assert {*windows} == {tuple(pieces[0][:65])}
    windows, _ = beginnings(1, skip_beginning=1)
    assert {*windows} == {tuple(pieces[1][:65])}, "fewer than eight bars"
    windows, bars = beginnings(0, skip_beginning=0.25)
    skipped = np.array([len(starts) - 1 - bars[window] for window in windows])
    assert np.mean(skipped == 0) == pytest.approx(0.75, abs=0.06)
    assert {*skipped} == {4 * i for i in range(len(starts) // 2 // 4 + 1)}


def test_scrambled_windows_have_other_notes_and_bars_that_return(tmp_path):
    pieces = cache_of([compose_pop(4, 0)], UNMOVED, tmp_path)
    plain = pieces[0]
    of_map = [UNMOVED.families[name] for name in ("Pitch", "Duration", "Chord")]

    def rhythm(window):
        """Return each whole bar's tokens, with those that a map changes as one."""
        return {*map(bytes, bars(np.where(np.isin(window, list(chain(*of_map))), -1, window)))}

    def bars(window):
        return np.split(window, np.flatnonzero(window == UNMOVED.families["Bar"][0]))[:-1]

    def num_returning(window):
        return len(bars(window)) - len({*map(bytes, bars(window))})

    scrambled = []
    stream = TrainingWindows(pieces, [0], UNMOVED, len(plain), 0, scramble=0.3)
    for item in range(100):
        window, _ = stream[item]
        if not np.array_equal(window, plain):
            scrambled.append(window)
        assert len(window) <= len(plain) + 1
        assert rhythm(window) <= rhythm(plain), "whole bars, only these families changed"
        for ids in of_map:
            assert {*window[np.isin(window, [*ids])]} <= {*plain}, "drawn from the piece's own"
    assert 15 < len(scrambled) < 45
    assert np.mean([*map(num_returning, scrambled)]) > num_returning(plain) + 1


def test_eval_windows_are_ordered_by_length(corpus):
    _, cache = corpus
    beginnings = EvalWindows(cache, [4, 1, 5], 100_000)
    whole = [beginnings[i][0].tolist() for i in range(len(beginnings))]
    assert sorted(whole) == sorted(cache[i].tolist() for i in (4, 1, 5))
    assert sorted(map(len, whole), reverse=True) == list(map(len, whole))
    short = EvalWindows(cache, [4, 1, 5], 9)
    assert [short[i][0].tolist() for i in range(3)] == [cache[i][:10].tolist() for i in (4, 1, 5)]


def test_a_window_does_not_read_the_whole_piece(corpus, monkeypatch):
    _, cache = corpus
    stream, reads, mapped = windows(corpus, length=16), [], cache.mapped

    class Disk:
        """Records the sizes of reads, and supports slices only."""

        def __init__(self, tokens):
            self.tokens = tokens

        def __len__(self):
            return len(self.tokens)

        def __getitem__(self, key):
            reads.append(len(self.tokens[key]))
            return self.tokens[key]

    monkeypatch.setattr(cache, "mapped", lambda piece: Disk(mapped(piece)))
    for item in range(40):
        assert len(stream[item][0]) <= 17
    assert 0 < max(reads) <= 120 < min(cache.lengths)


def test_an_interrupted_epoch_ends_where_it_would_have():
    position = 0
    batches = StreamBatches(2, 5, lambda: position)
    assert len(batches) == 5
    seen = []
    for stop in (5, 8, 10, 15):  # the second and third time within one epoch
        for batch in batches:
            seen.append(batch)
            position += 1
            if position == stop:
                break
    assert seen == [[2 * i, 2 * i + 1] for i in range(15)]
    position = 13
    assert list(batches) == [[26, 27], [28, 29]]


def test_collate_pads_at_the_end_and_shifts_by_one():
    windows = [(np.array([5, 6, 7, 8]), 2), (np.array([5, 9])[::-1], 3)]
    batch = collate(windows, 3, None)
    assert batch.tokens.tolist() == [[5, 6, 7], [9, 3, 3]]
    assert batch.targets.tolist() == [[6, 7, 8], [5, IGNORED, IGNORED]]
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.positions is None  # they count tokens
    assert batch.num_targets == 4
    loss = torch.nn.functional.cross_entropy(torch.zeros(2, 10, 3), batch.targets, reduction="sum")
    assert loss == pytest.approx(4 * np.log(10)), "the loss ignores what is padded"
    batch = collate(windows, 3, lambda ids, bar_length: np.stack([ids, bar_length * ids], axis=1))
    assert batch.positions.tolist() == [[[5, 10], [6, 12], [7, 14]], [[9, 27], [0, 0], [0, 0]]]
