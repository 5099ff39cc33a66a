import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from musicgen.data.batch import collate
from musicgen.data.composer.source import Composer
from musicgen.data.midi_folder import MidiFolder
from musicgen.data.windows import TrainingWindows
from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, notes_from
from musicgen.prepare import main as prepare_command
from musicgen.tokenization import REMI, Groove2Groove

LENGTH = 16


def melody(seed):
    rng = np.random.default_rng(seed)
    rows = [(480 * i, 240, int(pitch), 64) for i, pitch in enumerate(rng.integers(40, 90, 16))]
    return dumps(Score(480, [Track("Piano", notes=notes_from(rows))]))


@pytest.fixture
def folder(tmp_path):
    """`folder("a.mid", "b/c.mid", group=…)`: a data module on new files of those names."""

    def make(*names, tokenizer=None, **kwargs):
        for i, name in enumerate(names):
            (tmp_path / "midi" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "midi" / name).write_bytes(melody(i))
        settings = {"length": LENGTH, "batch_size": 2, "cache_dir": tmp_path / "cache"} | kwargs
        return MidiFolder(tmp_path / "midi", tokenizer=tokenizer or REMI(), **settings)

    return make


def names(count):
    return [f"{i}.mid" for i in range(count)]


def on_rank(data, rank, world_size):
    """The data module as one of several processes sees it, before the first batch."""
    data.trainer = SimpleNamespace(
        global_rank=rank,
        world_size=world_size,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(
                batch_progress=SimpleNamespace(total=SimpleNamespace(processed=0))
            )
        ),
    )
    return data


def rows(loader):
    """Every row of every batch, as a tuple of its tokens and targets."""
    return [
        tuple(row.tolist())
        for batch in loader
        for row in torch.cat([batch.tokens, batch.targets], dim=1)
    ]


@pytest.mark.parametrize("num_pieces", [5, 24])
def test_ranks_together_validate_every_piece(folder, num_pieces):
    data = folder(*names(num_pieces), val_fraction=0.3)
    for loader in ("val_dataloader", "test_dataloader"):
        alone = rows(getattr(on_rank(data, 0, 1), loader)())
        first, second = (rows(getattr(on_rank(data, rank, 2), loader)()) for rank in range(2))
        assert first
        assert second, "a process without a piece would block the others"
        assert {*first, *second} == {*alone}
        assert len(first + second) == max(2, len(alone))


def test_ranks_together_train_on_the_batch_of_one(folder):
    data = folder(*names(20), batch_size=8, batches_per_epoch=3)
    alone = [len(alone) for alone in on_rank(data, 0, 1).train_dataloader().batch_sampler]
    assert alone == [8, 8, 8]
    whole = list(on_rank(data, 0, 1).train_dataloader())
    data.batch_size = 4
    halves = [list(on_rank(data, rank, 2).train_dataloader()) for rank in range(2)]
    for batch, first, second in zip(whole, *halves, strict=True):
        assert torch.equal(batch.tokens, torch.cat([first.tokens, second.tokens]))
        assert torch.equal(batch.targets, torch.cat([first.targets, second.targets]))


def test_an_epoch_is_one_crop_of_each_piece(folder):
    data = folder(*names(20))  # 18 of them train
    assert len(data.train_dataloader()) == 9
    assert len(on_rank(data, 0, 2).train_dataloader()) == 4
    data.batch_size = 100
    assert len(data.train_dataloader()) == 1


def test_without_a_trainer_the_stream_begins_at_its_beginning(folder):
    data = folder(*names(20))
    assert rows(data.train_dataloader()) == rows(folder(*names(20)).train_dataloader())
    assert rows(data.train_dataloader()) != rows(folder(*names(20), seed=1).train_dataloader())


class Recorder(pl.LightningModule):
    """Learns nothing and remembers what it was given."""

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
        data = folder(*names(20), batches_per_epoch=5)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
        return module.seen

    whole = fit(7)
    data = folder(*names(20))
    stream = TrainingWindows(data.cache, data.split("train"), data.tokenizer, LENGTH, 0)
    pad = data.tokenizer.vocabulary.pad_id
    expected = [collate([stream[2 * i], stream[2 * i + 1]], pad).tokens for i in range(len(whole))]
    assert whole == [tuple(tokens.flatten().tolist()) for tokens in expected]
    for step in (2, 3, 5, 6):
        resumed = fit(7, tmp_path / f"step={step}.ckpt")
        assert 0 < len(resumed) < len(whole)
        assert resumed == whole[-len(resumed) :]


