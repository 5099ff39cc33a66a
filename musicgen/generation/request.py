"""What to generate and how: one request, from the command line, Python and callbacks alike."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import ENGINES
from musicgen.generation.prompt import Prompt
from musicgen.generation.sampling_params import SamplingParams
from musicgen.midi import KeySignature
from musicgen.midi.io import program_number
from musicgen.midi.key import key_fifths
from musicgen.models import Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.progression import parse_progression
from musicgen.tokenization.tokens_per_bar import MAX_TOKENS_PER_BAR
from musicgen.validation import check_bool, check_choice, check_float, check_int, check_seed

DEFAULT_BARS = 16
_MOST_BARS = _MOST_SAMPLES = 10_000
_MOST_SECTIONS, _LONGEST_SECTION = 100, 1000  # a form is a table of all its bars


@dataclass(frozen=True)
class PieceParams:
    """What to write.

    Attributes:
        bars: bars to add; None: 16, unless `total_tokens` or a whole piece gives the length.
        ending: `open` stops with the last bar; `close` ends the piece in it.
        form: a letter for each section, such as AABA, prompt included: sections of equal letters
            are alike, others not; it begins again when it ends. With a copy head. None: no form.
        section_bars: bars in a section of `form`.
        chords: the chords of what is added, such as `C Am F G`, see `parse_progression`; they begin
            again when they end. For tokens with chords. None: the model chooses.
        key: of a piece from nothing, or the key signature of a piece of which parts are kept, such
            as Eb, F#m or a number of sharps (of flats if below 0), for tokens with keys. A
            continuation stays in the key of its prompt. None: the model chooses, or the piece does.
        tempo: quarters a minute from the prompt's end on, or from the beginning without a prompt;
            the model reads the prompt at it. With `fix_tempo` it stays. None: the prompt's.
        program: the General MIDI program of the continuation, 0 to 127 or a name such as Violin;
            if several tracks play, those of some by name. The prompt in its own file keeps its
            programs. None: those of the prompt, or of the tokenizer.
        keep: voices or parts of the prompt, by name, to which the others are written anew; the
            prompt is a whole piece then. For models in which these parts may come first.
        rewrite: bars of a whole piece that are written anew, without the parts in `keep`, such as
            9-12; all others stay. For models of songs.
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
    rewrite: Any = None

    def __post_init__(self) -> None:
        names = self.keep.split(",") if isinstance(self.keep, str) else self.keep
        names = names if isinstance(names, Iterable) else [names]
        object.__setattr__(self, "keep", tuple(str(name).strip() for name in names))
        check_int("bars", self.bars, maximum=_MOST_BARS, none_means="")
        check_choice("ending", self.ending, ("open", "close"))
        letters = isinstance(self.form, str) and self.form.isalpha()
        if self.form is not None and not (letters and len(self.form) <= _MOST_SECTIONS):
            expected = f"expected a letter for each section, up to {_MOST_SECTIONS}, as AABA"
            raise ParameterError("form", self.form, expected)
        check_int("section_bars", self.section_bars, maximum=_LONGEST_SECTION)
        check_float("tempo", self.tempo, 4, maximum=1000, none_means="the prompt's")
        for name in ("bars", "ending", "form", "tempo", "program"):
            if self.is_whole_piece and getattr(self, name) != getattr(type(self), name):
                raise ParameterError(name, getattr(self, name), WHOLE_PIECE)
        # Wrong values raise here.
        _ = self.progression, self.rewritten_bars, self.key_signatures
        if self.program is not None and not isinstance(self.program, Mapping):
            program_number(self.program)

    @property
    def is_whole_piece(self) -> bool:
        """Whether the prompt is a whole piece, of which some is kept."""
        return bool(self.keep) or self.rewrite is not None

    @cached_property
    def rewritten_bars(self) -> tuple[int, int] | None:
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

    @cached_property
    def progression(self) -> list[list[int]] | None:
        """The chords of each bar that is added, as `parse_progression` returns them."""
        return None if self.chords is None else parse_progression(self.chords)

    def programs(self, tokenizer: Tokenizer, playing: Sequence[int]) -> dict[int, int]:
        """Return the program of each decoded track that `program` names, by index.

        A program without a name is that of the only pitched track, or of the only one that plays.

        Args:
            playing: indices of the decoded tracks that play in the prompt.

        Raises:
            ParameterError: there is no such track or program, or it may be that of several tracks.
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


KEY_OF_PROMPT = (
    "expected no prompt with it, for a continuation stays in the key of its prompt; transpose the "
    "prompt first"
)
WHOLE_PIECE = "expected to be left out with keep and rewrite: the piece decides it"


@dataclass(frozen=True)
class DecodingParams:
    """How many tokens are decoded, with what engine, and what stays as it is in the prompt.

    Attributes:
        total_tokens: tokens in all, the prompt's included, instead of bars.
        max_new_tokens: a limit on the new tokens in both cases; None: no limit.
        num_samples: continuations of each prompt.
        batch_size: sequences to compute at a time.
        seed: decides all random draws. The positional encoding's noise is drawn once for a
            request: its pieces share it, as one piece keeps it from token to token.
        engine: `auto`, `eager` or `onnx`, see `make_engine`.
        allow_end: whether the model may end a piece before its length.
        fix_tempo: keep the prompt's last tempo.
        fix_time_signature: keep its last time signature.
        limit_durations: no note is longer than the longest of its track in the prompt, for tokens
            that begin and end notes, those of bands.
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
    """What to generate and how; its parts are the only place of the options' defaults.

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
            expected = "expected bars, not length_factor, with it"
            if piece.chords is not None:
                raise ParameterError("chords", piece.chords, expected)
            if piece.ending == "close":
                raise ParameterError("ending", piece.ending, expected)
        for name in ("total_tokens", "max_new_tokens"):
            if piece.is_whole_piece and getattr(decoding, name) is not None:
                raise ParameterError(name, getattr(decoding, name), WHOLE_PIECE)

    @classmethod
    def of(cls, sampling: SamplingParams | None = None, **options: Any) -> "GenerationRequest":
        """Return a request of options: fields of `PieceParams` and `DecodingParams`."""
        names = {each.name for each in fields(DecodingParams)} & options.keys()
        decoding = DecodingParams(**{name: options.pop(name) for name in names})
        return cls(PieceParams(**options), sampling or SamplingParams(), decoding)

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

    def end_time(self, prompt: Prompt) -> int | None:
        """Return the musical time at which a continuation ends; None if tokens end it."""
        if prompt.kept is not None:
            return prompt.kept.conditioning.stop
        return None if self.bars is None else prompt.end_time + self.bars * prompt.bar_length

    def num_new_tokens(self, prompt: Prompt, model: Transformer) -> int:
        """Return how many tokens to add at most: `MAX_TOKENS_PER_BAR` for each bar that is asked.

        Raises:
            UserError: the prompt has `total_tokens` already, or the model's positional encoding is
                shorter than the prompt and what is to follow.
        """
        num_tokens, longest = len(prompt.tokens), model.position.max_length
        limit = self._length_limit(prompt, longest)
        if self.decoding.max_new_tokens is not None:
            limit = min(limit, self.decoding.max_new_tokens)
        if longest is not None and num_tokens + limit > longest:
            raise UserError(
                f"{num_tokens + limit} tokens are more than the max_length={longest} of this "
                f"model's positional encoding ({model.position.name}). Generate fewer, or train "
                "with an encoding without a limit, such as sine_spe, sinusoidal or none"
            )
        return limit

    def _length_limit(self, prompt: Prompt, longest: int | None) -> int:
        """Return how many tokens the length that is asked for takes at most."""
        num_tokens = len(prompt.tokens)
        if prompt.kept is not None:
            ids = prompt.kept.conditioning.ids
            if prompt.kept.conditioning.stop is None:
                return len(ids) - num_tokens
            return MAX_TOKENS_PER_BAR * int((ids < 0).sum())
        if self.bars is not None:
            limit = self.bars * MAX_TOKENS_PER_BAR
            if longest is not None:  # fewer bars rather than none
                limit = max(1, min(limit, longest - num_tokens))
            return limit
        total = self.decoding.total_tokens
        assert total is not None
        if total <= num_tokens:
            raise UserError(
                f"{prompt.name}: the prompt has {num_tokens} tokens already, of "
                f"{total} in all; keep fewer bars of it or generate more tokens"
            )
        return total - num_tokens
