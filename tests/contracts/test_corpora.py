"""What holds for every file of conf/data: its settings, and what one is told whose files are missing."""

import inspect

import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from musicgen.batches import StreamDataModule
from musicgen.data.corpora import Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.package_data import CONF

SPECIAL = {"composer", "listops"}  # made on first use
IN_PACKAGE = {"bach_chorales"}
NAMES = sorted(path.stem for path in (CONF / "data").glob("*.yaml"))
FETCHED = sorted({*NAMES} - SPECIAL - IN_PACKAGE)


def make(config, name, root):
    cfg = config("train", f"data={name}")
    cfg.paths.data_dir = cfg.data.root = str(root)
    return instantiate(cfg.data, _convert_="all")


def listed(corpus):
    return corpus.pieces() if isinstance(corpus, Corpus) else corpus.split("train", 1024)


@pytest.mark.parametrize("name", [*FETCHED, "composer"])
@pytest.mark.parametrize("there", ["nothing", "empty folder", "readme.txt", "album/song.mid"])
def test_a_missing_corpus_is_one_line_with_its_folder_and_the_cure(config, tmp_path, name, there):
    """Other files are left alone."""
    root = tmp_path / "my corpus"
    if there != "nothing":
        root.mkdir()
    if "." in there:
        (root / there).parent.mkdir(exist_ok=True)
        (root / there).touch()
    before = sorted(tmp_path.rglob("*"))
    corpus = make(config, name, root)
    if name in ("midi_folder", "mutopia") and there.endswith(".mid"):
        assert [piece.name for piece in corpus.pieces()] == [there]
        return
    if name == "composer" and not there.endswith(".mid"):
        return  # it is made on first use
    with pytest.raises(UserError) as refusal:
        listed(corpus)
    message = str(refusal.value)
    assert str(root) in message
    assert "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before
    if name not in ("midi_folder", "composer"):
        assert "data.root=" in message
        cures = ("download", "unpack", "put ")
        assert any(cure in message for cure in cures)


@pytest.mark.parametrize(
    "file", [f"data/{name}.yaml" for name in NAMES] + ["loader/music.yaml", "loader/examples.yaml"]
)
def test_a_setting_has_one_default(file):
    plain = OmegaConf.load(CONF / file)
    if "_target_" not in plain:  # it extends another file
        return
    parameters = dict(inspect.signature(get_class(plain._target_)).parameters)
    if file.startswith("loader"):  # some are passed on
        for passed_on in (StreamDataModule, EncodedCorpus):
            parameters = {**inspect.signature(passed_on).parameters, **parameters}
    for name in plain.keys() - {"_target_", "defaults"}:
        assert parameters[name].default is inspect.Parameter.empty, name
