import pickle

import numpy as np
import pytest
import torch

from musicgen.batches import IGNORED
from musicgen.data.corpora import SPLITS
from musicgen.errors import UserError
from musicgen.midi import Score, TimeSignature, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove
from musicgen.tokenization.coordinates import Coordinates
from tests.data.builders import MidiFolder, MusicDataModule, on_rank, write_melodies

LENGTH = 16


@pytest.fixture
def folder(tmp_path):
    """`folder(20, seed=…)`: a data module of so many files."""

    def make(num_pieces, **kwargs):
        write_melodies(tmp_path / "midi", num_pieces)
        settings = {"length": LENGTH, "batch_size": 2} | kwargs
        corpus = MidiFolder(tmp_path / "midi")
        return MusicDataModule(corpus, REMI(), cache_dir=tmp_path / "cache", **settings)

    return make


def rows(loader):
    """Return every row of every batch that has targets, as a tuple of its tokens and targets."""
    return [
        tuple(row.tolist())
        for batch in loader
        for row in torch.cat([batch.tokens, batch.targets], dim=1)
        if row[-1] != IGNORED
    ]


@pytest.mark.parametrize("num_pieces", [5, 24])
def test_ranks_together_validate_every_piece(folder, num_pieces):
    data = folder(num_pieces, val_fraction=0.3)
    for loader in ("val_dataloader", "test_dataloader"):
        alone = rows(getattr(on_rank(data, 0, 1), loader)())
        first, second = ([*getattr(on_rank(data, rank, 2), loader)()] for rank in range(2))
        shapes = [[len(batch.tokens) for batch in batches] for batches in (first, second)]
        assert shapes[0] == shapes[1], "processes would wait for each other"
        assert sorted(rows(first) + rows(second)) == sorted(alone), "each piece once"
    data = on_rank(folder(12, val_fraction=0.02, coordinates=["index", "time"]), 1, 2)
    (batch,) = data.test_dataloader()  # without targets
    assert not batch.num_targets
    assert batch.tokens.shape == (1, 1)
    assert batch.positions.shape == (1, 1, 2)


def test_only_the_first_process_lists_the_corpus(folder, monkeypatch):
    data = on_rank(folder(12), 0, 2)
    data.prepare_data()
    with monkeypatch.context() as patch:
        patch.setattr(data.trainer.strategy, "broadcast", lambda path: path)
        data.setup("fit")
    other = on_rank(folder(12), 1, 2)
    monkeypatch.setattr(other.trainer, "is_global_zero", False)
    monkeypatch.setattr(other.trainer.strategy, "broadcast", lambda _: data.encoded.cache.folder)
    monkeypatch.setattr(other.encoded.corpus, "pieces", None)
    other.setup("fit")
    assert rows(other.train_dataloader())
    alone = rows(on_rank(folder(12), 1, 2).val_dataloader())
    assert rows(other.val_dataloader()) == alone


def test_a_machine_without_the_cache_is_told_where_it_has_to_be(folder, tmp_path):
    data = folder(6)
    with pytest.raises(
        UserError, match=r"set loader\.cache_dir to a folder that all machines share"
    ):
        data.encoded.open_cache(tmp_path / "elsewhere")


def test_an_epoch_is_one_crop_of_each_piece(folder):
    data = folder(20)  # 18 of them train
    assert len(data.train_dataloader()) == 9
    assert len(on_rank(data, 0, 2).train_dataloader()) == 9
    data.batch_size = 100
    assert len(data.train_dataloader()) == 1


def test_an_empty_split_uses_all_pieces_with_a_warning(folder, capsys):
    data = folder(2)
    assert data.encoded.split("val") == data.encoded.split("test") == [0, 1]
    shown = capsys.readouterr().err.splitlines()[-1]  # not wrapped
    assert shown == (
        "no test pieces among 2: all pieces are used, so the loss does not measure generalisation"
    )
    assert len(rows(data.val_dataloader())) == 2


def test_without_pieces_for_testing_those_for_validation_are_used(folder, capsys):
    data = folder(20, val_fraction=0.2, test_fraction=0)
    assert data.encoded.split("test") == data.encoded.split("val")
    assert len(data.encoded.split("val")) < 20
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown == "no test pieces among 20: the validation pieces are used"


