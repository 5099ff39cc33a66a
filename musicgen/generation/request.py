"""What to generate: how far, how often, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from musicgen.errors import ParameterError, UserError
from musicgen.generation.prompts import Prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.validation import check_bool, check_choice, check_int

Ending = Literal["open", "close"]


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
        ending: `open` stops at the end of the last bar; `close` ends the piece in it, see
            `Decoder.endings`.
        best_of: candidates for each continuation, see `Selection`.
        best_of_bars: bars after which one of the candidates is chosen and continued by all; None:
            whole continuations are the candidates.
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
    ending: Ending = "open"
    best_of: int = 1
    best_of_bars: int | None = None
    seed: int = 0
    compile: str | bool = "auto"

    def __post_init__(self) -> None:
        check_int("num_samples", self.num_samples)
        check_int("batch_size", self.batch_size)
        check_bool("allow_end", self.allow_end)
        check_bool("hold_tempo", self.hold_tempo)
        check_bool("hold_metre", self.hold_metre)
        check_choice("ending", self.ending, get_args(Ending))
        if self.ending == "close" and self.length.bars is None:
            raise ParameterError("ending", "close", "expected bars, not length_factor, beside it")
        check_int("best_of", self.best_of)
        check_int("best_of_bars", self.best_of_bars, none_means="the whole continuation")
        if self.best_of_bars is not None and self.best_of == 1:
            raise ParameterError(
                "best_of_bars", self.best_of_bars, "expected best_of > 1 beside it"
            )
        check_int("seed", self.seed, minimum=0)
