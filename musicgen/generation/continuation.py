"""Continue pieces of music; continuations end at a bar or a length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.generation.decoding import TokenPrompt, generate_tokens
from musicgen.generation.engines import make_engine
from musicgen.generation.prompts import Prompt, PromptSource, with_frame
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import Score, dumps, extend, loads
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_bool, check_choice, check_int

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
    """A prompt with a continuation: `tokens` [L] and `score` hold both, as the model sees them."""

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score

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


@dataclass(frozen=True)
class Length:
    """How far to generate: either bars after the prompt, or tokens in all.

    Attributes:
        total_tokens: the prompt's included.
        max_new_tokens: a limit on the new tokens in both cases.
    """

    bars: int | None = None
    total_tokens: int | None = None
    max_new_tokens: int | None = None

    # More than any bar of either corpus holds; ends a row that would never reach its last bar.
    max_tokens_per_bar: ClassVar[int] = 1024

    def __post_init__(self) -> None:
        if (self.bars is None) == (self.total_tokens is None):
            raise UserError("give exactly one of bars and length_factor (total_tokens)")
        check_int("bars", self.bars, none_means="")
        check_int("max_new_tokens", self.max_new_tokens, none_means="no limit")

    def limit(self, prompt: Prompt, max_length: int | None) -> int:
        """Return how many tokens to add to a prompt; `max_length` is the model's limit in all."""
        if self.bars is not None:
            limit = self.bars * self.max_tokens_per_bar
            if max_length is not None:  # fewer bars rather than none
                limit = max(1, min(limit, max_length - len(prompt.tokens)))
        else:
            assert self.total_tokens is not None
            limit = self.total_tokens - len(prompt.tokens)
            if limit < 1:
                raise UserError(
                    f"{prompt.name}: the prompt has {len(prompt.tokens)} tokens already, of "
                    f"{self.total_tokens} in all; keep fewer bars of it or generate more tokens"
                )
        return limit if self.max_new_tokens is None else min(limit, self.max_new_tokens)

    def end_time(self, prompt: Prompt) -> int | None:
        """Return the musical time at which a continuation ends; None if tokens end it."""
        return None if self.bars is None else prompt.end_time + self.bars * prompt.bar_length


@dataclass(frozen=True)
class ContinuationRequest:
    """How `continue_prompts` continues each prompt.

    Attributes:
        num_samples: continuations of each prompt.
        batch_size: rows to compute at a time.
        allow_end: whether the model may end a piece before its length.
        hold_tempo: whether the prompt's last tempo stays, see `Grammar.hold`.
        hold_metre: whether its last metre stays.
        seed: decides the draws of tokens and of the positional encoding.
        compile: whether to compile steps, see `make_engine`.
    """

    length: Length
    sampling: SamplingParams
    num_samples: int = 1
    batch_size: int = 32
    allow_end: bool = False
    hold_tempo: bool = False
    hold_metre: bool = False
    seed: int = 0
    compile: str | bool = "auto"

    def __post_init__(self) -> None:
        check_int("num_samples", self.num_samples)
        check_int("batch_size", self.batch_size)
        check_bool("allow_end", self.allow_end)
        check_bool("hold_tempo", self.hold_tempo)
        check_bool("hold_metre", self.hold_metre)
        check_int("seed", self.seed, minimum=0)


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
    length, max_length = request.length, model.position.max_length
    names = model.coordinate_names
    token_prompts = [  # all of them before any work
        TokenPrompt(
            torch.from_numpy(prompt.tokens),
            torch.from_numpy(
                tokenizer.coordinates(prompt.tokens, names, bar_length=prompt.bar_length)
            ),
            max_new_tokens=length.limit(prompt, max_length),
            start_time=prompt.end_time,
            end_time=length.end_time(prompt),
            bar_length=prompt.bar_length,
        )
        for prompt in prompts
    ]
    engine = make_engine(model, NoiseKey((request.seed,)), compile=request.compile, warn=warn)
    samples = range(request.num_samples)
    size = max(1, request.batch_size // request.num_samples)
    for start in range(0, len(prompts), size):
        for first in range(0, request.num_samples, request.batch_size):
            batch = samples[first : first + request.batch_size]
            rows = [(p, i) for p in prompts[start : start + size] for i in batch]
            steps = generate_tokens(
                engine,
                tokenizer.grammar(),
                token_prompts[start : start + size],
                request.sampling,
                batch,
                allow_end=request.allow_end,
                hold_tempo=request.hold_tempo,
                hold_metre=request.hold_metre,
                seed=request.seed,
                next_positions=partial(tokenizer.next_coordinates, names),
            )
            for row, new in _finished_rows(steps, tokenizer.vocabulary.pad_id, on_step):
                prompt, sample = rows[row]
                tokens = np.concatenate([prompt.tokens, np.array(new, dtype=np.int64)])
                score = with_frame(tokenizer.decode(tokens), prompt.score)
                yield Continuation(prompt, sample, tokens, score)


def _finished_rows(
    steps: Iterator[Tensor], pad: int, on_step: Callable[[int], None]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of each row and its tokens, as soon as the row gets its first pad."""
    rows: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        tokens = step.tolist()
        rows = rows if i else {row: [] for row in range(len(tokens))}
        for row in list(rows):
            if tokens[row] == pad:
                yield row, rows.pop(row)
            else:
                rows[row].append(tokens[row])
        on_step(len(rows))
    yield from rows.items()
