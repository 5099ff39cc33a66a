"""Continue pieces of music; continuations end at a bar or a length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.generation.decoder import Decoder, OpenPiece
from musicgen.generation.prompts import Prompt, PromptSource, with_frame
from musicgen.generation.request import ContinuationRequest, Length
from musicgen.generation.selection import Candidate, Selection, measure
from musicgen.midi import Score, dumps, extend, loads
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_choice

__all__ = [
    "Continuation",
    "ContinuationRequest",
    "KeepPrompt",
    "Length",
    "MidiFile",
    "continue_prompts",
]

KeepPrompt = Literal["original", "tokens"]


class MidiFile(NamedTuple):
    """A piece as it is written.

    Attributes:
        data: the bytes of the file.
        prompt_end: its tick at which the continuation begins.
        notice: one line if the prompt's own file could not be kept; else empty.
    """

    data: bytes
    prompt_end: int
    notice: str = ""


@dataclass(frozen=True)
class Continuation:
    """A prompt with a continuation: `tokens` [L] and `score` hold both, as the model sees them.

    `selection` says which candidate it is, if there were several.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score
    selection: Selection | None = None

    @property
    def num_new_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt.tokens)

    @property
    def new_score(self) -> Score:
        """The continuation alone, starting at tick 0."""
        return self.score.clip(self.prompt.end_tick, self.score.end + 1)

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> MidiFile:
        """Return the piece as a MIDI file.

        Args:
            keep_prompt: `original` appends the continuation to the file that the prompt was read
                from, see `musicgen.midi.extend`; a prompt without one, and every prompt with
                `tokens`, is written as the model saw it.
        """
        check_choice("keep_prompt", keep_prompt, get_args(KeepPrompt))
        source, notice = self.prompt.source, ""
        if keep_prompt == "original" and source is not None:
            try:
                data = extend(
                    source.data,
                    source.end,
                    self._added(source),
                    source.find_track,
                    whole=source.whole,
                )
                loads(data)
                return MidiFile(data, source.end)
            except UserError as error:
                notice = f"{self.prompt.name}: written as the model saw it, since {error}"
        return MidiFile(dumps(self.score), self.prompt.end_tick, notice)

    def save(self, path: str | Path, keep_prompt: KeepPrompt = "original") -> None:
        """Write the piece as a MIDI file, creating its folder. See `midi_file`."""
        write_bytes(path, self.midi_file(keep_prompt).data)

    def _added(self, source: PromptSource) -> Score:
        """Return the continuation alone, with the changes of tempo, metre and chord in it."""
        start = self.prompt.end_tick
        tempos = self.score.tempos[self.score.tempos["tick"] >= start].copy()
        tempos["tick"] -= start

        def changes(events: Sequence[Any]) -> list[Any]:
            return [
                event._replace(tick=event.tick - start) for event in events if event.tick >= start
            ]

        signatures, markers = changes(self.score.time_signatures), changes(self.score.markers)
        if source.metre is not None and not (signatures and signatures[0].tick == 0):
            signatures.insert(0, source.metre)
        return replace(self.new_score, tempos=tempos, time_signatures=signatures, markers=markers)


def continue_prompts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    request: ContinuationRequest,
    *,
    on_step: Callable[[int], None] = lambda num_tokens: None,
    warn: Callable[[str], object] = warnings.warn,
) -> Iterator[Continuation]:
    """Yield `num_samples` continuations of each prompt, each as soon as it is finished.

    Args:
        on_step: called after each step with the number of rows that got a token.
        warn: called with one line if a requested compilation is not possible.
    """
    decoder = Decoder(model, tokenizer, request, on_step=on_step, warn=warn)
    token_prompts = [decoder.token_prompt(prompt) for prompt in prompts]  # all before any work
    draws = [(i, c) for i in range(request.num_samples) for c in range(request.best_of)]
    size = max(1, request.batch_size // len(draws))
    found: dict[tuple[int, int], dict[int, Candidate]] = {}  # by prompt and sample
    for start in range(0, len(prompts), size):
        group = range(len(prompts))[start : start + size]
        for first in range(0, len(draws), request.batch_size):
            batch = draws[first : first + request.batch_size]
            numbers = [(p, *draw) for p in group for draw in batch]
            rows = [(p - start, decoder.key(i, c)) for p, i, c in numbers]
            open_pieces = []
            for row, new, log_probs in decoder.rows(token_prompts[start : start + size], rows):
                p, i, c = numbers[row]
                tokens = np.append(prompts[p].tokens, np.array(new, dtype=np.int64))
                piece = _continuation(tokenizer, prompts[p], i, tokens)
                if request.best_of > 1:
                    of_sample = found.setdefault((p, i), {})
                    of_sample[c] = measure(piece.prompt, tokens, piece.new_score, log_probs)
                    if len(of_sample) < request.best_of:
                        continue
                    selection = Selection([of_sample[c] for c in range(request.best_of)])
                    del found[p, i]
                    piece = _continuation(tokenizer, piece.prompt, i, selection.tokens, selection)
                if decoder.closes:
                    open_pieces.append(piece)
                else:
                    yield piece
            unclosed = [OpenPiece(p.prompt, p.sample, p.tokens) for p in open_pieces]
            for piece, tokens in zip(open_pieces, decoder.endings(unclosed), strict=True):
                yield _continuation(tokenizer, piece.prompt, piece.sample, tokens, piece.selection)


def _continuation(
    tokenizer: Tokenizer,
    prompt: Prompt,
    sample: int,
    tokens: NDArray[np.int64],
    selection: Selection | None = None,
) -> Continuation:
    score = with_frame(tokenizer.decode(tokens), prompt.score)
    return Continuation(prompt, sample, tokens, score, selection)
