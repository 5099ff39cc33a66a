"""Prompts: the beginning of a piece, cut at a bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.metrics.key import Key, find_key
from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, pitched_notes
from musicgen.tokenization.base import TICKS_PER_BEAT, EncodingSummary, IntArray, Tokenizer
from musicgen.tokenization.chords.progression import changes_of, repeated
from musicgen.tokenization.chords.symbols import CHORDS, INTERVALS, NO_CHORD, QUALITIES, spelled
from musicgen.tokenization.vocabulary import within
from musicgen.validation import check_int

FROM_NOTHING = "from nothing"
"""The name of the prompt of pieces without one."""


@dataclass(frozen=True)
class PromptSource:
    """The MIDI file that a prompt was read from, and how it is continued.

    Attributes:
        data: the file.
        end: its tick at which the continuation begins: at the prompt's end, or in the first bar
            after all notes of the file if the prompt is the whole piece.
        whole: whether the prompt is the whole piece.
        bar: ticks in its last bar.
        metre: the metre of the continuation, if its bars have another length than the file's.
        find_track: see `Tokenizer.find_track`.
    """

    data: bytes
    end: int
    whole: bool
    bar: int
    metre: TimeSignature | None
    find_track: Callable[[Track], int | None]


@dataclass(frozen=True)
class Prompt:
    """The beginning of a piece.

    Attributes:
        tokens: [L] ids.
        end_time: musical time in grid steps at which the continuation begins.
        end_tick: the same in ticks of a decoded score.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its tempi and its metre.
        piece: the same with the rest of the piece that it begins; without music if there is none.
        summary: what the vocabulary cannot express of its bars.
        source: the file that it was read from; None if there is none.
        tempo: at which the continuation begins, see `GenerationRequest`; None: that of the prompt.
        programs: General MIDI programs of its tracks, by index, instead of the tokenizer's.
        progression: the chords that the continuation has, see `Grammar.harmonise`. [N, 2]
        last_time: musical time at which the continuation ends if the request does not say when.
    """

    name: str
    tokens: NDArray[np.int64]
    end_time: int
    end_tick: int
    bar_length: int
    score: Score
    piece: Score
    summary: EncodingSummary
    source: PromptSource | None = None
    tempo: float | None = None
    programs: Mapping[int, int] = field(default_factory=dict)
    progression: IntArray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    last_time: int | None = None

    @property
    def notice(self) -> str:
        """One line on what the vocabulary cannot express; empty if nothing was lost."""
        return f"{self.name}: {self.summary.describe()}" if self.summary.lossy else ""


def make_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    prompt_bars: int | None,
    data: bytes | None = None,
    tempo: float | None = None,
) -> Prompt:
    """Return the first `prompt_bars` of a piece (None: all) from the first bar that has a note.

    Args:
        data: the MIDI file that the score was read from.
        tempo: in quarters a minute, instead of the score's.
    """
    check_int("prompt_bars", prompt_bars, none_means="all")
    if tempo is not None:
        score = replace(score, tempos=np.array([(0, tempo)], TEMPO))
    bar_length = tokenizer.bar_length(score)
    encoded, losses = tokenizer.encode_with_losses(score)
    grid = tokenizer.decode(encoded)
    if grid.num_notes == 0:
        raise UserError(
            f"{name}: no note that the {tokenizer.name} vocabulary can represent "
            f"({losses.summary().describe()})"
        )
    step = grid.ticks_per_beat // tokenizer.steps_per_beat  # ticks
    bars = tokenizer.bar_starts(encoded, bar_length)
    onsets = grid.notes["onset"] // step
    first, final = np.searchsorted(bars, [onsets.min(), onsets.max()], side="right") - 1
    last = final if prompt_bars is None else min(first + prompt_bars - 1, final)
    last_bar = bar_length
    if last + 1 < len(bars):
        last_bar = int(bars[last + 1] - bars[last])
    elif grid.time_signatures:  # the tokens hold each bar's metre
        last_bar = tokenizer.bar_length(grid.clip(int(bars[last]) * step, grid.end + 1))
    start_time = int(bars[first])
    end_time = int(bars[last]) - start_time + last_bar
    end_tick = end_time * step
    piece = grid.clip(start_time * step, grid.end + 1)
    # Cut as tokens, not as music, so that notes that sound across the end keep their length.
    tokens = tokenizer.from_bar(encoded, first, bar_length) if first else encoded
    tokens = tokens[: np.searchsorted(tokenizer.times(tokens), end_time)]

    def own_tick(time: int) -> int:
        return round(time * score.ticks_per_beat / tokenizer.steps_per_beat)

    from_start = score.clip(own_tick(start_time), score.end + 1)
    piece = with_frame(piece, _frame(tokenizer, from_start))
    source = None
    if data is not None:
        end = own_tick(start_time + end_time)
        if last == final:
            latest = max(int(t.notes["onset"].max(initial=0)) for t in score.tracks)
            bars_after = -(-max(0, latest + 1 - end) // own_tick(last_bar))
            end = own_tick(start_time + end_time + bars_after * last_bar)
        metre = _metre(score.metre_at(end), last_bar, tokenizer.steps_per_beat)
        source = PromptSource(
            data, end, bool(last == final), own_tick(last_bar), metre, tokenizer.find_track
        )
    return Prompt(
        name=name,
        tokens=tokenizer.until_end(tokens),
        end_time=end_time,
        end_tick=end_tick,
        bar_length=last_bar,
        score=piece.clip(0, end_tick),
        piece=piece,
        summary=losses.summary(start_time, start_time + end_time),
        source=source,
        tempo=tempo,
    )


def _metre(metre: TimeSignature, bar_length: int, steps_per_beat: int) -> TimeSignature | None:
    """Return the metre of bars of `bar_length` grid steps; None if they are in `metre`, or in none.

    Ten twelfths of a beat, as a grid of twelfths has for 7/32, are in none.
    """
    bar = Fraction(bar_length, 4 * steps_per_beat)
    has_metre = bar.denominator.bit_count() == 1  # a power of two
    if not has_metre or bar == Fraction(metre.numerator, metre.denominator):
        return None
    denominator = max(4, bar.denominator)
    return TimeSignature(0, int(bar * denominator), denominator)


def on_grid(tokenizer: Tokenizer, score: Score) -> Score:
    """Return a score as its tokens hold it, with its tempi and its metre."""
    return with_frame(tokenizer.decode(tokenizer.encode(score)), _frame(tokenizer, score))


def _frame(tokenizer: Tokenizer, score: Score) -> Score:
    """Return the tempi of a score, and its first metre unless bars of tokens are in another."""
    tempos = score.tempos.copy()
    tempos["tick"] = tempos["tick"] * TICKS_PER_BEAT // score.ticks_per_beat
    metre = score.metre_at(score.start)._replace(tick=0)
    bar_length = tokenizer.bar_length(score)
    fits = score.time_signatures and _metre(metre, bar_length, tokenizer.steps_per_beat) is None
    return Score(TICKS_PER_BEAT, tempos=tempos, time_signatures=[metre] if fits else [])


def with_frame(score: Score, frame: Score) -> Score:
    """Return the score with the tempi and metres of `frame` where it has none."""
    tempos = score.tempos if len(score.tempos) else frame.tempos
    signatures = score.time_signatures or frame.time_signatures
    return replace(score, tempos=tempos, time_signatures=signatures)


def decode(tokenizer: Tokenizer, tokens: IntArray, prompt: Prompt) -> Score:
    """Return the music of ids [L] that begin with a prompt's, in its tempo, metre and programs.

    Chords are spelled in the key of the prompt, without one in that of the music.
    """
    score = with_frame(tokenizer.decode(tokens), prompt.score)
    if prompt.tempo is not None:
        score.tempos["bpm"][:1] = prompt.tempo  # not that of the nearest token
    for index, program in prompt.programs.items():
        score.tracks[index] = replace(score.tracks[index], program=program)
    if key := find_key(pitched_notes(prompt.score)) or find_key(pitched_notes(score)):
        score.markers = [m._replace(text=spelled(m.text, key.note_names)) for m in score.markers]
    return score


def empty_prompt(
    tokenizer: Tokenizer,
    tempo: float | None = None,
    time_signatures: Sequence[TimeSignature] = (),
) -> Prompt:
    """Return a prompt without music, from which the model starts a piece."""
    score = Score(TICKS_PER_BEAT, time_signatures=list(time_signatures))
    tokens = tokenizer.start_tokens()
    if tempo is not None:
        score.tempos = np.array([(0, tempo)], TEMPO)
        if tokenizer.families.get("Tempo"):
            tokens = tokenizer.until_end(tokenizer.encode(score))
    bar_length, lost = tokenizer.bar_length(score), EncodingSummary()
    return Prompt(FROM_NOTHING, tokens, 0, 0, bar_length, score, score, lost, tempo=tempo)


def prompt_with_chords(
    tokenizer: Tokenizer, prompt: Prompt, bars: list[list[int]], end: int
) -> Prompt:
    """Return a prompt whose continuation up to a musical time has the chords of bars.

    Args:
        bars: indices in `CHORDS`, see `parse_progression`; they begin again when they end.
    """
    changes, length = changes_of(bars, prompt.bar_length), len(bars) * prompt.bar_length
    progression = repeated(changes, length, 0, end - prompt.end_time)
    progression[:, 0] += prompt.end_time
    return _following(tokenizer, prompt, progression)


def prompt_with_chords_of(tokenizer: Tokenizer, prompt: Prompt, piece: Prompt, end: int) -> Prompt:
    """Return the first bars of a piece, or none, whose continuation has the piece's chords.

    They begin again when they end.

    Args:
        piece: all its bars.

    Raises:
        UserError: it has no chords.
    """
    is_chord = within(piece.tokens, tokenizer.families["Chord"])
    if not is_chord.any():
        raise UserError(f"{piece.name}: keep=chords: no chords are known of it")
    indices = piece.tokens[is_chord] - tokenizer.families["Chord"].start
    changes = np.stack([tokenizer.times(piece.tokens)[is_chord], indices], axis=1)
    progression = repeated(changes, piece.end_time, prompt.end_time, end)
    return _following(tokenizer, prompt, progression)


def last_chord_key(prompt: Prompt) -> Key | None:
    """Return the key whose tonic chord a progression ends with; None without a progression."""
    last = prompt.progression[-1:, 1].tolist()
    if last in ([], [NO_CHORD]):
        return None
    root, quality = divmod(last[0], len(QUALITIES))
    return Key(root, 3 not in INTERVALS[QUALITIES[quality]])


def _following(tokenizer: Tokenizer, prompt: Prompt, progression: IntArray) -> Prompt:
    tokens = prompt.tokens
    if prompt.end_time == 0:  # the first chord comes before the tempo
        chord = Marker(0, CHORDS[progression[0, 1]])
        tokens = tokenizer.until_end(tokenizer.encode(replace(prompt.score, markers=[chord])))
    return replace(prompt, tokens=tokens, progression=progression)
