"""Preparation of a corpus: from files to a token cache."""

from musicgen.data.preparation.cache import TokenCache
from musicgen.data.preparation.prepare import EncodedCorpus
