"""The classes of conf/data and conf/loader, with the settings that their files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

from musicgen.data.corpora import Corpus
from musicgen.data.preparation import EncodedCorpus
from musicgen.package_data import CONF
from musicgen.tokenization.base import Tokenizer


def _settings(file: str) -> dict[str, Any]:
    """Return a file's settings but for those that follow others, such as `${seed}`."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / file))
    return {k: v for k, v in plain.items() if not str(v).startswith(("${", "???"))}


class _Made:
    """Makes objects of a file in conf; `limits` change some of the file's."""

    def __init__(self, file: str, **settings: Any) -> None:
        self.settings = _settings(file) | settings
        self.made = get_class(self.settings.pop("_target_"))

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if "limits" in settings:
            settings["limits"] = self.settings["limits"] | settings["limits"]
        return self.made(*args, **self.settings | settings)


POP909 = _Made("data/pop909.yaml")
Pop1K7 = _Made("data/pop1k7.yaml")
ComposedCorpus = _Made("data/composer.yaml", kind="pop")
Groove2GrooveMIDI = _Made("data/groove2groove.yaml")
MidiFolder = _Made("data/midi_folder.yaml")
MuspyDataset = _Made("data/muspy_dataset.yaml")
del MuspyDataset.settings["name"]  # always given
MusicDataModule = _Made("loader/music.yaml", seed=0)
ExampleDataModule = _Made("loader/examples.yaml", seed=0)


def encoded_corpus(
    corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path, **settings: Any
) -> EncodedCorpus:
    """Encode a corpus with the settings of conf/loader/music.yaml."""
    loader = {"length": 8, "batch_size": 2, "cache_dir": cache_dir} | settings
    return MusicDataModule(corpus, tokenizer, **loader).encoded
