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
from musicgen.generation.decoder import Decoder, Draft
from musicgen.generation.prompts import Prompt, PromptSource, with_frame
from musicgen.generation.request import ContinuationRequest, Length
from musicgen.generation.selection import Candidate, Selection, measure
from musicgen.midi import Score, dumps, extend, loads
from musicgen.models import Transformer
from musicgen.tokenization.base import TICKS_PER_BEAT, Tokenizer
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

    `selections` are the choices among several candidates that it is made of, one after another.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score
    selections: tuple[Selection, ...] = ()

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
    for prompt in prompts:  # before any work
        decoder.check(prompt)
    drafts = [Draft(p, i, p.tokens) for p in prompts for i in range(request.num_samples)]
    size = max(1, request.batch_size // request.best_of)
    for start in range(0, len(drafts), size):
        unclosed = []
        for draft in _complete(decoder, drafts[start : start + size]):
            if decoder.closes:
                unclosed.append(draft)
            else:
                yield _continuation(tokenizer, draft)
        for draft, tokens in zip(unclosed, decoder.endings(unclosed), strict=True):
            yield _continuation(tokenizer, draft._replace(tokens=tokens))


def _continuation(tokenizer: Tokenizer, draft: Draft) -> Continuation:
    score = with_frame(tokenizer.decode(draft.tokens), draft.prompt.score)
    return Continuation(draft.prompt, draft.sample, draft.tokens, score, draft.selections)


def _complete(decoder: Decoder, drafts: Sequence[Draft]) -> Iterator[Draft]:
    """Yield each draft as soon as it is complete, but for the bar that closes it."""
    stage = 0
    while drafts:
        incomplete = []
        for draft in _next_stage(decoder, drafts, stage):
            if decoder.is_complete(draft, stage):
                yield draft
            else:
                incomplete.append(draft)
        drafts, stage = incomplete, stage + 1


def _next_stage(decoder: Decoder, drafts: Sequence[Draft], stage: int) -> Iterator[Draft]:
    """Yield each draft with the best candidate for a stage of it."""
    request, tokenizer = decoder.request, decoder.tokenizer
    # Samples that share their prompt's array share its prefill.
    keys = [(id(draft.prompt), id(draft.tokens)) for draft in drafts]
    prompts = {
        key: decoder.token_prompt(draft, stage) for key, draft in zip(keys, drafts, strict=True)
    }
    numbers = {key: number for number, key in enumerate(prompts)}
    draws = [(i, c) for i in range(len(drafts)) for c in range(request.best_of)]
    found: list[dict[int, Candidate]] = [{} for _ in drafts]
    for first in range(0, len(draws), request.batch_size):
        batch = draws[first : first + request.batch_size]
        rows = [(numbers[keys[i]], decoder.key(drafts[i].sample, c, stage)) for i, c in batch]
        for row, new, log_probs in decoder.rows(list(prompts.values()), rows):
            i, c = batch[row]
            draft = drafts[i]
            tokens = np.append(draft.tokens, np.array(new, dtype=np.int64))
            if request.best_of > 1:
                tick = TICKS_PER_BEAT // tokenizer.steps_per_beat * prompts[keys[i]].start_time
                found[i][c] = measure(
                    draft.prompt, tokens, tokenizer.decode(tokens), tick, log_probs
                )
                if len(found[i]) < request.best_of:
                    continue
                selection = Selection([found[i][c] for c in range(request.best_of)])
                tokens = selection.tokens
                draft = draft._replace(selections=(*draft.selections, selection))
            yield draft._replace(tokens=tokens)
