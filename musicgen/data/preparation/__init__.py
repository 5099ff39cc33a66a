"""Preparation of a corpus: from files to a token cache."""

from musicgen.data.preparation.encoded_corpus import EncodedCorpus
from musicgen.data.preparation.prepare import prepare_corpus, prepare_shard
from musicgen.data.preparation.request import Limits, PreparationRequest
from musicgen.data.preparation.splits import Shard
from musicgen.data.preparation.token_cache import TokenCache

__all__ = [
    "EncodedCorpus",
    "Limits",
    "PreparationRequest",
    "Shard",
    "TokenCache",
    "prepare_corpus",
    "prepare_shard",
]
