"""Checkpoints rebuild their models, and those of strangers run no code."""

import os
import pickle
import random
import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch

import musicgen.models
from musicgen import load
from musicgen.checkpoints import CONTENT_KEY, check_targets, read_checkpoint, rebuild
from musicgen.errors import UserError
from musicgen.models import Transformer
from tests.checkpoints.small_model import FAVOR, MODEL, SPE, as_checkpoint, flip_a_bit, small_model

INTERFACE = {"_target_": "musicgen.position.PositionalEncoding", "_partial_": True}


@pytest.fixture
def checkpoint():
    """A small checkpoint as plain data."""
    model = small_model(position=SPE)
    return as_checkpoint(model.model, model.content)


def saved(data, folder: Path) -> Path:
    path = folder / "model.ckpt"
    torch.save(data, path)
    return path


def test_model_and_tokenizer_are_rebuilt_from_the_file_alone(tmp_path):
    model = small_model(position=SPE)
    path = saved(as_checkpoint(model.model, replace(model.content, sampling=None)), tmp_path)
    loaded = load(path)
    ids = torch.randint(300, (1, 9))
    assert torch.equal(loaded.model(ids), model.model(ids))
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    path.rename(tmp_path / "run/checkpoints/last.ckpt")
    assert torch.equal(load(tmp_path / "run").model(ids), loaded.model(ids))
    assert not loaded.model.training
    omegas = [m.layers[0].attention.feature_map.omega for m in (loaded.model, model.model)]
    assert torch.equal(*omegas)
    assert loaded.tokenizer.max_transposition == 2
    assert loaded.training_length == 16
    assert loaded.sampling(top_p=0.5).temperature == 0.7
    assert loaded.sampling(temperature=2.0).temperature == 2.0


class Payload:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (Path(self.path).touch, ())


def test_pickled_code_is_refused_and_not_run(tmp_path):
    trap = tmp_path / "ran"
    path = tmp_path / "model.ckpt"
    path.write_bytes(pickle.dumps({CONTENT_KEY: Payload(str(trap))}))
    with pytest.raises(UserError, match=r"model\.ckpt"):
        rebuild(path)
    path = saved({CONTENT_KEY: Payload(str(trap))}, tmp_path)
    with pytest.raises(UserError, match="more than plain data"):
        rebuild(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "torch.nn.Linear",  # a class, but not of musicgen
        "musicgen.cli.errors.describe",  # of musicgen, but a function
        "musicgen.midi.io.symusic.Score",  # reachable through musicgen only
        "musicgen.files.os.getpid",
        "musicgen.midi.score.Score",  # a class of musicgen, but of no model
        "musicgen.data.corpora.MidiFolder",
        "musicgen.nowhere.Model",
        "Transformer",
        "",
        None,
    ],
)
@pytest.mark.parametrize("place", ["model", "position", "feature_map", "tokenizer"])
def test_foreign_targets_are_refused(checkpoint, tmp_path, target, place):
    content = checkpoint[CONTENT_KEY]
    at = {
        "model": content["model"],
        "position": content["model"]["position"],
        "feature_map": content["model"]["attention"]["feature_map"],
        "tokenizer": content["tokenizer"],
    }[place]
    at["_target_"] = target
    with pytest.raises(UserError, match="not a class of musicgen that belongs there"):
        rebuild(saved(checkpoint, tmp_path))


def test_a_subclass_that_is_defined_elsewhere_is_refused(monkeypatch):
    """Importing a module of musicgen may bring classes that others have derived from ours."""
    mine = type("Mine", (Transformer,), {"__module__": "elsewhere"})
    monkeypatch.setattr(musicgen.models, "Mine", mine, raising=False)
    with pytest.raises(UserError, match="not a class of musicgen that belongs there"):
        check_targets({"_target_": "musicgen.models.Mine"})


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": "musicgen.models.Transformer", "dim": "${oc.env:HOME}"},
        {"_target_": "musicgen.models.Transformer", "_args_": [1]},
        {"_recursive_": False},
        {"list": [{"nested": {"_target_": "os.getcwd"}}]},
    ],
)
def test_other_ways_to_run_code_are_refused(config):
    with pytest.raises(UserError):
        check_targets(config)


