from itertools import chain

import numpy as np
import pytest
import torch

from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.data.corpora import Piece
from musicgen.data.loading.batch import IGNORED, collate
from musicgen.data.loading.windows import EvalWindows, StreamBatches, TrainingWindows
from musicgen.midi import read, write
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.listed import prepare

NUM_PIECES = 6
LENGTH = 48


@pytest.fixture(scope="module", params=["remi", "groove2groove"])
def corpus(request, tmp_path_factory):
    """A tokenizer and the cache of a few composed pieces."""
    folder = tmp_path_factory.mktemp("windows")
    remi = request.param == "remi"
    pieces = []
    for i in range(NUM_PIECES):
        score = compose_pop(0, i) if remi else compose_groove(0, list(FAMILIES)[i], 0, 0)
        write(score.clip(0, 8 * 4 * score.ticks_per_beat), folder / f"{i}.mid")
        pieces.append(Piece(f"{i}.mid", folder / f"{i}.mid", str(i)))
    tokenizer = REMI() if remi else Groove2Groove()
    return tokenizer, prepare(pieces, read, tokenizer, folder / "cache", fractions=(0, 0))


def windows(corpus, seed=0, pieces=(0, 1, 2, 3, 4, 5), length=LENGTH):
    tokenizer, cache = corpus
    return TrainingWindows(cache, list(pieces), tokenizer, length, seed)


def test_an_item_depends_on_the_seed_and_its_number_alone(corpus):
    forwards = windows(corpus)
    expected = [forwards[i].tolist() for i in range(30)]
    np.random.default_rng(5)
    torch.manual_seed(5)
    backwards = windows(corpus)
    assert [backwards[i].tolist() for i in reversed(range(30))] == expected[::-1]
    other = windows(corpus, seed=1)
    assert sum(other[i].tolist() == expected[i] for i in range(30)) < 5
    assert len({tuple(item) for item in expected}) > 25, "epochs do not repeat themselves"


def test_each_epoch_visits_every_piece_once(corpus):
    tokenizer, cache = corpus
    visited = []

    class Spy:
        bar_lengths, crop_starts = cache.bar_lengths, cache.crop_starts

        def mapped(self, piece):
            visited.append(piece)
            return cache.mapped(piece)

    stream = TrainingWindows(Spy(), [5, 3, 2, 0], tokenizer, LENGTH, 0)
    for item in range(80):
        stream[item]
    epochs = [tuple(visited[i : i + 4]) for i in range(0, 80, 4)]
    assert all(sorted(epoch) == [0, 2, 3, 5] for epoch in epochs)
    assert len(set(epochs)) > 10


@pytest.mark.parametrize("length", [7, LENGTH, 100_000])
def test_windows_are_grammatical_and_within_their_length(corpus, length):
    tokenizer, _ = corpus
    stream = windows(corpus, length=length)
    crops = [stream[i] for i in range(24)]
    assert all(2 <= len(crop) <= length + 1 for crop in crops)
    if length < 100:
        assert max(map(len, crops)) == length + 1
    grammar = tokenizer.grammar()
    for crop in crops:
        state = grammar.start(torch.from_numpy(crop)[None])
        assert state.finished.item() == (crop[-1] == grammar.eos)
    if length == 100_000:
        assert all(crop[-1] == grammar.eos for crop in crops)


def test_eval_windows_are_ordered_by_length(corpus):
    _, cache = corpus
    beginnings = EvalWindows(cache, [4, 1, 5], 100_000)
    whole = [beginnings[i].tolist() for i in range(len(beginnings))]
    assert sorted(whole) == sorted(cache[i].tolist() for i in (4, 1, 5))
    assert sorted(map(len, whole), reverse=True) == list(map(len, whole))
    short = EvalWindows(cache, [4, 1, 5], 9)
    assert [short[i].tolist() for i in range(3)] == [cache[i][:10].tolist() for i in (4, 1, 5)]


def test_a_window_does_not_read_the_whole_piece(corpus):
    tokenizer, cache = corpus
    reads = []

    class Disk:
        """Records the sizes of reads, and supports slices only."""

        def __init__(self, tokens):
            self.tokens = tokens

        def __len__(self):
            return len(self.tokens)

        def __getitem__(self, key):
            reads.append(len(self.tokens[key]))
            return self.tokens[key]

    class Spy:
        bar_lengths, crop_starts = cache.bar_lengths, cache.crop_starts

        def mapped(self, piece):
            return Disk(cache.mapped(piece))

    stream = TrainingWindows(Spy(), list(range(NUM_PIECES)), tokenizer, 16, 0)
    expected = windows(corpus, length=16)
    for item in range(40):
        assert np.array_equal(stream[item], expected[item])
    assert 0 < max(reads) <= 120 < min(cache.lengths)


def items(batch_size, num_batches, start=0, rank=0, world_size=1):
    return list(StreamBatches(batch_size, num_batches, lambda: start, rank, world_size))


@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("start", [0, 3])
def test_processes_divide_the_batch_of_one_process(batch_size, world_size, start):
    alone = items(8, 5, start)
    shares = [items(batch_size, 5, start, rank, world_size) for rank in range(world_size)]
    for batch, *parts in zip(alone, *shares, strict=True):
        assert list(chain(*parts)) == batch
    assert list(chain(*alone)) == list(range(8 * start, 40))


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
    batch = collate([np.array([5, 6, 7, 8]), np.array([9, 5])], pad_id=3)
    assert batch.tokens.tolist() == [[5, 6, 7], [9, 3, 3]]
    assert batch.targets.tolist() == [[6, 7, 8], [5, IGNORED, IGNORED]]
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.num_targets == 4
    loss = torch.nn.functional.cross_entropy(torch.zeros(2, 10, 3), batch.targets, reduction="sum")
    assert loss == pytest.approx(4 * np.log(10)), "the loss ignores what is padded"


def test_collate_computes_the_positions_of_inputs():
    windows = [np.array([5, 6, 7, 8]), np.array([9, 5])]
    batch = collate(windows, pad_id=3, positions=lambda ids: np.stack([ids, 2 * ids], axis=1))
    assert batch.positions.tolist() == [[[5, 10], [6, 12], [7, 14]], [[9, 18], [0, 0], [0, 0]]]
    assert collate(windows, pad_id=3).positions.tolist() == [[[0], [1], [2]]]


def test_collate_accepts_reversed_views():
    batch = collate([np.arange(4)[::-1]], pad_id=9)
    assert batch.tokens.tolist() == [[3, 2, 1]]
