"""Corpora of given pieces, read by a given function."""

from musicgen.data.corpora import Corpus
from musicgen.data.preparation import PreparationRequest, prepare_corpus


class ListedCorpus(Corpus):
    def __init__(self, pieces, read):
        self.listed, self.function = pieces, read

    def pieces(self):
        return self.listed

    def read(self, path):
        return self.function(path)

    def reader_id(self):
        return f"{self.function.__module__}.{self.function.__qualname__}"


def request_of(pieces, read, tokenizer, cache_dir, *, fractions=(0, 0), **settings):
    corpus = ListedCorpus(pieces, read)
    return PreparationRequest(
        corpus, tokenizer, cache_dir, fractions, **{"chords": "markers"} | settings
    )


def prepare(*args, **settings):
    """Prepare a list of pieces; arguments as for `request_of`."""
    return prepare_corpus(request_of(*args, **settings))
