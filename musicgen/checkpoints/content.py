"""The plain data that a checkpoint holds beside Lightning's own entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from musicgen.errors import UserError
from musicgen.text import pluralize

CONTENT_KEY = "musicgen"
FORMAT_VERSION = 3


@dataclass(frozen=True)
class CheckpointContent:
    """Plain data that rebuilds a model and its tokenizer.

    Attributes:
        model, tokenizer: their configurations, with `_target_`s; other data than music have no
            tokenizer.
        vocabulary: the tokens in id order; its hash is `Vocabulary.hash`.
        config: the resolved configuration of the run.
        sampling: what suits the model of `SamplingParams`, such as learned `max_notes`; else None.
        identity: of the run, see `run_identity`; "" if it is unknown.
        steps: optimizer steps taken; stored by Lightning, not among this data.
    """

    model: dict[str, Any]
    tokenizer: dict[str, Any] | None
    vocabulary: list[str]
    vocabulary_hash: str
    config: dict[str, Any]
    sampling: dict[str, Any] | None = None
    identity: str = ""
    format_version: int = FORMAT_VERSION
    steps: int = 0

    @classmethod
    def from_plain(cls, checkpoint: Mapping[str, Any]) -> CheckpointContent:
        """Return the content of a loaded checkpoint."""
        content = checkpoint.get(CONTENT_KEY)
        if not isinstance(content, Mapping):
            raise UserError("not a musicgen checkpoint; give one that train.py wrote")
        if (version := content.get("format_version")) != FORMAT_VERSION:
            raise UserError(
                f"checkpoint format {version}, but this musicgen reads format {FORMAT_VERSION}; "
                "use the version that wrote it"
            )
        try:
            found = cls(**{**content, "steps": checkpoint.get("global_step", 0)})
        except TypeError as error:  # fields are missing
            raise UserError(f"a damaged musicgen checkpoint ({error}); use another") from None
        for name in ("model", "config", "tokenizer", "sampling"):
            value = getattr(found, name)
            if not isinstance(value, Mapping) and (
                value is not None or name in ("model", "config")
            ):
                raise UserError(f"a damaged musicgen checkpoint ({name} is {value!r}); use another")
        return found

    def to_plain(self) -> dict[str, Any]:
        """Return the data that a checkpoint stores under `CONTENT_KEY`."""
        plain = asdict(self)
        del plain["steps"]
        return plain

    def describe(self, path: str | Path) -> str:
        """Say in one line which checkpoint this is: its file, steps, corpus and tokenizer."""
        corpus = self.config.get("data") or {}
        where = f" in {corpus['root']}" if corpus.get("root") else ""
        tokenizer = f", tokenizer {class_name(self.tokenizer)}" if self.tokenizer else ""
        steps = pluralize(self.steps, "steps")
        return f"{path}: {steps} on {class_name(corpus)}{where}{tokenizer}"

    def check_same_vocabulary(self, saved: CheckpointContent) -> None:
        """Raise `UserError` if saved weights belong to another vocabulary."""
        if saved.vocabulary_hash != self.vocabulary_hash:
            raise UserError(
                f"the checkpoint's vocabulary ({len(saved.vocabulary)} tokens) differs from this "
                f"run's ({len(self.vocabulary)}); use the tokenizer it was trained with"
            )


def class_name(config: Any) -> str:
    """Return the name of the class that a part of a configuration builds."""
    if not isinstance(config, Mapping):
        return ""
    return str(config.get("_target_", "")).rpartition(".")[2]