def test_too_few_pieces_for_a_split_stand_in_with_a_notice(folder, capsys):
    data = folder(*names(2))
    assert data.split("val") == data.split("test") == [0, 1]
    shown = capsys.readouterr().err.splitlines()[-1]  # not wrapped
    assert shown == (
        "no test pieces among 2: all pieces stand in, so the loss says nothing about new music"
    )
    assert len(rows(data.val_dataloader())) == 2
    data = folder(*names(3))
    capsys.readouterr()
    train, val, test = (data.split(name) for name in ("train", "val", "test"))
    assert sorted(train + val + test) == [0, 1, 2]
    assert "stand in" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("val", "test", "splits"),
    [(0, 0.01, {"train", "test"}), (0.01, 0, {"train", "val"}), (0, 0, {"train"})],
)
def test_a_split_that_is_not_wanted_gets_nothing(folder, val, test, splits):
    data = folder(*names(6), val_fraction=val, test_fraction=test)
    assert {name for name in ("train", "val", "test") if data.cache.pieces(name)} == splits


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (-0.1, 0.1), (0, 1)])
def test_fractions_that_leave_nothing_to_train_on_are_refused(folder, fractions):
    with pytest.raises(UserError, match=r"data\.val_fraction"):
        folder(val_fraction=fractions[0], test_fraction=fractions[1])


def test_preparing_is_done_once(folder, monkeypatch):
    data = folder(*names(4))
    data.prepare_data()
    cache = data.cache
    monkeypatch.setattr(MidiFolder, "pieces", None)
    data.prepare_data()
    assert data.cache is cache


def test_names_that_musicians_use(folder, tmp_path):
    files = ["My Song (1).mid", "Señor.mid", "UPPER.MID", "a,b.mid", "a&b=c.midi", "x/y z.mid"]
    data = folder(*files, "._Señor.mid", "x/._y z.mid", "read me.txt")
    assert [piece.name for piece in data.pieces()] == sorted(files)
    assert all(piece.group == piece.name for piece in data.pieces())
    assert all(piece.split is None for piece in data.pieces())
    assert data.cache.names == sorted(files)


def test_split_folders(folder):
    data = folder(
        *["train/a.mid", "Valid/b.mid", "validation/c.mid", "val/d.mid", "test/x/e.mid"],
        *["train.mid", "other/test/f.mid"],
    )
    assert {piece.name: piece.split for piece in data.pieces()} == {
        "train/a.mid": "train",
        "Valid/b.mid": "val",
        "validation/c.mid": "val",
        "val/d.mid": "val",
        "test/x/e.mid": "test",
        "train.mid": None,
        "other/test/f.mid": None,
    }


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("^([^/]+)/", ["Ana", "Ana", "Bob"]),
        ("^[^/]+", ["Ana", "Ana", "Bob"]),
        (r"(?i)(blues)?\.mid$", ["Blues", ".mid", "blues"]),  # a group that takes no part
    ],
)
def test_groups_by_a_regular_expression(folder, group, expected):
    data = folder("Ana/Blues.mid", "Ana/Waltz.mid", "Bob/blues.mid", group=group)
    assert [piece.group for piece in data.pieces()] == expected


def test_mistakes_in_a_midi_folder(folder):
    with pytest.raises(UserError, match="no regular expression"):
        folder(group="(")
    with pytest.raises(UserError, match=r"finds nothing in b\.mid"):
        folder("a/x.mid", "b.mid", group="^([^/]+)/").pieces()
    with pytest.raises(UserError, match="no such folder"):
        MidiFolder(
            "gone", tokenizer=REMI(), cache_dir="cache", length=LENGTH, batch_size=1
        ).prepare_data()


def test_the_home_folder_is_found(monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "HOME", str(tmp_path))
    data = MidiFolder("~/midi", tokenizer=REMI(), cache_dir="cache", length=LENGTH, batch_size=1)
    assert data.root == tmp_path / "midi"


def composer(tmp_path, tokenizer, **kwargs):
    settings = {"cache_dir": tmp_path / "cache", "length": LENGTH, "batch_size": 2} | kwargs
    return Composer(tmp_path / "composed", tokenizer=tokenizer, **settings)


def test_the_composer_composes_what_the_tokenizer_is_for(tmp_path):
    pop = composer(tmp_path, REMI(), num_pieces=6)
    groove = composer(tmp_path, Groove2Groove(), num_pieces=6)
    assert (pop.kind, groove.kind) == ("pop", "groove")
    assert composer(tmp_path, REMI(), kind="groove", num_pieces=6).kind == "groove"
    assert len(pop.pieces()) == len(groove.pieces()) == 6
    assert len({piece.group for piece in pop.pieces()}) == 6
    tracks = {track.name for p in groove.pieces() for track in groove.read(p.path).tracks}
    assert tracks == {"Bass", "Drums", "Guitar", "Piano", "Strings"}
    for data in (pop, groove):
        batch = next(iter(data.train_dataloader()))
        assert batch.tokens.shape == (2, LENGTH)
        assert [len(data.split(name)) for name in ("train", "val", "test")] == [4, 1, 1]


