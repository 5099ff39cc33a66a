import pickle

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from musicgen.data.corpora import SPLITS
from musicgen.data.loading import TrainingWindows, collate
from musicgen.errors import UserError
from musicgen.midi import Score, TimeSignature, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove
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
    """Return every row of every batch, as a tuple of its tokens and targets."""
    return [
        tuple(row.tolist())
        for batch in loader
        for row in torch.cat([batch.tokens, batch.targets], dim=1)
    ]


@pytest.mark.parametrize("num_pieces", [5, 24])
def test_ranks_together_validate_every_piece(folder, num_pieces):
    data = folder(num_pieces, val_fraction=0.3)
    for loader in ("val_dataloader", "test_dataloader"):
        alone = rows(getattr(on_rank(data, 0, 1), loader)())
        first, second = (rows(getattr(on_rank(data, rank, 2), loader)()) for rank in range(2))
        assert first
        assert second, "a process without a batch would block the others"
        assert sorted(filter(None, first + second)) == sorted(alone), "each piece once"
    data = on_rank(folder(num_pieces, val_fraction=0.3, coordinates=["index", "time"]), 1, 2)
    (batch,) = data.test_dataloader()  # without targets
    assert batch.tokens.shape == batch.targets.shape == (1, 0)
    assert batch.positions.shape == (1, 0, 2)


def test_an_epoch_is_one_crop_of_each_piece(folder):
    data = folder(20)  # 18 of them train
    assert len(data.train_dataloader()) == 9
    assert len(on_rank(data, 0, 2).train_dataloader()) == 4
    data.batch_size = 100
    assert len(data.train_dataloader()) == 1


class Recorder(pl.LightningModule):
    """Learns nothing and records its batches."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(tuple(batch.tokens.flatten().tolist()))
        return 0 * self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_sees_the_batches_it_would_have_seen(folder, tmp_path, accumulate):
    def fit(max_steps, checkpoint=None):
        trainer = pl.Trainer(
            accelerator="cpu",
            max_steps=max_steps,
            accumulate_grad_batches=accumulate,
            use_distributed_sampler=False,
            callbacks=[ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        module = Recorder()
        # An odd number of batches: the last step of an epoch accumulates fewer.
        data = folder(20, batches_per_epoch=5)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
        return module.seen

    whole = fit(7)
    data = folder(20)
    stream = TrainingWindows(
        data.encoded.cache, data.encoded.split("train"), data.tokenizer, LENGTH, 0
    )
    pad = data.tokenizer.vocabulary.pad_id
    expected = [collate([stream[2 * i], stream[2 * i + 1]], pad).tokens for i in range(len(whole))]
    assert whole == [tuple(tokens.flatten().tolist()) for tokens in expected]
    for step in (2, 3, 5):
        resumed = fit(7, tmp_path / f"step={step}.ckpt")
        assert 0 < len(resumed) < len(whole)
        assert resumed == whole[-len(resumed) :]


def test_an_empty_split_uses_all_pieces_with_a_warning(folder, capsys):
    data = folder(2)
    assert data.encoded.split("val") == data.encoded.split("test") == [0, 1]
    shown = capsys.readouterr().err.splitlines()[-1]  # not wrapped
    assert shown == (
        "no test pieces among 2: all pieces are used, so the loss does not measure generalisation"
    )
    assert len(rows(data.val_dataloader())) == 2


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
        data.batch_size = settings["batch_size"] // world_size
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


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0), ("cuda", 2)])
def test_batches_are_prefetched_in_pinned_memory_for_a_gpu(folder, device, expected):
    data = on_rank(folder(20), 0, 1)
    data.trainer.strategy.root_device = torch.device(device)
    loader = data.train_dataloader()
    assert loader.num_workers == expected
    assert loader.pin_memory == (device == "cuda")
    assert loader.prefetch_factor == (4 if expected else None)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "test_fraction=0.5: expected a number"),
        ({"window": "end"}, "window=end: expected"),
        ({"skip_beginning": 0.25}, r"skip_beginning=0\.25: expected 0, or window=beginning"),
        ({"chords": "yes"}, r"chords=yes: expected one of auto, markers"),
        ({"coordinates": ["index", "key"]}, r"coordinates=key: expected some of index, time, bar"),
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
            expected = data.tokenizer.coordinates(tokens.numpy(), names, bar_length=36)
            size = int((tokens != data.tokenizer.vocabulary.pad_id).sum())
            assert positions[:size].tolist() == expected[:size].tolist()
            assert positions[size:].sum() == 0
            assert positions[:, 2].max() == 30  # the last note-off in a bar of 36
            assert positions[0, 1:4].tolist() == [0, 0, 0]
