"""A corpus as tokens: its cache and its splits, without the loading of batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from musicgen.console import warn
from musicgen.data.corpora.base import SPLITS, Corpus
from musicgen.data.preparation.prepare import find_cache, prepare_corpus, prepare_shard
from musicgen.data.preparation.request import Limits, PreparationRequest
from musicgen.data.preparation.splits import Shard
from musicgen.data.preparation.token_cache import TokenCache
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource
from musicgen.validation import check_choice, check_float, check_int


class EncodedCorpus:
    """A corpus and the tokens of its pieces, which are computed on first use.

    Args:
        cache_dir: folder of the token caches.
        val_fraction, test_fraction: parts of the corpus, by group, if it has no split of its own;
            0 makes no such split, and all pieces are used for it.
        limits: limits of a piece; see `Limits`.
        prepare_workers: processes that encode the corpus; None uses one per core.
        chords: source of the chords, if the tokenizer has chords: the scores' `markers`, `auto`
            (recognised from the notes of scores without such markers), `recognised` (always), or
            `none`.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        cache_dir: str | Path,
        *,
        val_fraction: float = 0.05,
        test_fraction: float = 0.05,
        limits: Limits | Mapping[str, Any] | None = None,
        prepare_workers: int | None = None,
        chords: ChordSource = "auto",
    ) -> None:
        check_float("val_fraction", val_fraction, below=1)
        check_float("test_fraction", test_fraction, below=1)
        if val_fraction + test_fraction >= 1:
            expected = f"expected less than 1 together with val_fraction={val_fraction}"
            raise ParameterError("test_fraction", test_fraction, expected)
        check_int("prepare_workers", prepare_workers, none_means="one per core")
        check_choice("chords", chords, get_args(ChordSource))
        with parameter_of("limits"):
            limits = Limits.of(limits)
        self.corpus, self.tokenizer = corpus, tokenizer
        fractions = val_fraction, test_fraction
        self._request = PreparationRequest(
            corpus, tokenizer, Path(cache_dir), fractions, limits, chords, prepare_workers
        )
        self._cache: TokenCache | None = None

    @property
    def cache(self) -> TokenCache:
        """The encoded corpus; encodes it first if necessary."""
        if self._cache is None:
            self._cache = prepare_corpus(self._request)
        return self._cache

    def find_cache(self) -> TokenCache | None:
        """Return the encoded corpus if there is one; encode, compose and download nothing."""
        request = self._request
        if self._cache is None and request.corpus.root.exists() and request.cache_dir.is_dir():
            self._cache = find_cache(request)
        return self._cache

    def prepare_shard(self, shard: Shard) -> TokenCache | None:
        """Encode a part of the corpus; return the cache once all parts are done."""
        self._cache = prepare_shard(self._request, shard)
        return self._cache

    def split(self, name: str) -> list[int]:
        """Return the cache's pieces of a split; all of them if the split is empty.

        Raises:
            UserError: the split is empty, and the corpus has a published split without it.
        """
        check_choice("split", name, SPLITS)
        pieces = self.cache.pieces(name)
        if pieces:
            return pieces
        if error := self.corpus.missing_split(name):
            raise UserError(error)
        warn(
            f"no {name} pieces among {len(self.cache)}: all pieces are used, so the loss does not "
            "measure generalisation"
        )
        return list(range(len(self.cache)))
