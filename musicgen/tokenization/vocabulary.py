"""A frozen vocabulary: token names and ids, JSON with a hash that tells of changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_text

IntArray = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, in id order. `PAD` stands outside of them, as the last id."""

    PAD: ClassVar[str] = "PAD"

    tokens: tuple[str, ...]
    version: int = 1

    def __post_init__(self) -> None:
        assert len(self._ids) == len(self), "token names must differ from each other and from PAD"

    def __len__(self) -> int:
        """Number of ids, PAD included: the V of a model."""
        return len(self.tokens) + 1

    @property
    def pad_id(self) -> int:
        return len(self.tokens)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate((*self.tokens, self.PAD))}

    def id(self, token: str) -> int:
        """The id of a token's name, such as `Pitch_60`; `KeyError` if there is none."""
        return self._ids[token]

    def token(self, index: int) -> str:
        """The name of an id; `IndexError` outside 0..pad_id."""
        if not 0 <= index <= self.pad_id:
            raise IndexError(f"token id {index} is outside 0..{self.pad_id}")
        return self.PAD if index == self.pad_id else self.tokens[index]

    @cached_property
    def hash(self) -> str:
        """SHA-256, in hex, of version and tokens as JSON with sorted keys and no spaces."""
        return hash_of({"version": self.version, "tokens": self.tokens})

    def to_json(self) -> dict[str, Any]:
        """Plain data for `from_json`."""
        return {"version": self.version, "hash": self.hash, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary in `to_json`'s data.

        Raises:
            UserError: the data is no vocabulary, or its tokens do not have the hash it states.
        """
        try:
            tokens = tuple(str(token) for token in data["tokens"])
            version, stated = int(data["version"]), data["hash"]
        except (KeyError, TypeError, ValueError):
            raise UserError("no vocabulary (version, hash, tokens); use a saved one") from None
        if hash_of({"version": version, "tokens": tokens}) != stated:
            raise UserError("the vocabulary was changed after it was frozen; restore the file")
        return cls(tokens, version)

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, atomically."""
        save_json(self.to_json(), path)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file of `save`.

        Raises:
            UserError: the file is unreadable, no vocabulary, or was edited.
        """
        return load_json(path, cls.from_json)


def hash_of(content: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of plain data as JSON with sorted keys and no spaces."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def save_json(content: Mapping[str, Any], path: str | Path) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def load_json(path: str | Path, build: Callable[[Any], T]) -> T:
    """What `build` makes of a file's content; a `UserError` of its names the file."""
    try:
        return build(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or brackets without end
        raise UserError(f"{path}: not JSON; give a file that musicgen saved") from None


def vocabulary_of(families: Mapping[str, list[str]]) -> tuple[Vocabulary, dict[str, range]]:
    """The families' tokens one after the other, and the range of ids of each family."""
    ids, start = {}, 0
    for family, tokens in families.items():
        ids[family] = range(start, start + len(tokens))
        start += len(tokens)
    return Vocabulary(tuple(t for tokens in families.values() for t in tokens)), ids


def within(tokens: IntArray, ids: range) -> NDArray[np.bool_]:
    """Which tokens belong to a family. [...] -> [...]."""
    return (tokens >= ids.start) & (tokens < ids.stop)
