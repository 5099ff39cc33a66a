"""Music from a model: prompts cut at a bar, rows that end at a bar or a length, scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.generation.generate import generate
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import Score
from musicgen.models import Decoder, Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.values import flag, whole


@dataclass(frozen=True)
class Prompt:
    """The beginning of a piece.

    Attributes:
        name: where it comes from.
        tokens: [L] ids.
        end_time: musical time in grid steps at which the continuation begins.
        end_tick: the same in ticks of a decoded score.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its first tempo and its metre.
        notice: one line on what the vocabulary could not hold; empty where it held all.
    """

    name: str
    tokens: NDArray[np.int64]
    end_time: int
    end_tick: int
    bar_length: int
    score: Score
    notice: str


@dataclass(frozen=True)
class Continuation:
    """A prompt and what the model made of it.

    Attributes:
        prompt: the prompt.
        sample: number of the sample.
        tokens: [L] ids, the prompt's first.
        score: the music of all of them.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score

    @property
    def num_new_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt.tokens)

    @property
    def new_score(self) -> Score:
        """The continuation alone, from tick 0."""
        return self.score.clip(self.prompt.end_tick, self.score.end + 1)


@dataclass(frozen=True)
class Length:
    """How far a generation goes: by bars after the prompt, or by tokens with the prompt's.

    Attributes:
        bars: bars to add.
        total_tokens: or tokens in all.
        max_new_tokens: a row ends after this many, whatever the others say.
    """

    bars: int | None = None
    total_tokens: int | None = None
    max_new_tokens: int | None = None

    # More than any bar of either corpus holds; ends a row that would never reach its last bar.
    tokens_in_bar = 1024

    def __post_init__(self) -> None:
        if (self.bars is None) == (self.total_tokens is None):
            raise UserError("give either bars or length_factor, not both and not none")
        whole("bars", self.bars, null="")
        whole("max_new_tokens", self.max_new_tokens, null="no limit")

    def limit(self, prompt: Prompt, max_length: int | None) -> int:
        """Most tokens to add to a prompt, under a model whose positions may end.

        Raises:
            UserError: the prompt is as long as the whole should be.
        """
        if self.total_tokens is None:
            assert self.bars is not None
            limit = self.bars * self.tokens_in_bar
            if max_length is not None:  # bars are a wish: what fits is given
                limit = max(1, min(limit, max_length - len(prompt.tokens)))
        else:
            limit = self.total_tokens - len(prompt.tokens)
            if limit < 1:
                raise UserError(
                    f"{prompt.name}: the prompt has {len(prompt.tokens)} tokens, and "
                    f"{self.total_tokens} are to come out in all; give fewer prompt_bars or a "
                    "larger length_factor"
                )
        return limit if self.max_new_tokens is None else min(limit, self.max_new_tokens)


