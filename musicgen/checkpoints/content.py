"""The plain data that a checkpoint holds beside Lightning's own entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from musicgen.errors import UserError

CONTENT_KEY = "musicgen"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class CheckpointContent:
    """Plain data that rebuilds a model and its tokenizer.

    Attributes:
        model, tokenizer: their configurations, with `_target_`s.
        vocabulary: the tokens in id order; its hash is `Vocabulary.hash`.
        config: the resolved configuration of the run.
    """

    model: dict[str, Any]
    tokenizer: dict[str, Any]
    vocabulary: list[str]
    vocabulary_hash: str
    config: dict[str, Any]
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_plain(cls, checkpoint: Mapping[str, Any]) -> CheckpointContent:
        """Return the content of a loaded and migrated checkpoint."""
        content = checkpoint.get(CONTENT_KEY)
        if not isinstance(content, Mapping):
            raise UserError("not a musicgen checkpoint; give one that train.py wrote")
        if (version := content.get("format_version")) != FORMAT_VERSION:
            raise UserError(
                f"checkpoint format {version}, but this musicgen reads format {FORMAT_VERSION}; "
                "use the version that wrote it"
            )
        try:
            return cls(**content)
        except TypeError as error:
            raise UserError(f"a damaged musicgen checkpoint ({error}); use another") from None

    def check_same_vocabulary(self, saved: CheckpointContent) -> None:
        """Raise `UserError` if saved weights belong to another vocabulary."""
        if saved.vocabulary_hash != self.vocabulary_hash:
            raise UserError(
                f"the checkpoint's vocabulary ({len(saved.vocabulary)} tokens) differs from this "
                f"run's ({len(self.vocabulary)}); use the tokenizer it was trained with"
            )