def test_damaged_and_foreign_files_are_reported_by_name(checkpoint, tmp_path):
    whole, path = saved(checkpoint, tmp_path).read_bytes(), tmp_path / "other.ckpt"
    half = whole[: len(whole) // 2]
    for content in (b"hello", b"MThd\0\0\0\6", b"", b"PK\x03\x04 broken zip", half, whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"other\.ckpt: not a checkpoint .* or a damaged one"):
            rebuild(path)
    with pytest.raises(UserError, match=r"missing\.ckpt: cannot be read"):
        rebuild(tmp_path / "missing.ckpt")


@pytest.mark.parametrize(
    ("data", "content", "message"),
    [
        ({CONTENT_KEY: None}, {}, "not a musicgen checkpoint"),
        ({}, {"format_version": 99}, "format 99"),
        ({}, {"depth": 3}, "damaged"),
        ({"state_dict": {}}, {}, "weights do not fit"),
        ({}, {"model": {**MODEL, "depth": 3}}, "cannot be built"),
        ({}, {"model": {**MODEL, "position": INTERFACE}}, "cannot be built"),
        ({}, {"vocabulary_hash": "0"}, "vocabulary"),
    ],
    ids=str,
)
def test_odd_contents_are_refused(checkpoint, tmp_path, data, content, message):
    odd = {**checkpoint, CONTENT_KEY: {**checkpoint[CONTENT_KEY], **content}, **data}
    with pytest.raises(UserError, match=message):
        rebuild(saved(odd, tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 1_000_000},
        {"ff_dim": 1_000_000},
        {"num_layers": 1_000_000},
        {"num_layers": None},
        {"cycles": [1_000_000]},
        {"num_heads": 2**60},
        {"position": {**SPE, "num_realizations": 1_000_000}},
        {"position": {**SPE, "num_sines": 2**40}},
        {"attention": {**MODEL["attention"], "feature_map": {**FAVOR, "num_features": 2**40}}},
    ],
    ids=str,
)
def test_sizes_are_compared_before_a_model_takes_memory(checkpoint, tmp_path, monkeypatch, change):
    checkpoint[CONTENT_KEY]["model"] |= change
    path = saved(checkpoint, tmp_path)
    made = torch.nn.Embedding.__init__

    def on_meta(self, *args, **kwargs):
        made(self, *args, **kwargs)
        assert self.weight.is_meta

    monkeypatch.setattr(torch.nn.Embedding, "__init__", on_meta)
    with pytest.raises(UserError, match="do not fit its configuration"):
        rebuild(path)


def test_a_renamed_parameter_is_named(checkpoint, tmp_path):
    weights = checkpoint["state_dict"]
    weights["model.final_bias"] = weights.pop("model.inputs.embedding.weight")
    names = r"code \(final_bias, inputs\.embedding\.weight\); use another, or"
    with pytest.raises(UserError, match=names):
        rebuild(saved(checkpoint, tmp_path))


def test_views_of_few_numbers_are_refused(checkpoint, tmp_path):
    size = 10**6
    checkpoint["state_dict"]["model.inputs.embedding.weight"] = torch.zeros(1).expand(size, size)
    checkpoint[CONTENT_KEY]["model"]["dim"] = size
    path = saved(checkpoint, tmp_path)
    assert path.stat().st_size < 1e6
    with pytest.raises(UserError, match="a tensor without memory for its values; use another"):
        rebuild(path)


def test_a_few_entries_that_are_repeated_endlessly_are_refused(checkpoint, tmp_path):
    many: list = ["x"]
    for _ in range(40):
        many = [many] * 9
    with pytest.raises(UserError, match="more entries than a checkpoint has; use another"):
        rebuild(saved({**checkpoint, "loops": many}, tmp_path))


def compressed(source: Path, path: Path) -> None:
    """The same archive, with 100 MB of zeros in two kilobytes."""
    with ZipFile(source) as old, ZipFile(path, "w", ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        new.writestr("archive/data/zeros", bytes(10**8))


def overlapping(source: Path, path: Path) -> None:
    """The same archive, whose directory names each entry a hundred times."""
    shutil.copy(source, path)
    with ZipFile(path, "a") as file:
        for entry in [*file.infolist()]:
            for i in range(100):
                again = copy(entry)
                again.filename = f"{entry.filename}{i}"
                file.filelist.append(again)
        file._didModify = True


def pipe(source: Path, path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("attack", "message"),
    [(compressed, "a damaged one"), (overlapping, "a damaged one"), (pipe, "not a regular file")],
)
def test_archives_larger_than_their_files_and_pipes_are_refused_unread(
    checkpoint, tmp_path, monkeypatch, attack, message
):
    attack(saved(checkpoint, tmp_path), tmp_path / "theirs.ckpt")
    for reader in ("testzip", "open"):
        monkeypatch.setattr(ZipFile, reader, lambda *_: pytest.fail("it was read"))
    with pytest.raises(UserError, match=rf"theirs\.ckpt: .*{message}"):
        read_checkpoint(tmp_path / "theirs.ckpt")


def test_flipped_bits_are_detected(checkpoint, tmp_path):
    path = saved(checkpoint, tmp_path)
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    # Anywhere; and in the headers, where no checksum is.
    for within in [None] * 60 + [range(60)] * 60 + [range(len(whole) - 200, len(whole))] * 200:
        path.write_bytes(whole)
        flip_a_bit(path, draw, within)
        try:
            loaded = read_checkpoint(path)
        except UserError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017
            assert len(str(error).splitlines()) == 1  # noqa: PT017
            refused += 1
        else:  # for example in the padding
            assert loaded[CONTENT_KEY] == checkpoint[CONTENT_KEY]
            for name, tensor in checkpoint["state_dict"].items():
                assert torch.equal(loaded["state_dict"][name], tensor)
    assert refused > 60
