"""Data modules and preparation from configurations."""

from types import SimpleNamespace

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.cli.build import build_data
from musicgen.evaluation.training_data import open_training_data
from musicgen.midi import dumps
from musicgen.tokenization import REMI
from tests.data.builders import melody

LENGTH = 16


def build(cfg, **kwargs):
    return build_data(cfg, instantiate(cfg.tokenizer, _convert_="all"), **kwargs)


def test_the_composed_corpus_fits_the_tokenizer(config, tmp_path):
    settings = [f"paths.data_dir={tmp_path}", "data.num_pieces=6", "loader.batch_size=2"]
    settings.append(f"loader.length={LENGTH}")
    pop = build(config("train", *settings))
    groove = build(config("train", "tokenizer=groove2groove", *settings))
    assert (pop.encoded.corpus.kind, groove.encoded.corpus.kind) == ("pop", "groove")
    assert build(config("train", "data.kind=groove")).encoded.corpus.kind == "groove"
    assert config("train", "tokenizer._target_=musicgen.tokenization.Songs").data.kind == "songs"
    for data in (pop, groove):
        batch = next(iter(data.train_dataloader()))
        assert batch.tokens.shape == (2, LENGTH)
        assert [len(data.encoded.split(name)) for name in ("train", "val", "test")] == [4, 1, 1]


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
