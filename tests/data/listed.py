"""Made pieces, and corpora of given pieces, read by a given function."""

from unittest.mock import Mock

import numpy as np
import torch

from musicgen.data.corpora import Corpus, Piece
from musicgen.midi import Score, Track, notes_from, write
from tests.data.settings import encoded_corpus


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
    def __init__(self, pieces, read):
        self.listed, self.function = pieces, read

    def pieces(self):
        return self.listed

    def read(self, path):
        return self.function(path)

    def reader_id(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"


def encoded(pieces, read, tokenizer, cache_dir, *, fractions=(0, 0), **settings):
    """Return a list of pieces as an encoded corpus."""
    val, test = fractions
    settings = {"chords": "markers", "val_fraction": val, "test_fraction": test} | settings
    return encoded_corpus(ListedCorpus(pieces, read), tokenizer, cache_dir, **settings)


def prepare(*args, **settings):
    """Encode a list of pieces; arguments as for `encoded`."""
    return encoded(*args, **settings).cache


def on_rank(data, rank, world_size, batches_seen=0):
    """Return a data module as in one of several processes, after some batches."""
    data.trainer = Mock(global_rank=rank, world_size=world_size, overfit_batches=0)
    data.trainer.strategy.root_device = torch.device("cpu")
    data.trainer.fit_loop.epoch_loop.batch_progress.total.processed = batches_seen
    return data
