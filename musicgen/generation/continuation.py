"""Continue pieces of music: prompts are cut at a bar, continuations end at a bar or a length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from musicgen.errors import UserError
from musicgen.generation.decoding import TokenPrompt, generate_tokens
from musicgen.generation.engines import make_engine
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import Score
from musicgen.models import Transformer
from musicgen.random import NoiseKey
from musicgen.tokenization.base import Tokenizer
from musicgen.validation import check_bool, check_int


@dataclass(frozen=True)
class Prompt:
    """The beginning of a piece.

    Attributes:
        tokens: [L] ids.
        end_time: musical time in grid steps at which the continuation begins.
        end_tick: the same in ticks of a decoded score.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its first tempo and its metre.
        piece: the same with the rest of the piece that it begins; without music if there is none.
        notice: one line on what the vocabulary cannot express; empty if nothing was lost.
    """

    name: str
    tokens: NDArray[np.int64]
    end_time: int
    end_tick: int
    bar_length: int
    score: Score
    piece: Score
    notice: str


@dataclass(frozen=True)
class Continuation:
    """A prompt with a continuation: `tokens` [L] and `score` hold both."""

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


def make_prompt(tokenizer: Tokenizer, score: Score, name: str, num_bars: int | None) -> Prompt:
    """Return the first `num_bars` of a piece (None: all) from the first bar that has a note."""
    check_int("num_bars", num_bars, none_means="all")
    bar_length = tokenizer.bar_length(score)
    encoded, summary = tokenizer.encode_with_summary(score)
    grid = tokenizer.decode(encoded)
    if grid.num_notes == 0:
        raise UserError(
            f"{name}: no note that the {tokenizer.name} vocabulary can represent "
            f"({summary.describe()})"
        )
    step = grid.ticks_per_beat // tokenizer.steps_per_beat  # ticks
    bars = tokenizer.bar_starts(encoded, bar_length)
    onsets = np.concatenate([track.notes["onset"] for track in grid.tracks]) // step
    first, last = np.searchsorted(bars, [onsets.min(), onsets.max()], side="right") - 1
    if num_bars is not None:
        last = min(first + num_bars - 1, last)
    last_bar = bar_length
    if last + 1 < len(bars):
        last_bar = int(bars[last + 1] - bars[last])
    elif grid.time_signatures:  # the tokens hold each bar's metre
        last_bar = tokenizer.bar_length(grid.clip(int(bars[last]) * step, grid.end + 1))
    end_time = int(bars[last] - bars[first]) + last_bar
    start_tick, end_tick = int(bars[first]) * step, end_time * step
    piece = grid.clip(start_tick, grid.end + 1)
    # Cut as tokens, not as music, so that notes that sound across the end keep their length.
    tokens = tokenizer.encode(piece)
    tokens = tokens[: np.searchsorted(tokenizer.times(tokens), end_time)]
    frame = _frame(tokenizer, score)
    return Prompt(
        name=name,
        tokens=tokenizer.until_end(tokens),
        end_time=end_time,
        end_tick=end_tick,
        bar_length=last_bar,
        score=_with_frame(piece.clip(0, end_tick), frame),
        piece=_with_frame(piece, frame),
        notice=f"{name}: {summary.describe()}" if summary.lossy else "",
    )


def on_grid(tokenizer: Tokenizer, score: Score) -> Score:
    """Return a score as its tokens hold it, with its first tempo and its metre."""
    return _with_frame(tokenizer.decode(tokenizer.encode(score)), _frame(tokenizer, score))


def _frame(tokenizer: Tokenizer, score: Score) -> Score:
    """Return the score without a metre whose bars are not as long as the tokenizer's."""
    common, bar_length = 4 * tokenizer.steps_per_beat, tokenizer.bar_length(score)
    metre = score.time_signatures[:1]
    if metre and common * metre[0].numerator != bar_length * metre[0].denominator:
        metre = []
    return replace(score, time_signatures=metre)


def _with_frame(score: Score, frame: Score) -> Score:
    """Return the score with the first tempo and metre of `frame` where it has none."""
    tempos = score.tempos
    if not len(tempos):
        tempos = frame.tempos[:1].copy()
        tempos["tick"] = 0
    signatures = score.time_signatures or [s._replace(tick=0) for s in frame.time_signatures[:1]]
    return replace(score, tempos=tempos, time_signatures=signatures)


def empty_prompt(tokenizer: Tokenizer) -> Prompt:
    """Return a prompt without music, from which the model starts a piece."""
    score = Score()
    bar_length = tokenizer.bar_length(score)
    return Prompt("from nothing", tokenizer.start_tokens(), 0, 0, bar_length, score, score, "")


@dataclass(frozen=True)
class ContinuationRequest:
    """How `continue_prompts` continues each prompt.

    Attributes:
        num_samples: continuations of each prompt.
        batch_size: rows to compute at a time.
        allow_end: whether the model may end a piece before its length.
        seed: decides the draws of tokens and of the positional encoding.
        compile: whether to compile steps, see `make_engine`.
    """

    length: Length
    sampling: SamplingParams
    num_samples: int = 1
    batch_size: int = 32
    allow_end: bool = False
    seed: int = 0
    compile: str | bool = "auto"

    def __post_init__(self) -> None:
        check_int("num_samples", self.num_samples)
        check_int("batch_size", self.batch_size)
        check_bool("allow_end", self.allow_end)
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
    token_prompts = [  # all of them before any work
        TokenPrompt(
            torch.from_numpy(prompt.tokens),
            torch.from_numpy(tokenizer.positions(prompt.tokens)),
            max_new_tokens=length.limit(prompt, max_length),
            start_time=prompt.end_time,
            end_time=length.end_time(prompt),
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
                seed=request.seed,
            )
            for row, new in _finished_rows(steps, tokenizer.vocabulary.pad_id, on_step):
                prompt, sample = rows[row]
                tokens = np.concatenate([prompt.tokens, np.array(new, dtype=np.int64)])
                score = _with_frame(tokenizer.decode(tokens), prompt.score)
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
