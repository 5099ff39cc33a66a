"""What to generate: one record, from the command line, Python and callbacks alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import ENGINES
from musicgen.generation.prompts import Prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.generation.transposition import tonic_of
from musicgen.midi import program_number
from musicgen.models import Transformer
from musicgen.tokenization.base import MAX_TOKENS_PER_BAR, Tokenizer
from musicgen.tokenization.chords.progression import parse_progression
from musicgen.validation import check_bool, check_choice, check_float, check_int

Ending = Literal["open", "close"]

DEFAULT_BARS = 16


@dataclass(frozen=True)
class GenerationRequest:
    """How each prompt is continued; the only place of the options' defaults.

    Attributes:
        sampling: how tokens are drawn.
        bars: bars to add; 16 if `total_tokens` is not given either.
        total_tokens: tokens in all, the prompt's included, instead of bars.
        max_new_tokens: a limit on the new tokens in both cases; None: no limit.
        num_samples: continuations of each prompt.
        batch_size: rows to compute at a time.
        allow_end: whether the model may end a piece before its length.
        hold_tempo: whether the prompt's last tempo stays, see `Grammar.hold`.
        hold_metre: whether its last metre stays.
        tempo: quarters a minute from the prompt's end on, or from the beginning without a prompt;
            the model reads the prompt at it. With `hold_tempo` it stays. None: the prompt's.
        transpose: semitones by which prompts are moved before they are continued.
        key: the tonic that prompts are moved to, such as D, Eb or F#, the nearest way; their mode
            stays. None: they stay where they are.
        program: the General MIDI program of the continuation, 0 to 127 or a name such as Violin;
            for a model of several tracks, those of some by name. The prompt in its own file keeps
            its programs. None: those of the prompt, or of the tokenizer.
        ending: `open` stops at the end of the last bar; `close` ends the piece in it, as the
            endings of the corpus sound, see `Sampler`.
        form: a letter for each section, such as AABA, prompt included: sections of equal letters
            are alike, others are not; it begins again when it ends. For models with a copy head.
            None: no wish.
        section_bars: bars in a section of `form`.
        best_of: candidates for each continuation, of which the best by likelihood and key is kept,
            see `Selection`.
        best_of_bars: bars after which one of the candidates is chosen and continued by all; None:
            whole continuations are the candidates.
        chords: the chords of what is added, such as `C Am F G`, see `parse_progression`; they begin
            again when they end. For tokens with chords. None: the model chooses.
        keep: parts of the prompt, by name; the prompt is a whole piece then, of which the other
            parts are written anew. `chords`: the chords of the whole piece go on after its first
            bars, to its end or for `bars`.
        fill: bars (first, last), from 1 on, which are written anew; everything else stays.
        tracks: parts, by name, that are written in `fill`; none: all.
        seed: decides all random draws. The positional encoding's noise is drawn once for a
            request: its pieces share it, as one piece keeps it from token to token.
        engine: `auto`, `eager` or `onnx`, see `make_engine`.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    bars: int | None = None
    total_tokens: int | None = None
    max_new_tokens: int | None = None
    num_samples: int = 1
    batch_size: int = 32
    allow_end: bool = False
    hold_tempo: bool = True
    hold_metre: bool = True
    tempo: float | None = None
    transpose: int = 0
    key: str | None = None
    program: Any = None
    ending: Ending = "open"
    form: str | None = None
    section_bars: int = 8
    best_of: int = 1
    best_of_bars: int | None = None
    chords: str | None = None
    keep: str | Sequence[str] = ()
    fill: Any = ()
    tracks: str | Sequence[str] = ()
    seed: int = 0
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.bars is not None and self.total_tokens is not None:
            raise UserError("give either bars or length_factor (total_tokens), not both")
        for name in ("keep", "tracks"):
            object.__setattr__(self, name, tuple(map(str, _entries(getattr(self, name)))))
        object.__setattr__(self, "fill", _ranges(self.fill))
        self._check_rewriting()
        self._check_chords()
        if self.bars is None and self.total_tokens is None and not (self.keep or self.fill):
            object.__setattr__(self, "bars", DEFAULT_BARS)
        check_int("bars", self.bars, none_means="")
        check_bool("allow_end", self.allow_end)
        check_bool("hold_tempo", self.hold_tempo)
        check_bool("hold_metre", self.hold_metre)
        check_float("tempo", self.tempo, 4, maximum=1000, none_means="the prompt's")
        check_int("transpose", self.transpose, -127, maximum=127)
        if self.key is not None:
            tonic_of(self.key)
            if self.transpose:
                raise ParameterError("transpose", self.transpose, "expected no key beside it")
        check_int("max_new_tokens", self.max_new_tokens, none_means="no limit")
        check_int("num_samples", self.num_samples)
        check_int("batch_size", self.batch_size)
        check_choice("engine", self.engine, ENGINES)
        check_choice("ending", self.ending, get_args(Ending))
        if self.ending == "close" and self.total_tokens is not None:
            raise ParameterError("ending", "close", "expected bars, not length_factor, beside it")
        if self.form is not None and not (isinstance(self.form, str) and self.form.isalpha()):
            raise ParameterError("form", self.form, "expected a letter for each section, as AABA")
        check_int("section_bars", self.section_bars)
        check_int("best_of", self.best_of)
        check_int("best_of_bars", self.best_of_bars, none_means="the whole continuation")
        if self.best_of_bars is not None and self.best_of == 1:
            raise ParameterError(
                "best_of_bars", self.best_of_bars, "expected best_of > 1 beside it"
            )
        check_int("seed", self.seed, minimum=0)

    def programs(self, tokenizer: Tokenizer) -> dict[int, int]:
        """Return the program of each decoded track that `program` names, by index.

        Raises:
            ParameterError: there is no such track or program.
        """
        if self.program is None:
            return {}
        tracks = tokenizer.decode(tokenizer.start_tokens()).tracks
        pitched = {track.name.lower(): i for i, track in enumerate(tracks) if not track.is_drum}
        given = self.program
        if len(pitched) == 1 and not isinstance(given, Mapping):
            given = dict.fromkeys(pitched, given)
        if not isinstance(given, Mapping) or {str(name).lower() for name in given} - pitched.keys():
            names = ", ".join(tracks[i].name for i in pitched.values())
            raise ParameterError("program", self.program, f"expected a program by name, of {names}")
        return {pitched[str(name).lower()]: program_number(value) for name, value in given.items()}

    @property
    def rewrites(self) -> bool:
        """Whether prompts are pieces of which some is written anew, rather than continued."""
        return bool(self.keep or self.fill) and not self.keeps_chords

    @property
    def keeps_chords(self) -> bool:
        """Whether continuations have the chords of the prompt's piece."""
        return self.keep == ("chords",)

    @cached_property
    def progression(self) -> list[list[int]] | None:
        """The chords of each bar that is added, as `parse_progression` returns them."""
        return None if self.chords is None else parse_progression(self.chords)

    def _check_chords(self) -> None:
        if self.progression is not None and self.keeps_chords:
            raise ParameterError("chords", self.chords, "expected no keep beside it")
        if self.total_tokens is not None:
            for name, value in ("chords", self.chords), ("keep", ",".join(self.keep)):
                if value:
                    raise ParameterError(name, value, "expected bars, not length_factor, beside it")

    def _check_rewriting(self) -> None:
        if self.keep and self.fill:
            raise ParameterError("keep", ",".join(self.keep), "expected no fill beside it")
        if self.tracks and not self.fill:
            raise ParameterError("tracks", ",".join(self.tracks), "expected fill beside it")
        if not self.rewrites:
            return
        others: dict[str, Any] = {"best_of": 1, "ending": "open"}
        names = "bars", "total_tokens", "max_new_tokens", "form", "tempo", "program", "chords"
        others |= dict.fromkeys(names)
        for name, default in others.items():
            if getattr(self, name) != default:
                expected = "expected to be left out beside keep or fill, where the piece decides it"
                raise ParameterError(name, getattr(self, name), expected)

    def end_time(self, prompt: Prompt) -> int | None:
        """Return the musical time at which a continuation ends; None if tokens end it."""
        if self.bars is None:
            return prompt.last_time
        return prompt.end_time + self.bars * prompt.bar_length

    def num_new_tokens(self, prompt: Prompt, model: Transformer) -> int:
        """Return how many tokens to add at most.

        Raises:
            UserError: the prompt has `total_tokens` already, or the model's positional encoding is
                shorter than the prompt and what is to follow.
        """
        given, longest = len(prompt.tokens), model.position.max_length
        if self.total_tokens is None:
            end = self.end_time(prompt)
            assert end is not None
            num_bars = -(-(end - prompt.end_time) // prompt.bar_length)
            limit = num_bars * MAX_TOKENS_PER_BAR
            if longest is not None:  # fewer bars rather than none
                limit = max(1, min(limit, longest - given))
        else:
            limit = self.total_tokens - given
            if limit < 1:
                raise UserError(
                    f"{prompt.name}: the prompt has {given} tokens already, of "
                    f"{self.total_tokens} in all; keep fewer bars of it or generate more tokens"
                )
        limit = min(limit, self.max_new_tokens or limit)
        if longest is not None and given + limit > longest:
            raise UserError(
                f"{given + limit} tokens are more than the max_length={longest} of this "
                f"model's positional encoding ({model.position.name}). Generate fewer, or train "
                "with an encoding without a limit, such as sine_spe, sinusoidal or none"
            )
        return limit


def _entries(value: Any) -> list[Any]:
    """Return the entries of a list, or of text with commas; another value is the only one."""
    if isinstance(value, str):
        return value.split(",")
    return list(value) if isinstance(value, Iterable) else [value]


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    """Return ranges of bars, such as 5, 9-12 or [3-4,9-12], in order; neighbours become one."""
    ranges: list[tuple[int, int]] = []
    for each in _entries(value):
        is_pair = isinstance(each, Sequence) and not isinstance(each, str)
        text = "-".join(map(str, each)) if is_pair else str(each)
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last:
            raise ParameterError("fill", text, "expected bars from 1 on, as 9-12 or [3-4,9-12]")
        ranges.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)
