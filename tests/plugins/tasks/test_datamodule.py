"""Batches of examples: padding, order, ranks."""

import os

import numpy as np
import pytest
from torch.utils.data import Dataset

from musicgen.batches import IGNORED
from musicgen.errors import ParameterError, UserError
from musicgen.plugins.tasks import AAN, Example, ExampleCorpus
from musicgen.plugins.tasks.datamodule import Examples, ShuffledExamples, collate
from tests.data.builders import ExampleDataModule, on_rank


class Images(ExampleCorpus):
    """Images of 4 × 4 pixels, all different."""

    vocab_size, num_outputs, grid = 20, 20, (4, 4)

    def split(self, name, length):
        numbers = range(20) if name == "train" else range(4)
        return Examples(numbers, lambda i: Example((np.full(16, i),), i))


def sequence(*ids):
    return np.array(ids)


def test_sequences_are_padded_and_masked():
    batch = collate([Example((sequence(3, 4),), 1), Example((sequence(5, 6, 7),), 0)])
    assert batch.tokens.tolist() == [[3, 4, 0], [5, 6, 7]]
    assert batch.key_mask.tolist() == [[True, True, False], [True] * 3]
    assert batch.targets.tolist() == [1, 0]
    assert batch.positions is None  # the model counts the tokens
    assert batch.num_targets == 2
    assert collate([Example((sequence(1, 2),), 0)] * 2).key_mask is None
    pairs = [Example((sequence(1), sequence(2, 3)), 0), Example((sequence(4), sequence(5)), 1)]
    batch = collate(pairs)  # all first sequences, then all second ones
    assert batch.tokens.tolist() == [[1, 0], [4, 0], [2, 3], [5, 0]]
    assert batch.key_mask.sum() == 5
    assert batch.targets.tolist() == [0, 1]
    items = [Example((sequence(1, 2),), sequence(2, 3)), Example((sequence(4),), sequence(5))]
    assert collate(items).targets.tolist() == [[2, 3], [5, IGNORED]]


def test_two_coordinates_are_those_of_an_image(tmp_path):
    data = ExampleDataModule(Images(), length=16, batch_size=2, coordinates=("index", "time"))
    batch = next(iter(data.val_dataloader()))
    assert batch.positions.shape == (1, 16, 2)
    with pytest.raises(ParameterError, match=r"coordinates=.*expected index"):
        ExampleDataModule(AAN(tmp_path), length=2000, batch_size=2, coordinates=("index", "time"))


class Group(Dataset):
    """The group of a process, to all of which a terminal sends Ctrl-C."""

    def __getitem__(self, item):
        return os.getpgrp()

    def __len__(self):
        return 1


def test_loader_processes_leave_ctrl_c_to_the_main_one():
    data = ExampleDataModule(Images(), length=16, batch_size=2, num_workers=1)
    ((group,),) = data.loader(Group(), list)
    assert group != os.getpgrp()


def test_a_split_without_examples_is_refused(monkeypatch):
    monkeypatch.setattr(Images, "split", lambda *_: Examples([], int))
    with pytest.raises(UserError, match="data: no examples for train; give more, or"):
        ExampleDataModule(Images(), length=16, batch_size=2).prepare_data()


class Numbered(list):
    """Examples whose targets are their numbers; `lengths` are those of their sequences."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.lengths = np.array(lengths)

    def __getitem__(self, item):
        return Example((np.arange(self.lengths[item]),), int(item))


def test_each_epoch_visits_all_examples_in_an_order_of_its_own():
    stream = ShuffledExamples(Numbered([1] * 10), seed=3, group=2)
    items = [stream[i].target for i in range(30)]
    epochs = [items[:10], items[10:20], items[20:]]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [stream[i].target for i in (25, 3)] == [items[25], items[3]]
    other = ShuffledExamples(Numbered([1] * 10), seed=4, group=2)
    assert [other[i].target for i in range(10)] != epochs[0]


def test_batches_hold_sequences_of_similar_lengths():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    stream = ShuffledExamples(Numbered(lengths), seed=0, group=8)
    items = np.array([stream[i].target for i in range(1000)])
    assert sorted(items) == list(range(1000))
    batches = lengths[items].reshape(-1, 8)
    spread = np.ptp(batches, axis=1)[:96]  # those of whole groups of batches
    assert spread.mean() < 10
    assert np.corrcoef(batches.mean(1), np.arange(125))[0, 1] < 0.3  # in random order


def test_processes_share_the_examples_for_evaluation():
    whole = [[0], [1], [2], [3]]

    def part(rank, world_size):
        data = ExampleDataModule(Images(), length=16, batch_size=world_size)
        loader = on_rank(data, rank, world_size).val_dataloader()
        return [batch.targets.tolist() for batch in loader]

    # All have as many batches, so that no process waits for another.
    parts = [whole[0::3], [[1], [IGNORED]], [[2], [IGNORED]]]
    assert [part(rank, 3) for rank in range(3)] == parts
    assert part(4, 5) == [[IGNORED]]
