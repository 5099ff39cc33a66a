"""Data modules and preparation from configurations."""

from types import SimpleNamespace

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.cli.build import build_data
from musicgen.cli.errors import describe
from musicgen.data.corpora import Corpus
from musicgen.data.loading import MusicDataModule
from musicgen.errors import UserError
from musicgen.evaluation.training_data import open_training_data
from musicgen.midi import dumps
from musicgen.tokenization import REMI
from tests.conftest import ROOT
from tests.data.builders import melody

LENGTH = 16


def is_music(name):
    data = OmegaConf.load(ROOT / "conf" / "data" / f"{name}.yaml")
    return is_music(data.defaults[0]) if "defaults" in data else "corpora" in data._target_


CORPORA = sorted(p.stem for p in (ROOT / "conf" / "data").glob("*.yaml") if is_music(p.stem))


def build(cfg, **kwargs):
    return build_data(cfg, instantiate(cfg.tokenizer, _convert_="all"), **kwargs)


@pytest.mark.parametrize("name", CORPORA)
def test_every_configuration_builds_a_data_module(config, tmp_path, name):
    extra = ["data.name=jsb"] if name == "muspy_dataset" else []
    in_package = "root" not in [*config("train", f"data={name}", *extra).data]
    extra += [] if in_package else [f"data.root={tmp_path}"]
    cfg = config("train", f"data={name}", "loader.seed=3", *extra)
    data = build(cfg, coordinates=["index", "beat"])
    assert isinstance(data, MusicDataModule)
    assert isinstance(data.encoded.corpus, Corpus)
    assert in_package or tmp_path in [data.encoded.corpus.root, data.encoded.corpus.root.parent]
    assert (data.length, data.seed, data.coordinates) == (512, 3, ("index", "beat"))


def test_corpus_settings_of_the_section_reach_the_corpus(config):
    cfg = config("train", "data=groove2groove", "data.skip_bars=1", "data.split_by=folders")
    corpus = build(cfg).encoded.corpus
    assert (corpus.skip_bars, corpus.split_by, corpus.download) == (1, "folders", False)
    assert build(config("train", "data.num_pieces=7")).encoded.corpus.num_pieces == 7


def test_the_composed_corpus_fits_the_tokenizer(config, tmp_path):
    settings = [f"paths.data_dir={tmp_path}", "data.num_pieces=6", "loader.batch_size=2"]
    settings.append(f"loader.length={LENGTH}")
    pop = build(config("train", *settings))
    groove = build(config("train", "tokenizer=groove2groove", *settings))
    assert (pop.encoded.corpus.kind, groove.encoded.corpus.kind) == ("pop", "groove")
    assert build(config("train", "data.kind=groove")).encoded.corpus.kind == "groove"
    for data in (pop, groove):
        batch = next(iter(data.train_dataloader()))
        assert batch.tokens.shape == (2, LENGTH)
        assert [len(data.encoded.split(name)) for name in ("train", "val", "test")] == [4, 1, 1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.kind=rock"], "data.kind=rock: expected one of pop, groove"),
        (["data.num_pieces=2"], "data.num_pieces=2: expected an integer >= 3"),
        (["loader.batch_size=0"], "loader.batch_size=0: expected an integer >= 1"),
        (["data=muspy_dataset", "data.name=bach"], "data.name=bach: expected one of emopia"),
    ],
)
def test_errors_name_the_key(config, overrides, message):
    cfg = config("train", *overrides)
    with pytest.raises(InstantiationException) as raised:
        build(cfg)
    assert message in str(describe(raised.value))


def trained_on(config, *overrides):
    """A model whose checkpoint holds the corpus and the loader of these overrides."""
    cfg = config("train", *overrides)
    plain = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("data", "loader")}
    return SimpleNamespace(tokenizer=REMI(), content=SimpleNamespace(config=plain))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_checkpoint_composes_nothing_elsewhere(workplace, config):
    folder = workplace / "elsewhere"
    model = trained_on(config, "data=composer", f"data.root={folder}", "data.num_pieces=3")
    with pytest.raises(UserError, match="is not here; give another folder"):
        open_training_data(model)
    assert not folder.exists()
    assert len(open_training_data(model, "data/composed").corpus.pieces()) == 3
    model.content.config["data"]["root"] = "data/composed"
    assert len(open_training_data(model).corpus.pieces()) == 3


def test_a_checkpoint_makes_no_cache_elsewhere(workplace, config):
    (workplace / "midi").mkdir()
    (workplace / "midi/a.mid").write_bytes(dumps(melody(0)))
    overrides = "data=midi_folder", f"data.root={workplace / 'midi'}"
    model = trained_on(config, *overrides, f"loader.cache_dir={workplace / 'cache'}")
    assert len(open_training_data(model).cache) == 1
    assert not (workplace / "cache").exists()
    (workplace / "here/data/cache").rename(workplace / "cache")
    assert len(open_training_data(model).cache) == 1  # it is used where it exists
    assert not (workplace / "here/data/cache").exists()


def test_a_checkpoint_downloads_nothing(workplace, config):
    overrides = "data=groove2groove", "data.root=missing", "data.download=true"
    data = open_training_data(trained_on(config, *overrides))
    assert data.corpus.download is False