def test_grooves_of_one_family_stay_in_one_split(tmp_path):
    pieces = composer(tmp_path, Groove2Groove(), num_pieces=30).pieces()
    assert all(piece.group == piece.path.parent.name for piece in pieces)
    assert len({piece.group for piece in pieces}) < 30


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"kind": "rock"}, "kind=rock"),
        ({"num_pieces": 2}, "num_pieces=2"),
        ({"num_pieces": "abc"}, "num_pieces=abc: give a whole number, 3 or more"),
        ({"corpus_seed": -1}, "corpus_seed=-1"),
    ],
)
def test_mistakes_with_the_composer(tmp_path, wrong, reason):
    with pytest.raises(UserError, match=reason):
        composer(tmp_path, REMI(), **wrong)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_are_the_same_under_any_number_of_workers(folder):
    """Also from the middle, as after a resume, and shared out over two ranks."""
    settings = {"batch_size": 4, "batches_per_epoch": 6}

    def batches(num_workers, rank=0, world_size=1, seen=0):
        data = folder(*names(20), num_workers=num_workers, **settings)
        data.batch_size = settings["batch_size"] // world_size
        on_rank(data, rank, world_size)
        data.trainer.fit_loop.epoch_loop.batch_progress.total.processed = seen
        return [batch.tokens for batch in data.train_dataloader()]

    alone = batches(0)
    assert len(alone) == 6
    for num_workers in (1, 3):
        assert all(map(torch.equal, batches(num_workers), alone))
    for num_workers in (0, 3):
        ranks = [batches(num_workers, rank, 2) for rank in range(2)]
        assert all(map(torch.equal, map(torch.cat, zip(*ranks, strict=True)), alone))
        rest = batches(num_workers, seen=4)
        assert len(rest) == 2
        assert all(map(torch.equal, rest, alone[4:]))


def test_evaluation_pads_little(folder, tmp_path):
    data = folder(*names(30), val_fraction=0.9, test_fraction=0.05, length=600, batch_size=4)
    rng = np.random.default_rng(0)
    for i, length in enumerate(rng.permutation(30).tolist()):
        rows = [(480 * j, 240, 60 + j % 12, 64) for j in range(4 + 4 * length)]
        (tmp_path / "midi" / f"{i}.mid").write_bytes(
            dumps(Score(480, [Track("Piano", notes=notes_from(rows))]))
        )
    batches = list(data.val_dataloader())
    tokens = sum(int(batch.num_targets) for batch in batches)
    assert tokens == sum(min(600, int(data.cache.lengths[i]) - 1) for i in data.split("val"))
    padding = sum(batch.tokens.numel() for batch in batches) / tokens - 1
    assert padding < 0.12
    shuffled = rng.permutation([int(n) for n in data.cache.lengths[data.split("val")]])
    groups = [np.minimum(shuffled[i : i + 4] - 1, 600) for i in range(0, len(shuffled), 4)]
    assert padding < 0.5 * (sum(g.max() * len(g) for g in groups) / tokens - 1)


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0), ("cuda", 2)])
def test_a_gpu_is_fed_ahead_from_pinned_memory(folder, device, expected):
    data = on_rank(folder(*names(20)), 0, 1)
    data.trainer.strategy.root_device = torch.device(device)
    loader = data.train_dataloader()
    assert loader.num_workers == expected
    assert loader.pin_memory == (device == "cuda")
    assert loader.prefetch_factor == (4 if expected else None)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"num_workers": -1}, r"data\.num_workers=-1"),
        ({"prepare_workers": 0}, r"data\.prepare_workers=0"),
        ({"batches_per_epoch": 0}, r"data\.batches_per_epoch=0: .*null for one crop of each"),
        ({"val_fraction": "abc"}, r"data\.val_fraction=abc: give a number"),
        ({"limits": {"max_bars": 3}}, r"data\.limits\.max_bars: no such limit"),
        ({"limits": {"max_tokens": -3}}, r"data\.limits\.max_tokens=-3"),
    ],
)
def test_mistakes_in_settings(folder, wrong, reason):
    with pytest.raises(UserError, match=reason):
        folder("a.mid", **wrong)


def test_a_loaders_process_maps_the_cache_itself(folder):
    cache = folder(*names(6)).cache
    sent = pickle.dumps(cache)
    assert cache.mapped(3).tobytes() not in sent
    copy = pickle.loads(sent)
    assert all(np.array_equal(copy[i], cache[i]) for i in range(6))


def test_prepared_in_parts_from_a_command_line(tmp_path, config, capsys):
    for i in range(12):
        (tmp_path / f"{i}.mid").write_bytes(melody(i))
    for number in (1, 2):
        cfg = config(
            "prepare",
            "data=midi_folder",
            f"data.root={tmp_path}",
            f"paths.data_dir={tmp_path}/data",
            f"shard={number}/2",
            "data.limits.min_notes=3",
        )
        prepare_command(cfg)
        assert ("ready: 12 pieces" in capsys.readouterr().err) == (number == 2)
    (cache,) = tmp_path.rglob("index.json")
    assert "12 pieces" in (cache.parent / "summary.txt").read_text()
