"""Classes with the settings of conf/data and conf/loader, made pieces, corpora of given pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from musicgen.data.corpora import Corpus, Piece
from musicgen.data.preparation import EncodedCorpus, TokenCache
from musicgen.midi import Score, Track, notes_from, write
from musicgen.package_data import CONF
from musicgen.tokenization.base import Tokenizer


def maker(file: str, **changed: Any) -> Callable[..., Any]:
    """Return the class of a file in conf with its settings; `limits` change some of the file's."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / file))
    # Without those that follow others, such as `${seed}`.
    own = {k: v for k, v in plain.items() if not str(v).startswith(("${", "???"))} | changed
    made = get_class(own.pop("_target_"))

    def make(*args: Any, **settings: Any) -> Any:
        if "limits" in settings:
            settings["limits"] = own["limits"] | settings["limits"]
        return made(*args, **own | settings)

    return make


POP909 = maker("data/pop909.yaml")
Pop1K7 = maker("data/pop1k7.yaml")
ComposedCorpus = maker("data/composer.yaml", kind="pop")
Groove2GrooveMIDI = maker("data/groove2groove.yaml")
MidiFolder = maker("data/midi_folder.yaml")
MusicDataModule = maker("loader/music.yaml", seed=0)
ExampleDataModule = maker("loader/examples.yaml", seed=0)


def encoded_corpus(
    corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path, **settings: Any
) -> EncodedCorpus:
    """Encode a corpus with the settings of conf/loader/music.yaml."""
    loader = {"length": 8, "batch_size": 2, "cache_dir": cache_dir} | settings
    return MusicDataModule(corpus, tokenizer, **loader).encoded


def melody(seed, num_notes=16):
    pitches = np.random.default_rng(seed).integers(40, 90, num_notes).tolist()
    notes = notes_from([(480 * i, 240, pitch, 64) for i, pitch in enumerate(pitches)])
    return Score(480, [Track("Piano", notes=notes)])


def write_melodies(folder, num_pieces):
    """Write files of different lengths, each a group of its own."""
    pieces = [Piece(f"{i}.mid", folder / f"{i}.mid", f"{i}.mid") for i in range(num_pieces)]
    for i, piece in enumerate(pieces):
        write(melody(i, 8 + i), piece.path)
    return pieces


class ListedCorpus(Corpus):
    """Given pieces, read by a given function."""

    def __init__(self, pieces, read):
        self.listed, self.function = pieces, read

    def pieces(self):
        return self.listed

    def read(self, path):
        return self.function(path)

    def reader_id(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"


def prepare(pieces, read, tokenizer, cache_dir, *, fractions=(0, 0), **settings) -> TokenCache:
    """Encode a list of pieces."""
    val, test = fractions
    settings = {"chords": "markers", "val_fraction": val, "test_fraction": test} | settings
    return encoded_corpus(ListedCorpus(pieces, read), tokenizer, cache_dir, **settings).cache


def on_rank(data, rank, world_size, batches_seen=0):
    """Return a data module as in one of several processes, after some batches."""
    data.trainer = Mock(global_rank=rank, world_size=world_size, overfit_batches=0)
    data.trainer.strategy.root_device = torch.device("cpu")
    data.trainer.fit_loop.epoch_loop.batch_progress.total.processed = batches_seen
    return data
