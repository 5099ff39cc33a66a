"""What to generate: one record, from the command line, Python and callbacks alike."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import ENGINES
from musicgen.generation.prompts import Prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import KeySignature
from musicgen.midi.key import key_fifths
from musicgen.midi.roles import program_number
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.progression import parse_progression
from musicgen.tokenization.codec import MAX_TOKENS_PER_BAR
from musicgen.validation import check_bool, check_choice, check_float, check_int


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
        fix_tempo: keep the prompt's last tempo.
        fix_time_signature: keep its last time signature.
        limit_durations: no note is longer than the longest of its track in the prompt, for tokens
            that begin and end notes, those of bands.
        tempo: quarters a minute from the prompt's end on, or from the beginning without a prompt;
            the model reads the prompt at it. With `fix_tempo` it stays. None: the prompt's.
        program: the General MIDI program of the continuation, 0 to 127 or a name such as Violin;
            for a model of several tracks, those of some by name. The prompt in its own file keeps
            its programs. None: those of the prompt, or of the tokenizer.
        ending: `open` stops with the last bar; `close` ends the piece in it, see `Grammar.close`.
        form: a letter for each section, such as AABA, prompt included: sections of equal letters
            are alike, others not; it begins again when it ends. With a copy head. None: no wish.
        section_bars: bars in a section of `form`.
        chords: the chords of what is added, such as `C Am F G`, see `parse_progression`; they begin
            again when they end. For tokens with chords. None: the model chooses.
        key: of what is written, such as Eb, F#m or a number of sharps (of flats if below 0), for
            tokens with keys; None: the prompt's.
        keep: voices or parts of the prompt, by name, to which the others are written anew; the
            prompt is a whole piece then. For models in which they may lead.
        rewrite: bars of a whole piece that are written anew, but for the parts in `keep`, such as
            9-12; all others stay. For models of songs.
        beats: of a prompt that was played, see `on_beats`: `auto` finds them if the notes lie on no
            grid of the file's ticks, `file` takes those of the file, and a path names a text file
            of beats. The music sounds as before, and goes on at the pace of its last bars.
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
    fix_tempo: bool = True
    fix_time_signature: bool = True
    limit_durations: bool = True
    tempo: float | None = None
    program: Any = None
    ending: str = "open"
    form: str | None = None
    section_bars: int = 8
    chords: str | None = None
    key: Any = None
    keep: Any = ()
    rewrite: Any = None
    beats: str = "auto"
    seed: int = 0
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.bars is not None and self.total_tokens is not None:
            raise UserError("give either bars or length_factor (total_tokens), not both")
        given = self.keep.split(",") if isinstance(self.keep, str) else self.keep
        given = given if isinstance(given, Iterable) else [given]
        object.__setattr__(self, "keep", tuple(str(name).strip() for name in given))
        for name, is_asked in ("chords", self.progression), ("ending", self.ending == "close"):
            if is_asked and self.total_tokens is not None:
                expected = "expected bars, not length_factor, beside it"
                raise ParameterError(name, getattr(self, name), expected)
        names = "ending", "bars", "total_tokens", "max_new_tokens", "form", "tempo", "program"
        for name in names:
            if self.keeps and getattr(self, name) != getattr(type(self), name):  # the default
                expected = "expected to be left out beside keep and rewrite: the piece decides it"
                raise ParameterError(name, getattr(self, name), expected)
        if self.bars is None and self.total_tokens is None and not self.keeps:
            object.__setattr__(self, "bars", 16)
        check_int("bars", self.bars, none_means="")
        for name in "allow_end", "fix_tempo", "fix_time_signature", "limit_durations":
            check_bool(name, getattr(self, name))
        check_float("tempo", self.tempo, 4, maximum=1000, none_means="the prompt's")
        check_int("max_new_tokens", self.max_new_tokens, none_means="no limit")
        for name in "num_samples", "batch_size", "section_bars":
            check_int(name, getattr(self, name))
        check_choice("engine", self.engine, ENGINES)
        check_choice("ending", self.ending, ("open", "close"))
        if self.form is not None and not (isinstance(self.form, str) and self.form.isalpha()):
            raise ParameterError("form", self.form, "expected a letter for each section, as AABA")
        check_int("seed", self.seed, minimum=0)

    @property
    def keeps(self) -> bool:
        """Whether the prompt is a whole piece, of which some is kept."""
        return bool(self.keep) or self.rewrite is not None

    @cached_property
    def rewritten(self) -> tuple[int, int] | None:
        """The first bar of `rewrite`, from 0, and the bar after the last."""
        if self.rewrite is None:
            return None
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(self.rewrite))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ParameterError("rewrite", self.rewrite, "expected bars from 1, such as 9-12")
        return first - 1, last

    @cached_property
    def key_signatures(self) -> list[KeySignature]:
        """The signature of `key`, if there is one."""
        return [] if self.key is None else [KeySignature(0, key_fifths(self.key))]

    def programs(self, tokenizer: Tokenizer) -> dict[int, int]:
        """Return the program of each decoded track that `program` names, by index.

        Raises:
            ParameterError: there is no such track or program.
        """
        if self.program is None:
            return {}
        tracks = tokenizer.decode(tokenizer.start_tokens()).tracks
        pitched = {track.name.lower(): i for i, track in enumerate(tracks) if not track.is_drum}
        is_for_all = len(pitched) == 1 and not isinstance(self.program, Mapping)
        given = dict.fromkeys(pitched, self.program) if is_for_all else self.program
        if not isinstance(given, Mapping) or {str(name).lower() for name in given} - pitched.keys():
            names = ", ".join(tracks[i].name for i in pitched.values())
            raise ParameterError("program", self.program, f"expected {{PART: Violin}}, of {names}")
        return {pitched[str(name).lower()]: program_number(value) for name, value in given.items()}

    @cached_property
    def progression(self) -> list[list[int]] | None:
        """The chords of each bar that is added, as `parse_progression` returns them."""
        return None if self.chords is None else parse_progression(self.chords)

    def end_time(self, prompt: Prompt) -> int | None:
        """Return the musical time at which a continuation ends; None if tokens end it."""
        if prompt.kept is not None:
            return prompt.kept.stop
        return None if self.bars is None else prompt.end_time + self.bars * prompt.bar_length

    def num_new_tokens(self, prompt: Prompt, model: Transformer) -> int:
        """Return how many tokens to add at most.

        Raises:
            UserError: the prompt has `total_tokens` already, or the model's positional encoding is
                shorter than the prompt and what is to follow.
        """
        given, longest = len(prompt.tokens), model.position.max_length
        if prompt.kept is not None and prompt.kept.stop is None:
            limit = len(prompt.given) - given
        elif prompt.kept is not None:
            limit = MAX_TOKENS_PER_BAR * int((prompt.given < 0).sum())
        elif self.bars is not None:
            limit = self.bars * MAX_TOKENS_PER_BAR
            if longest is not None:  # fewer bars rather than none
                limit = max(1, min(limit, longest - given))
        else:
            assert self.total_tokens is not None
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
