"""Vocabularies: token names and ids, saved as JSON with a hash of the content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.package_data import VOCABULARIES

IntArray = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model in id order. `PAD` is not among them: its id follows the last one."""

    PAD: ClassVar[str] = "PAD"

    tokens: tuple[str, ...]
    version: int = 1

    def __post_init__(self) -> None:
        assert len(self._ids) == len(self), "token names must differ from each other and from PAD"

    def __len__(self) -> int:
        """Return the number of ids including PAD: the V of a model."""
        return len(self.tokens) + 1

    @property
    def pad_id(self) -> int:
        return len(self.tokens)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate((*self.tokens, self.PAD))}

    def id(self, token: str) -> int:
        """Return the id of a token such as `Pitch_60`; raise `KeyError` if there is none."""
        return self._ids[token]

    def token(self, index: int) -> str:
        """Return the token of an id; raise `IndexError` outside 0..pad_id."""
        if not 0 <= index <= self.pad_id:
            raise IndexError(f"token id {index} is outside 0..{self.pad_id}")
        return self.PAD if index == self.pad_id else self.tokens[index]

    @cached_property
    def hash(self) -> str:
        return content_hash({"version": self.version, "tokens": self.tokens})

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "hash": self.hash, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Vocabulary:
        """Build the vocabulary from the data of `to_json`; raise `UserError` if it was changed."""
        try:
            tokens = tuple(str(token) for token in data["tokens"])
            version, stated = int(data["version"]), data["hash"]
        except (KeyError, TypeError, ValueError):
            raise UserError("not a vocabulary: expected version, hash and tokens") from None
        if content_hash({"version": version, "tokens": tokens}) != stated:
            raise UserError("the vocabulary was changed after it was saved; restore the file")
        return cls(tokens, version)

    def save(self, path: str | Path) -> None:
        save_json(self.to_json(), path)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        return load_json(path, cls.from_json)


@cache
def load_frozen(name: str) -> Vocabulary:
    return Vocabulary.load(VOCABULARIES / name / "vocab.json")


def assign_ids(
    families: Mapping[str, list[str]], frozen: str | None
) -> tuple[Vocabulary, dict[str, range]]:
    """Return the vocabulary of families of tokens, and the ids of each family.

    The ids are those in the file of the vocabulary named `frozen`; if None, they number the
    families in order.
    """
    tokens = tuple(chain.from_iterable(families.values()))
    vocabulary = Vocabulary(tokens) if frozen is None else load_frozen(frozen)
    ids = {}
    for family, names in families.items():
        start = vocabulary._ids.get(names[0], 0) if names else 0
        ids[family] = range(start, start + len(names))
    found = [vocabulary.tokens[i.start : i.stop] for i in ids.values()]
    if len(vocabulary.tokens) != len(tokens) or found != [tuple(n) for n in families.values()]:
        path = VOCABULARIES / str(frozen) / "vocab.json"
        raise UserError(f"{path}: not the tokens of this version of musicgen; restore the file")
    return vocabulary, ids


def within(tokens: IntArray, ids: range) -> NDArray[np.bool_]:
    """Return which tokens are in a range of ids. [...] -> [...]."""
    return (tokens >= ids.start) & (tokens < ids.stop)


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of plain data as JSON with sorted keys and no spaces."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def save_json(content: Mapping[str, Any], path: str | Path) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def load_json(path: str | Path, build: Callable[[Any], T]) -> T:
    """Build an object from a JSON file; every `UserError` names the file."""
    try:
        return build(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or endless brackets
        raise UserError(f"{path}: not JSON; give a file that musicgen saved") from None