@pytest.mark.parametrize(
    ("val", "test", "splits"),
    [(0, 0.01, {"train", "test"}), (0.01, 0, {"train", "val"}), (0, 0, {"train"})],
)
def test_a_split_with_fraction_0_is_empty(folder, val, test, splits):
    cache = folder(6, val_fraction=val, test_fraction=test).encoded.cache
    assert {name for name in SPLITS if cache.pieces(name)} == splits


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_are_the_same_under_any_number_of_workers(folder):
    """Also from the middle, as after a resume, and divided over two ranks."""
    settings = {"batch_size": 4, "batches_per_epoch": 6}

    def batches(num_workers, rank=0, world_size=1, seen=0):
        data = folder(20, num_workers=num_workers, **settings)
        loader = on_rank(data, rank, world_size, seen).train_dataloader()
        return [batch.tokens for batch in loader]

    alone = batches(0)
    assert len(alone) == 6
    assert all(map(torch.equal, batches(1), alone))
    for num_workers in (0, 2):
        ranks = [batches(num_workers, rank, 2) for rank in range(2)]
        assert all(map(torch.equal, map(torch.cat, zip(*ranks, strict=True)), alone))
        rest = batches(num_workers, seen=4)
        assert len(rest) == 2
        assert all(map(torch.equal, rest, alone[4:]))


def test_processes_that_cannot_share_a_batch_are_refused(folder):
    expected = r"loader\.batch_size=4: expected a multiple of 3, the processes, which share each"
    for loader in ("train_dataloader", "val_dataloader"):
        with pytest.raises(UserError, match=expected):
            getattr(on_rank(folder(20, batch_size=4), 0, 3), loader)()


def test_overfitting_trains_and_validates_on_one_batch(folder):
    data = on_rank(folder(20, batches_per_epoch=1), 0, 1)
    first = rows(data.train_dataloader())
    on_rank(data, 0, 1, batches_seen=5).trainer.overfit_batches = 1
    assert rows(data.train_dataloader()) == rows(data.val_dataloader()) == first


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "test_fraction=0.5: expected a number"),
        ({"skip_beginning": 0.25}, r"skip_beginning=0\.25: expected 0, or window=beginning"),
    ],
)
def test_invalid_settings(folder, wrong, reason):
    with pytest.raises(UserError, match=reason):
        folder(1, **wrong)


def test_a_loader_process_maps_the_cache_itself(folder):
    cache = folder(6).encoded.cache
    sent = pickle.dumps(cache)
    assert cache.mapped(3).tobytes() not in sent
    copy = pickle.loads(sent)
    assert all(np.array_equal(copy[i], cache[i]) for i in range(6))


def test_positions_count_from_the_window_in_bars_of_the_piece(tmp_path):
    notes = notes_from([(480 * i, 240, 60 + i % 5, 64) for i in range(60)])
    score = Score(480, [Track("Piano", notes=notes)], time_signatures=[TimeSignature(0, 3, 4)])
    for i in range(4):
        score.tracks[0].notes["pitch"] += 1
        write(score, tmp_path / "midi" / f"{i}.mid")
    names = ["index", "time", "beat", "bar", "pitch"]
    data = MusicDataModule(
        MidiFolder(tmp_path / "midi"),
        Groove2Groove(drop_track_probability=0),
        cache_dir=tmp_path / "cache",
        length=40,
        batch_size=2,
        coordinates=names,
    )
    for batch in (next(iter(data.train_dataloader())), next(iter(data.val_dataloader()))):
        for tokens, positions in zip(batch.tokens, batch.positions, strict=True):
            expected = Coordinates(data.tokenizer).of(tokens.numpy(), names, bar_length=36)
            size = int((tokens != data.tokenizer.vocabulary.pad_id).sum())
            assert positions[:size].tolist() == expected[:size].tolist()
            assert positions[size:].sum() == 0
            assert positions[:, 2].max() == 30  # the last note-off in a bar of 36
            assert positions[0, 1:4].tolist() == [0, 0, 0]
