"""Corpora of given pieces, read by a given function."""

from musicgen.data.corpora import Corpus
from tests.data.settings import encoded_corpus


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
