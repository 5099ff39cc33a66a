"""The corpus of a model, for a stranger's checkpoints as for one's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import musicgen.cli  # noqa: F401, registers the resolver of conf/data
from musicgen.errors import UserError
from musicgen.evaluation.runs import open_training_data
from musicgen.generation.model import MusicModel
from musicgen.midi import dumps
from musicgen.tokenization import REMI
from tests.data.builders import melody


def trained_on(config, *overrides):
    """A model whose checkpoint holds the corpus and the loader of these overrides."""
    cfg = config("train", *overrides)
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    return MusicModel(None, REMI(), SimpleNamespace(config=plain), Path("model.ckpt"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder where the commands run; what lies beside it is elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_checkpoint_makes_no_cache_elsewhere(here, config):
    midi, cache = here.parent / "midi", here.parent / "cache"
    midi.mkdir()
    (midi / "a.mid").write_bytes(dumps(melody(0)))
    overrides = "data=midi_folder", f"data.root={midi}", f"loader.cache_dir={cache}"
    model = trained_on(config, *overrides)
    assert len(open_training_data(model).cache) == 1
    assert not cache.exists()
    (here / "data/cache").rename(cache)
    assert len(open_training_data(model).cache) == 1  # it is used where it exists
    assert not (here / "data/cache").exists()


def test_a_corpus_is_not_composed_where_a_stranger_says(here, config):
    elsewhere = f"data.root={here.parent}/elsewhere"
    model = trained_on(config, elsewhere, f"loader.cache_dir={here}")
    plain = model.content.config
    with pytest.raises(UserError, match="which does not exist here; give a folder"):
        open_training_data(model)
    assert open_training_data(model, here / "mine").corpus.root.parent == here / "mine"
    del plain["data"]["root"], plain["loader"]["cache_dir"]  # a published model has no paths
    assert open_training_data(model).corpus.root.parent == Path("data/composed")
    plain["data"] = {"_target_": "musicgen.data.corpora.MidiFolder"}
    with pytest.raises(UserError, match=r"data\.root=null: expected the folder of the corpus"):
        open_training_data(model)
    with pytest.raises(UserError, match=r"data\.root=\S+/mine: expected a folder"):
        open_training_data(model, here / "mine")


def test_a_corpus_of_a_package_needs_no_folder(config):
    model = trained_on(config, "data=bach_chorales")
    for root in None, "elsewhere":
        assert len(open_training_data(model, root).corpus.pieces()) == 407


def test_the_corpora_of_a_songbook_are_found_and_nothing_is_composed_elsewhere(here, config):
    model = trained_on(config, "data=songbook", f"data.root={here}/music")
    settings = model.content.config["data"]["corpora"]
    corpora = open_training_data(model).corpus.corpora
    assert corpora["chopin"].root == here / "music/humdrum-chopin-first-editions"
    settings["composer"]["root"] = str(here.parent / "elsewhere")
    with pytest.raises(UserError, match="which does not exist here; give a folder"):
        open_training_data(model)
    for each in settings.values():  # a published model has no paths
        del each["root"]
    # A part without an address has the folder of its name.
    midi = {"_target_": "musicgen.data.corpora.MidiFolder", "group": None, "exclude": None}
    settings["own"] = midi
    model.content.config["data"]["weights"]["own"] = 1
    published = open_training_data(model).corpus.corpora
    roots = [*(corpus.root for corpus in corpora.values()), here / "music/own"]
    assert [corpus.root for corpus in published.values()] == roots


def test_no_file_is_read_that_a_checkpoint_names(here, config):
    secret = here.parent / "secret"
    secret.write_text("of this machine")
    (here / "a.mid").write_bytes(dumps(melody(0)))
    model = trained_on(config, "data=midi_folder", f"data.root={here}", f"data.exclude={secret}")
    with pytest.raises(UserError, match=r"data\.exclude=\S+/secret: expected names of pieces, as "):
        open_training_data(model)
    model = trained_on(config, "data=songbook", f"data.root={here}/music")
    model.content.config["data"]["corpora"]["chopin"]["exclude"] = str(secret)
    with pytest.raises(UserError, match="expected names of pieces"):
        open_training_data(model)
