"""The settings of a preparation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from musicgen.data.corpora.base import Corpus
from musicgen.errors import ParameterError
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.recognition import ChordSource
from musicgen.validation import check_float


@dataclass(frozen=True)
class Limits:
    """Limits of a piece; one that exceeds them is left out and reported.

    Attributes:
        max_megabytes: size of its files.
        max_seconds, max_gigabytes: time and memory to read and encode it.
        max_tokens: tokens of its encoding. The tokenizer limits its length in bars.
        min_notes: notes that the vocabulary can represent.
    """

    max_megabytes: float = 20
    max_seconds: float = 60
    max_gigabytes: float = 4
    max_tokens: int = 1_000_000
    min_notes: int = 1

    def __post_init__(self) -> None:
        for limit in fields(self):
            check_float(limit.name, getattr(self, limit.name), above=0)

    @classmethod
    def of(cls, limits: Limits | Mapping[str, Any] | None) -> Limits:
        """Convert plain data; None gives the defaults."""
        if isinstance(limits, Limits):
            return limits
        names = [limit.name for limit in fields(cls)]
        for name, value in (limits or {}).items():
            if name not in names:
                raise ParameterError(name, value, f"no such limit; expected {', '.join(names)}")
        return cls(**(limits or {}))


@dataclass(frozen=True)
class PreparationRequest:
    """A corpus to encode, and the settings.

    Attributes:
        cache_dir: folder of all token caches.
        fractions: parts of the groups that go to validation and to test.
        chords: source of the chords, if the tokenizer has chords; see `with_chords`.
        num_workers: processes; None uses one per available core.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    cache_dir: Path
    fractions: tuple[float, float]
    limits: Limits = Limits()
    chords: ChordSource = "auto"
    num_workers: int | None = None
