"""What to generate and how: one request, from the command line, Python and callbacks alike."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import ENGINES
from musicgen.generation.gap import Gap, parse_gap
from musicgen.generation.prompt import Prompt
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import TICKS_PER_BEAT, KeySignature
from musicgen.midi.io import program_number
from musicgen.midi.key import Key, key_fifths, named_key
from musicgen.models import Transformer
from musicgen.tokenization.base import MAX_TOKENS_PER_BAR, Tokenizer
from musicgen.tokenization.chords import parse_progression, schedule
from musicgen.tokenization.phrases import ENDS, FULL, PIECE
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_bool, check_choice, check_float, check_int, check_seed

DEFAULT_BARS = 16
_MOST_BARS = _MOST_SAMPLES = 10_000
_MOST_SECTIONS, _LONGEST_SECTION = 100, 1000  # a form is a table of all its bars


@dataclass(frozen=True)
class PieceParams:
    """What to write.

    Attributes:
        bars: bars to add; None: 16, unless `total_tokens` or a whole piece gives the length.
        ending: `open` stops with the last bar; `close` ends the piece in it, on its tonic chord
            unless `chords` are given. With `keep` the chord begins with the last kept note. Before
            it phrases may be planned by their last bars, such as `half@8,full@16,close`: on the
            dominant in bar 8 of the piece, prompt included, and with a full cadence in bar 16.
        form: a letter per section, such as AABA, prompt included; equal letters repeat; the form
            loops. For models with a copy head. None: no form.
        section_bars: bars in a section of `form`.
        chords: the chords of what is added, such as `C Am F G`, see `parse_progression`; they loop.
            For tokens with chords. None: the model chooses.
        key: of a new piece, or the key signature of kept parts, such as Eb, F#m or a number of
            sharps (below 0: flats), for tokens with keys. A name also gives the first and the last
            chord of a new piece, unless `chords` do. None: left to the model, or to the piece.
        tempo: quarters a minute of the continuation; None: the prompt's. With `fix_tempo` it stays.
        program: the General MIDI program of the continuation, 0 to 127 or a name such as Violin,
            or {track: program}. The prompt in its own file keeps its programs. None: those of the
            prompt, or of the tokenizer.
        keep: names of the voices or parts that stay; the model writes the others. The prompt is a
            whole piece then. For models in which these parts may come first.
        fill: parts, bars or both of a whole piece to write anew, such as `violin 5-8`, see
            `parse_gap`; bars alone are written without the parts in `keep`. Bars are for tokens
            with gaps, as those of songs-small and bach-chorales.
    """

    bars: int | None = None
    ending: str = "open"
    form: str | None = None
    section_bars: int = 8
    chords: str | None = None
    key: Any = None
    tempo: float | None = None
    program: Any = None
    keep: Any = ()
    fill: Any = None

    def __post_init__(self) -> None:
        given = self.keep or ()
        names = given.split(",") if isinstance(given, str) else given
        names = names if isinstance(names, Iterable) else [names]
        object.__setattr__(self, "keep", tuple(str(name).strip() for name in names))
        check_int("bars", self.bars, maximum=_MOST_BARS, none_means="")
        letters = isinstance(self.form, str) and self.form.isalpha()
        if self.form is not None and not (letters and len(self.form) <= _MOST_SECTIONS):
            expected = f"expected a letter for each section, up to {_MOST_SECTIONS}, as AABA"
            raise ParameterError("form", self.form, expected)
        check_int("section_bars", self.section_bars, maximum=_LONGEST_SECTION)
        check_float("tempo", self.tempo, 4, maximum=1000, none_means="the prompt's")
        for name in ("bars", "ending", "form", "tempo", "program"):
            may_close = self.ending == "close" and self.gap.bars == (0, None)
            may_close &= name == "ending"
            is_given = getattr(self, name) != getattr(type(self), name)
            if self.is_whole_piece and is_given and not may_close:
                raise ParameterError(name, getattr(self, name), WHOLE_PIECE)
        # Wrong values raise here.
        _ = self.progression, self.gap, self.key_signatures, self.cadences
        if self.program is not None and not isinstance(self.program, Mapping):
            program_number(self.program)

    @property
    def is_whole_piece(self) -> bool:
        """Whether the prompt is a whole piece; some parts are kept."""
        return bool(self.keep) or self.fill is not None

    @property
    def is_closed(self) -> bool:
        """Whether the piece ends in the last bar."""
        return str(self.ending).endswith("close")

    @cached_property
    def cadences(self) -> list[tuple[int, int]]:
        """The last bar of each planned phrase, from 1 on, and its kind, HALF or FULL."""
        plan = str(self.ending)
        pattern = r"(half|full)@([1-9]\d{0,3})"
        found = re.findall(pattern, plan)
        if not re.fullmatch(rf"open|({pattern},)*(close|{pattern})", plan):
            expected = "expected open, close, or phrases by their last bars, as half@8,full@16"
            raise ParameterError("cadence" if "@" in plan else "ending", self.ending, expected)
        return sorted((int(bar), ENDS.index(kind)) for kind, bar in found)

    @cached_property
    def gap(self) -> Gap:
        """What is written anew in a whole piece."""
        gap = Gap() if self.fill is None else parse_gap(self.fill)
        if self.keep and gap.parts:
            raise ParameterError("fill", self.fill, "expected bars alone with keep")
        return gap

    @cached_property
    def key_signatures(self) -> list[KeySignature]:
        """The signature of `key`, if there is one."""
        is_minor = str(self.key).endswith("m")
        return [] if self.key is None else [KeySignature(0, key_fifths(self.key), is_minor)]

    @property
    def tonic(self) -> Key | None:
        """The named key whose tonic chord begins and ends a new piece; None: the model chooses."""
        if self.key is None or self.progression is not None or self.is_whole_piece:
            return None
        return named_key(self.key) if str(self.key)[0].isalpha() else None

    @cached_property
    def progression(self) -> list[list[int]] | None:
        """The chords of each added bar, see `parse_progression`."""
        return None if self.chords is None else parse_progression(self.chords)

    def programs(self, tokenizer: Tokenizer, playing: Sequence[int]) -> dict[int, int]:
        """Return the programs of the decoded tracks that `program` names, by index.

        A program without a name is for the only pitched track, or for the only one that plays.

        Args:
            playing: indices of the decoded tracks that play in the prompt.

        Raises:
            ParameterError: there is no such track or program, or several tracks may be meant.
        """
        if self.program is None:
            return {}
        tracks = tokenizer.decode(tokenizer.start_tokens()).tracks
        pitched = {track.name.lower(): i for i, track in enumerate(tracks) if not track.is_drum}
        by_name, is_clear = self.program, True
        if not isinstance(self.program, Mapping):
            meant = [name for name, i in pitched.items() if i in playing or len(pitched) == 1]
            by_name, is_clear = dict.fromkeys(meant, self.program), len(meant) == 1
        if not is_clear or any(str(name).lower() not in pitched for name in by_name):
            names = ", ".join(tracks[i].name for i in pitched.values())
            raise ParameterError("program", self.program, f"expected {{PART: Violin}}, of {names}")
        return {
            pitched[str(name).lower()]: program_number(program) for name, program in by_name.items()
        }


WHOLE_PIECE = "expected to be left out with keep, fill and rewrite: the piece decides it"


@dataclass(frozen=True)
class DecodingParams:
    """How many tokens are decoded, with which engine, and what stays as in the prompt.

    Attributes:
        total_tokens: tokens in all, the prompt's included, instead of bars.
        max_new_tokens: a limit on the new tokens in both cases; None: no limit.
        num_samples: continuations per prompt.
        batch_size: sequences to compute at a time.
        seed: of all random draws. The positional encoding's noise is drawn once per request, and
            its pieces share it.
        engine: `auto`, `eager` or `onnx`, see `make_engine`.
        allow_end: whether the model may end a piece before its length.
        fix_tempo: keep the prompt's last tempo.
        fix_time_signature: keep its last time signature.
        limit_durations: no note is longer than the longest of its track in the prompt, for the
            tokens of bands, which begin and end notes.
    """

    total_tokens: int | None = None
    max_new_tokens: int | None = None
    num_samples: int = 1
    batch_size: int = 32
    seed: int = 0
    engine: str = "auto"
    allow_end: bool = False
    fix_tempo: bool = True
    fix_time_signature: bool = True
    limit_durations: bool = True

    def __post_init__(self) -> None:
        check_int("total_tokens", self.total_tokens, none_means="")
        check_int("max_new_tokens", self.max_new_tokens, none_means="no limit")
        check_int("num_samples", self.num_samples, maximum=_MOST_SAMPLES)
        check_int("batch_size", self.batch_size, maximum=_MOST_SAMPLES)
        check_seed("seed", self.seed)
        check_choice("engine", self.engine, ENGINES)
        for name in ("allow_end", "fix_tempo", "fix_time_signature", "limit_durations"):
            check_bool(name, getattr(self, name))


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate and how; its parts hold the defaults of all options.

    Attributes:
        piece: what to write.
        sampling: how tokens are drawn.
        decoding: how many, and with what engine.
    """

    piece: PieceParams = field(default_factory=PieceParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    decoding: DecodingParams = field(default_factory=DecodingParams)

    def __post_init__(self) -> None:
        piece, decoding = self.piece, self.decoding
        if decoding.total_tokens is not None:
            if piece.bars is not None:
                raise UserError("give either bars or length_factor (total_tokens), not both")
            for name in ("chords", "ending"):
                if getattr(piece, name) != getattr(PieceParams, name):
                    expected = "expected bars, not length_factor, with it"
                    raise ParameterError(name, getattr(piece, name), expected)
        for name in ("total_tokens", "max_new_tokens"):
            if piece.is_whole_piece and getattr(decoding, name) is not None:
                raise ParameterError(name, getattr(decoding, name), WHOLE_PIECE)

    @classmethod
    def of(cls, sampling: SamplingParams | None = None, **options: Any) -> "GenerationRequest":
        """Return a request of options, fields of the three parts; some may change `sampling`.

        The option `rewrite` is a short form of `fill` with bars; `cadence` comes before `ending`.
        """
        if (cadence := options.pop("cadence", None)) is not None:
            after = [options["ending"]] if options.get("ending", "open") != "open" else []
            options["ending"] = ",".join([str(cadence), *after])
        if (bars := options.pop("rewrite", None)) is not None:
            if re.fullmatch(r"\d+(-\d+)?", str(bars)) is None or options.get("fill") is not None:
                raise ParameterError("rewrite", bars, "expected bars such as 9-12, without fill")
            options["fill"] = bars

        def own(kind: Any) -> dict[str, Any]:
            names = {each.name for each in fields(kind)} & options.keys()
            return {name: options.pop(name) for name in names}

        decoding = DecodingParams(**own(DecodingParams))
        sampling = replace(sampling or SamplingParams(), **own(SamplingParams))
        return cls(PieceParams(**options), sampling, decoding)

    def options(self) -> dict[str, Any]:
        """Return all options by name."""
        parts = asdict(self.piece), asdict(self.sampling), asdict(self.decoding)
        return {name: value for part in parts for name, value in part.items()} | {"bars": self.bars}

    @property
    def bars(self) -> int | None:
        """How many bars are added; None: tokens or a whole piece give the length."""
        has_length = self.decoding.total_tokens is not None or self.piece.is_whole_piece
        if self.piece.bars is None and not has_length:
            return DEFAULT_BARS
        return self.piece.bars

    @property
    def closes(self) -> bool:
        """Whether the model itself ends the piece."""
        return self.piece.is_closed and not self.piece.is_whole_piece

    def end_time(self, prompt: Prompt) -> int | None:
        """Return the grid step at which a continuation ends; None if tokens end it."""
        if prompt.kept is not None:
            return prompt.kept.conditioning.stop
        return None if self.bars is None else prompt.end.step + self.bars * prompt.bar_length

    def planned_ends(self, prompt: Prompt) -> IntArray:
        """Return grid step and kind, see `phrases`, of each end that is planned. [N, 2]

        Without a plan, the sections of a form are phrases.

        Raises:
            ParameterError: one is behind the last bar.
        """
        piece, end = self.piece, self.end_time(prompt)
        last_bar = max((bar for bar, _ in piece.cadences), default=0)
        bars = _bar_ends(prompt, last_bar, end or 0)
        ends = [(bars[bar - 1], kind) for bar, kind in piece.cadences]
        if end is not None and ends and ends[-1][0] > end:
            given = ",".join(each for each in piece.ending.split(",") if "@" in each)
            expected = f"expected bars up to {sum(step <= end for step in bars)}, the last one"
            raise ParameterError("cadence", given, expected)
        if end is not None and piece.form is not None and not ends:
            sections = bars[piece.section_bars - 1 :: piece.section_bars]
            ends = [(step, FULL) for step in sections if step <= end]
        if self.closes and end is not None:
            ends = [each for each in ends if each[0] < end] + [(end, PIECE)]
        return np.array(ends, np.int64).reshape(-1, 2)

    def progression(self, prompt: Prompt) -> IntArray:
        """Return grid step and index in `CHORDS` of each chord that is asked for. [N, 2]"""
        if prompt.kept is not None:
            return prompt.kept.progression
        end = self.end_time(prompt)
        if self.piece.progression is None or end is None:
            return np.empty((0, 2), np.int64)
        lines = range(prompt.end.step, end + 1, prompt.bar_length)
        return schedule(self.piece.progression, lines)

    def num_new_tokens(self, prompt: Prompt, model: Transformer) -> int:
        """Return how many tokens to add at most: `MAX_TOKENS_PER_BAR` per bar.

        Raises:
            UserError: the prompt has `total_tokens` already, or the model's positional encoding is
                shorter than the prompt and what is to follow.
        """
        num_tokens, longest = len(prompt.tokens), model.position.max_length
        total = self.decoding.total_tokens
        if prompt.kept is not None:
            kept = prompt.kept.conditioning
            limit = len(kept.ids) - num_tokens
            if kept.stop is not None:
                limit = MAX_TOKENS_PER_BAR * int((kept.ids < 0).sum())
        elif self.bars is not None:
            limit = self.bars * MAX_TOKENS_PER_BAR
        else:
            assert total is not None
            limit = total - num_tokens
            if limit <= 0:
                raise UserError(
                    f"{prompt.name}: the prompt has {num_tokens} tokens already, of "
                    f"{total} in all; keep fewer bars of it or generate more tokens"
                )
        limit = min(limit, self.decoding.max_new_tokens or limit)
        if longest is not None and total is None:  # fewer bars rather than none
            limit = max(1, min(limit, longest - num_tokens))
        if longest is not None and num_tokens + limit > longest:
            raise UserError(
                f"{num_tokens + limit} tokens are more than the max_length={longest} of this "
                f"model's positional encoding ({model.position.name}). Generate fewer, or train "
                "with an encoding without a limit, such as sine_spe, sinusoidal or none"
            )
        return limit


def _bar_ends(prompt: Prompt, num_bars: int, end: int) -> list[int]:
    """Return the grid steps at which the bars of a prompt end, and those that follow.

    An upbeat is not a bar, as for `prompt_bars`.

    Args:
        num_bars: how many bars there are at least.
        end: grid step up to which there are bars.
    """
    score, ends = prompt.score, list[int]()
    if score.num_notes:
        per_step = TICKS_PER_BEAT // prompt.tokenizer.steps_per_beat
        lines = (score.bar_lines()[1 + prompt.has_upbeat :] // per_step).tolist()
        ends = [step for step in lines if step <= prompt.end.step]
    last, length = ends[-1] if ends else 0, prompt.bar_length
    more = max(num_bars - len(ends), -(-(end - last) // length))
    return [*ends, *range(last + length, last + more * length + 1, length)]
