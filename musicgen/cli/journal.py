"""What `generate` has finished: a command that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation
from musicgen.generation.prompts import Prompt, decode
from musicgen.generation.rewriting import finished
from musicgen.generation.selection import Candidate, Selection
from musicgen.tokenization.base import Tokenizer


class Journal:
    """Finished continuations, one JSON line each, below a line with the command's settings.

    Args:
        folder: the command's output folder.
        settings: with which all continuations are made.
    """

    def __init__(
        self, folder: Path, prompts: Sequence[Prompt], settings: Mapping[str, Any]
    ) -> None:
        self.path, self.prompts = folder / ".finished.jsonl", prompts
        names = [prompt.name for prompt in prompts]
        self._settings = json.dumps({**settings, "prompts": names}, sort_keys=True)

    def read(self, tokenizer: Tokenizer) -> Iterator[Continuation]:
        """Yield what an earlier call of the same command finished.

        Raises:
            UserError: the earlier command had other settings.
        """
        if not self.path.exists():
            return
        *whole, partial = self.path.read_text(encoding="utf-8").split("\n")
        if whole[0] != self._settings:
            raise UserError(
                f"{self.path.parent}: holds pieces of a command with other settings that was "
                "stopped; repeat that command, or give another folder with out=DIR"
            )
        if partial:  # the process was killed while it wrote
            write_text(self.path, "".join(f"{line}\n" for line in whole))
        for line in whole[1:]:
            number, sample, ids, measures = json.loads(line)
            prompt, tokens, none = self.prompts[number], np.array(ids), np.empty(0, np.int64)
            selections = [Selection([Candidate(none, *m) for m in each]) for each in measures]
            score = decode(tokenizer, tokens, prompt)
            yield finished(prompt, sample, tokens, score, tuple(selections))

    def add(self, continuation: Continuation) -> Continuation:
        """Append a continuation, and return it."""
        measures = [
            [(c.log_likelihood, c.in_scale) for c in selection.candidates]
            for selection in continuation.selections
        ]
        number = [id(prompt) for prompt in self.prompts].index(id(continuation.prompt))
        entry = number, continuation.sample, continuation.tokens.tolist(), measures
        new = "" if self.path.exists() else self._settings + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{new}{json.dumps(entry)}\n")
        return continuation
