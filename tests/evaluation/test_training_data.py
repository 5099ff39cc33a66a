"""The corpus of a model, for a stranger's checkpoints as for one's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import musicgen.cli  # noqa: F401, registers the resolver of conf/data
from musicgen.errors import UserError
from musicgen.evaluation.training_data import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.tokenization import REMI


def test_a_corpus_is_not_composed_where_a_stranger_says(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [f"data.root={tmp_path.parent}/elsewhere", f"loader.cache_dir={tmp_path}"]
    cfg = config("train", *settings)
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    data = plain["data"]
    model = MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))
    with pytest.raises(UserError, match="which is not here; give another folder"):
        open_training_data(model)
    assert open_training_data(model, tmp_path / "mine").corpus.root.parent == tmp_path / "mine"
    del data["root"], plain["loader"]["cache_dir"]  # a published model has no paths
    assert open_training_data(model).corpus.root.parent == Path("data/composed")
    plain["data"] = {"_target_": "musicgen.data.corpora.MidiFolder"}
    with pytest.raises(UserError, match=r"data\.root=null: expected the corpus's folder"):
        open_training_data(model)
    with pytest.raises(UserError, match=r"data\.root=\S+/mine: expected a folder"):
        open_training_data(model, tmp_path / "mine")


def test_a_corpus_of_a_package_needs_no_folder(config):
    cfg = config("train", "data=bach_chorales")
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    model = MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))
    for root in None, "elsewhere":
        assert len(open_training_data(model, root).corpus.pieces()) == 407


def test_the_corpora_of_a_songbook_are_found_and_nothing_is_composed_elsewhere(
    tmp_path, config, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    cfg = config("train", "data=songbook", f"data.root={tmp_path}/music")
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    model = MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))
    corpora = open_training_data(model).corpus.corpora
    assert corpora["chopin"].root == tmp_path / "music/humdrum-chopin-first-editions"
    composer = plain["data"]["corpora"]["composer"]
    composer["root"] = str(tmp_path.parent / "elsewhere")
    with pytest.raises(UserError, match="which is not here; give another folder"):
        open_training_data(model)
    for each in plain["data"]["corpora"].values():  # a published model has no paths
        del each["root"]
    published = open_training_data(model).corpus.corpora
    assert [x.root for x in published.values()] == [x.root for x in corpora.values()]