def make_prompt(tokenizer: Tokenizer, score: Score, name: str, num_bars: int | None) -> Prompt:
    """The first bars of a piece, from the first bar with a note on.

    Args:
        num_bars: None takes all.

    Raises:
        UserError: there is no note that the vocabulary holds.
    """
    whole("prompt_bars", num_bars, null="all")
    bar_length = tokenizer.bar_length(score)
    encoded, report = tokenizer.encode_with_report(score)
    grid = tokenizer.decode(encoded)
    if grid.num_notes == 0:
        raise UserError(
            f"{name}: no note that the {tokenizer.name} vocabulary holds ({report.summary()})"
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
    elif grid.time_signatures:  # the tokens tell each bar's metre
        last_bar = tokenizer.bar_length(grid.clip(int(bars[last]) * step, grid.end + 1))
    end_time = int(bars[last] - bars[first]) + last_bar
    start_tick, end_tick = int(bars[first]) * step, end_time * step
    # What sounds across the end keeps its length, so the prompt is cut as tokens, not as music.
    tokens = tokenizer.encode(grid.clip(start_tick, grid.end + 1))
    tokens = tokens[: np.searchsorted(tokenizer.times(tokens), end_time)]
    tokens = tokenizer.until_end(tokens)
    # REMI counts every bar as 4/4; a metre that its bars do not have would mislead.
    common = 4 * tokenizer.steps_per_beat
    metre = [
        signature
        for signature in score.time_signatures[:1]
        if common * signature.numerator == bar_length * signature.denominator
    ]
    frame = Score(score.ticks_per_beat, [], score.tempos[:1], metre)
    return Prompt(
        name=name,
        tokens=tokens,
        end_time=end_time,
        end_tick=end_tick,
        bar_length=last_bar,
        score=_with_frame(grid.clip(start_tick, start_tick + end_tick), frame),
        notice=f"{name}: {report.summary()}" if report.lossy else "",
    )


def _with_frame(score: Score, frame: Score) -> Score:
    """The score with another's first tempo and metre, where its own vocabulary has none."""
    tempos = score.tempos
    if not len(tempos) and len(frame.tempos):
        tempos = frame.tempos[:1].copy()
        tempos["tick"] = 0
    signatures = score.time_signatures or [s._replace(tick=0) for s in frame.time_signatures[:1]]
    return replace(score, tempos=tempos, time_signatures=signatures)


def empty_prompt(tokenizer: Tokenizer) -> Prompt:
    """Nothing, so that the model begins a piece of its own."""
    score = Score()
    bar_length = tokenizer.bar_length(score)
    tokens = tokenizer.start()
    return Prompt("from nothing", tokens, 0, 0, bar_length, score, "")


def continue_prompts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    *,
    length: Length,
    sampling: SamplingParams,
    num_samples: int = 1,
    batch_size: int = 32,
    allow_end: bool = False,
    seed: int = 0,
    compiled: str | bool = "auto",
    on_step: Callable[[int], None] = lambda num_tokens: None,
    say: Callable[[str], object] = warnings.warn,
) -> Iterator[Continuation]:
    """Yield `num_samples` continuations of each prompt, each as soon as it is finished.

    Args:
        batch_size: rows to compute at a time.
        compiled: whether to compile steps; as for `Decoder`.
        on_step: called after each step with the number of rows that got a token.
        say: told, in one line, that compiling was asked for and is not possible.

    Raises:
        UserError: a prompt leaves no room, or passes the model's limit; a value is of no use.
    """
    whole("num_samples", num_samples)
    whole("batch_size", batch_size)
    whole("seed", seed, at_least=0)
    flag("allow_end", allow_end)
    samples = range(num_samples)
    max_length = model.position.max_length
    limits = [length.limit(prompt, max_length) for prompt in prompts]  # before any work
    decoder = Decoder(model, compiled=compiled, say=say)
    size = max(1, batch_size // num_samples)
    for start in range(0, len(prompts), size):
        for first in range(0, num_samples, batch_size):
            yield from _continue_batch(
                decoder,
                tokenizer,
                prompts[start : start + size],
                limits[start : start + size],
                samples[first : first + batch_size],
                length,
                sampling,
                allow_end,
                seed,
                on_step,
            )


def _continue_batch(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    limits: Sequence[int],
    samples: Sequence[int],
    length: Length,
    sampling: SamplingParams,
    allow_end: bool,
    seed: int,
    on_step: Callable[[int], None],
) -> Iterator[Continuation]:
    pad = tokenizer.vocabulary.pad_id
    ends = None
    if length.bars is not None:
        ends = [prompt.end_time + length.bars * prompt.bar_length for prompt in prompts]
    rows = [(prompt, sample) for prompt in prompts for sample in samples]
    new: list[list[int]] = [[] for _ in rows]
    waiting = set(range(len(rows)))

    def finish(row: int) -> Continuation:
        waiting.remove(row)
        prompt, sample = rows[row]
        tokens = np.concatenate([prompt.tokens, np.array(new[row], dtype=np.int64)])
        score = _with_frame(tokenizer.decode(tokens), prompt.score)
        return Continuation(prompt, sample, tokens, score)

    positions = None
    if decoder.model.position.needs_positions:
        positions = [torch.from_numpy(tokenizer.positions(prompt.tokens)) for prompt in prompts]
    steps = generate(
        decoder,
        [torch.from_numpy(prompt.tokens) for prompt in prompts],
        positions=positions,
        grammar=tokenizer.grammar(),
        sampling=sampling,
        max_new_tokens=limits,
        end_times=ends,
        not_before=[prompt.end_time for prompt in prompts],
        allow_end=allow_end,
        samples=samples,
        seed=seed,
    )
    for step in steps:
        tokens = step.tolist()
        for row in sorted(waiting):
            if tokens[row] == pad:
                yield finish(row)
            else:
                new[row].append(tokens[row])
        on_step(len(waiting))
    for row in sorted(waiting):
        yield finish(row)
