"""Vocabularies: token names and ids, saved as JSON with a hash of the content."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from musicgen.midi.score import IntArray

BoolArray = NDArray[np.bool_]

_VERSION = 1  # of the file's format


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model.

    Attributes:
        names: of the tokens in id order, without PAD, as files and hashes have them.
        tokens: all names in id order; PAD is the last.
    """

    PAD: ClassVar[str] = "PAD"

    names: tuple[str, ...]

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        return (*self.names, self.PAD)

    def __len__(self) -> int:
        """Return the number of tokens, PAD included: the V of a model."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        return len(self.names)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """Return the id of a token such as `Pitch_60`; raise `KeyError` if there is none."""
        return self._ids[token]

    def token(self, index: int) -> str:
        """Return the token of an id; raise `IndexError` past `pad_id`."""
        return self.tokens[index]

    @cached_property
    def hash(self) -> str:
        """The SHA-256, in hex, of version and tokens as JSON with sorted keys and no spaces."""
        content = {"version": _VERSION, "tokens": self.names}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "hash": self.hash, "tokens": list(self.names)}


def number_tokens(families: Mapping[str, Sequence[str]]) -> tuple[Vocabulary, dict[str, range]]:
    """Number the tokens of families one after the other; return the ids of each family, too."""
    ids, start = {}, 0
    for family, tokens in families.items():
        ids[family] = range(start, start + len(tokens))
        start += len(tokens)
    return Vocabulary(tuple(chain.from_iterable(families.values()))), ids


def within(tokens: IntArray, ids: range) -> BoolArray:
    """Return which tokens are in a range of ids. [...] -> [...]."""
    return (tokens >= ids.start) & (tokens < ids.stop)
