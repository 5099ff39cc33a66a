"""Prompts from the beginning of a piece, cut at a bar, and prompts without music.

`make_prompt` reads a piece, aligns the prompt with the bars of its file, cuts it, and describes
what its tokens do not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from musicgen.errors import UserError
from musicgen.generation.performance import BarMap, Performance
from musicgen.generation.prompt import Playback, Prompt, SourceFile, median_velocities
from musicgen.generation.signatures import other_time_signature, signatures_of, with_signatures
from musicgen.midi import TEMPO, TICKS_PER_BEAT, KeySignature, Marker, Score, TimeSignature
from musicgen.midi.tick_grid import is_notated
from musicgen.package_data import BAND_MODEL
from musicgen.plugins import plugin
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.symbols import CHORDS
from musicgen.tokenization.quantization import relocate
from musicgen.tokenization.quantization_report import QuantizationReport, QuantizationSummary
from musicgen.tokenization.vocabulary import IntArray
from musicgen.tokenization.whole_bars import without_long_gaps
from musicgen.validation import check_int

PACE_BARS = 4
"""Of a played prompt's last bars, whose mean tempo is the continuation's."""

PROMPT_BARS = 4
"""Bars of a prompt, unless something else is asked for."""

FROM_NOTHING = "from nothing"  # the name of the prompt of pieces without one


@dataclass(frozen=True, eq=False)
class TokenizedPiece:
    """A piece as its tokens hold it, with the bar lines of its file.

    Attributes:
        score: as in the file.
        tokens: ids. [L]
        grid: the music of the tokens.
        report: what the tokens do not hold.
        repairs: what was repaired when the file was read.
        bars: grid steps at which the bars of the tokens begin. [num_bars]
        lines: ticks of the file's bar lines, with the end of the last bar. [num_lines]
        line_steps: the grid steps of these lines. [num_lines]
    """

    tokenizer: Tokenizer
    score: Score
    tokens: IntArray
    grid: Score
    report: QuantizationReport
    repairs: Sequence[str]
    bars: IntArray
    lines: IntArray
    line_steps: IntArray

    @property
    def step(self) -> int:
        """Ticks of `grid` in a grid step."""
        return self.grid.ticks_per_beat // self.tokenizer.steps_per_beat

    def tick(self, time: int) -> int:
        """Return the tick of the file at a grid step."""
        return round(time * self.score.ticks_per_beat / self.tokenizer.steps_per_beat)


@dataclass(frozen=True)
class Extent:
    """The bars of a piece that a prompt has.

    Attributes:
        first_bar: number of its first bar among those of the tokens.
        start_time: grid step at which that begins.
        end_time: grid steps from there to its end.
        end_tick: the file's tick at its end.
        bar_length: grid steps in its last bar.
        is_whole: whether the last note of the piece begins in it.
        splits_bar: whether it ends within a bar of the tokens.
    """

    first_bar: int
    start_time: int
    end_time: int
    end_tick: int
    bar_length: int
    is_whole: bool
    splits_bar: bool


def make_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    prompt_bars: int | None,
    data: bytes | None = None,
    tempo: float | None = None,
    played: Score | None = None,
) -> Prompt:
    """Return the first `prompt_bars` of a piece (None: all) from the first bar that has a note.

    Args:
        data: the MIDI file that the score was read from.
        tempo: in quarters a minute, instead of the score's.
        played: the same notes as they were played, whose performance new notes take over; None:
            new notes are on the grid, with the velocities of the tokens, or one in each part.

    Raises:
        UserError: the piece has no note that the vocabulary can represent.
    """
    check_int("prompt_bars", prompt_bars, none_means="all")
    if tempo is not None:
        score = replace(score, tempos=np.array([(0, tempo)], TEMPO))
    piece, extent = align(read_piece(tokenizer, score, name), name, prompt_bars)
    tokens, grid = cut(piece, extent)
    signature = added_time_signature(piece, extent)
    before = piece.score.clip(0, extent.end_tick)
    roles = [tokenizer.find_track(track) for track in before.tracks]
    num_parts = len(tokenizer.families.get("Part", ())) - tokenizer.chords  # one is of chords
    velocities = median_velocities(tokenizer, before, roles, range(num_parts))
    return Prompt(
        tokenizer,
        tokens,
        extent.end_time,
        extent.bar_length,
        score=grid.clip(0, extent.end_time * piece.step),
        piece=grid,
        summary=describe(piece, extent, signature),
        source=SourceFile(
            name,
            data,
            end_tick=extent.end_tick,
            bar_ticks=piece.tick(extent.bar_length),
            cut_tick=cut_tick(piece, extent, played or score),
            is_whole=extent.is_whole,
            time_signature=signature,
        ),
        playback=Playback(
            tempo,
            velocities=velocities,
            performance=None if played is None else performance_of(piece, extent, played),
        ),
    )


def cut_tick(piece: TokenizedPiece, extent: Extent, played: Score) -> int:
    """Return the tick from which a file is left out: before notes of the next bar, even early ones.

    Args:
        played: the piece as it was played.
    """
    onset, written = played.notes["onset"], piece.score.notes["onset"]
    is_after = np.rint(np.interp(written, piece.lines, piece.line_steps)) >= (
        extent.start_time + extent.end_time
    )
    first_after = onset[is_after].min(initial=extent.end_tick)
    last_before = onset[~is_after].max(initial=0)
    return int(min(max(first_after, last_before + 1), extent.end_tick))


def performance_of(piece: TokenizedPiece, extent: Extent, played: Score) -> Performance | None:
    """Return how the bars of a prompt are played; None if they have no notes."""
    tokenizer, end = piece.tokenizer, extent.start_time + extent.end_time
    bars = piece.bars[(piece.bars >= extent.start_time) & (piece.bars < end)]
    return Performance.of(
        played,
        piece.score,
        [tokenizer.find_track(track) for track in played.tracks],
        BarMap(piece.lines, piece.line_steps, np.append(bars, end), tokenizer.steps_per_beat),
        has_kept=False,
        has_deviations=not is_notated(played),
    )


def read_piece(tokenizer: Tokenizer, score: Score, name: str) -> TokenizedPiece:
    """Return a piece as its tokens hold it.

    Raises:
        UserError: it has no note that the vocabulary can represent.
    """
    shorter, gaps = without_long_gaps(score)
    tokens, report = tokenizer.encode_with_report(shorter)
    grid = tokenizer.decode(tokens)
    if grid.num_notes == 0:
        raise UserError(
            f"{name}: no note that the {tokenizer.name} vocabulary can represent "
            f"({report.summary().describe()})"
        )
    bars = tokenizer.bar_starts(tokens, tokenizer.bar_length(score))
    lines = score.bar_starts()
    last_line = int(lines[-1])
    lines = np.append(lines, last_line + score.bar_ticks(score.time_signature_at(last_line)))
    line_steps = report.grid(relocate(relocate(lines, gaps), report.tick_map))
    return TokenizedPiece(
        tokenizer, score, tokens, grid, report, shorter.repairs, bars, lines, line_steps
    )


def align(
    piece: TokenizedPiece, name: str, prompt_bars: int | None
) -> tuple[TokenizedPiece, Extent]:
    """Return a piece whose tokens have a bar line at the prompt's end, and the prompt's extent.

    The prompt ends with a bar of the file. If the tokens' bars are others, the piece is read again
    with a time signature at that place, where a bar then begins.
    """
    extent = find_extent(piece, prompt_bars)
    signature = piece.score.time_signature_at(extent.end_tick)
    while extent.splits_bar and signature.tick != extent.end_tick:
        here = signature._replace(tick=extent.end_tick)
        signatures = sorted([*piece.score.time_signatures, here])
        score = replace(piece.score, time_signatures=signatures)
        piece = read_piece(piece.tokenizer, score, name)
        extent = find_extent(piece, prompt_bars)
        signature = piece.score.time_signature_at(extent.end_tick)
    return piece, extent


def find_extent(piece: TokenizedPiece, prompt_bars: int | None) -> Extent:
    """Return where a prompt of so many bars of the file (None: all) begins and ends."""
    tokenizer, score, grid, bars = piece.tokenizer, piece.score, piece.grid, piece.bars
    onsets = grid.notes["onset"] // piece.step
    first_bar = int(np.searchsorted(bars, onsets.min(), side="right")) - 1
    start_time = int(bars[first_bar])

    lines, steps = piece.lines, piece.line_steps
    first, final = np.searchsorted(steps, [onsets.min(), onsets.max()], side="right") - 1
    is_upbeat = first == 0 and lines[1] < score.bar_ticks(score.time_signature_at(int(lines[1])))
    last = final
    if prompt_bars is not None:
        last = min(first + is_upbeat + prompt_bars - 1, final)
    after = last + 1
    if last == final and not piece.report.too_long:  # to where nothing sounds on the grid
        margin = score.ticks_per_beat // (2 * tokenizer.steps_per_beat)
        after = max(after, int(np.searchsorted(lines, score.end - margin)))
    end = int(steps[after])

    bar = int(np.searchsorted(bars, end)) - 1
    bar_length = tokenizer.bar_length(score)
    if bar + 1 < len(bars):
        bar_length = int(bars[bar + 1] - bars[bar])
    elif grid.time_signatures:  # the tokens hold each bar's time signature
        bar_length = tokenizer.bar_length(grid.clip(int(bars[bar]) * piece.step, grid.end + 1))
    return Extent(
        first_bar,
        start_time,
        end_time=end - start_time,
        end_tick=int(lines[after]),
        bar_length=bar_length,
        is_whole=bool(last == final),
        splits_bar=bool((end - bars[bar]) % bar_length),
    )


def cut(piece: TokenizedPiece, extent: Extent) -> tuple[IntArray, Score]:
    """Return the ids of a prompt [L], and the piece on the grid from the prompt's first bar on.

    The prompt is cut as tokens, so that notes that sound across its end keep their length.
    """
    tokenizer, tokens = piece.tokenizer, piece.tokens
    if extent.first_bar:
        bar_length = tokenizer.bar_length(piece.score)
        tokens = tokenizer.crops.from_bar(tokens, extent.first_bar, bar_length)
    tokens = tokens[tokenizer.times(tokens) < extent.end_time]
    in_bars = piece.report.score
    from_start = in_bars.clip(piece.tick(extent.start_time), in_bars.end + 1)
    grid = piece.grid.clip(extent.start_time * piece.step, piece.grid.end + 1)
    return tokenizer.until_end(tokens), with_signatures(grid, signatures_of(tokenizer, from_start))


def added_time_signature(piece: TokenizedPiece, extent: Extent) -> TimeSignature | None:
    """Return the time signature of the continuation, if its bars are not those of the file."""
    signature = piece.score.time_signature_at(extent.end_tick)
    return other_time_signature(signature, extent.bar_length, piece.tokenizer.steps_per_beat)


def describe(
    piece: TokenizedPiece, extent: Extent, added_signature: TimeSignature | None
) -> QuantizationSummary:
    """Return what the tokens do not hold of a prompt's bars."""
    tokenizer, score = piece.tokenizer, piece.score
    summary = piece.report.summary(extent.start_time, extent.start_time + extent.end_time)
    repairs = [repair for repair in piece.repairs if repair != "chords recognised"]
    summary.rules = [*repairs, *summary.rules]
    signature = score.time_signature_at(extent.end_tick)
    of_tokens = tokenizer.bar_length(Score(time_signatures=[signature._replace(tick=0)]))
    cannot_hold = other_time_signature(signature, of_tokens, tokenizer.steps_per_beat)
    if added_signature and cannot_hold:
        summary.rules.append(
            f"goes on in {added_signature.numerator}/{added_signature.denominator}, for "
            f"{signature.numerator}/{signature.denominator} take checkpoint={BAND_MODEL}"
        )
    return summary


def empty_prompt(
    tokenizer: Tokenizer,
    tempo: float | None = None,
    keys: Sequence[KeySignature] = (),
    first_chord: int | None = None,
) -> Prompt:
    """Return a prompt without music, from which the model starts a piece.

    Args:
        tempo: in quarters a minute.
        keys: the key signature, if it is given.
        first_chord: index in `CHORDS` of the chord at the beginning, if it is given.
    """
    score = Score(TICKS_PER_BEAT, key_signatures=[*keys])
    if tempo is not None:
        score.tempos = np.array([(0, tempo)], TEMPO)
    tokens = tokenizer.start_tokens()
    has_tempo_token = tempo is not None and tokenizer.families.get("Tempo")
    if first_chord is not None:  # a chord comes before the tempo
        marker = Marker(0, CHORDS[first_chord])
        tokens = tokenizer.until_end(tokenizer.encode(replace(score, markers=[marker])))
    elif keys or has_tempo_token:
        tokens = tokenizer.until_end(tokenizer.encode(score))
    return Prompt(
        tokenizer,
        tokens,
        end_time=0,
        bar_length=tokenizer.bar_length(score),
        score=score,
        piece=score,
        summary=QuantizationSummary(),
        source=SourceFile(FROM_NOTHING),
        playback=Playback(tempo),
    )


def on_beats(score: Score, data: bytes | None, setting: str) -> tuple[Score, bytes | None]:
    """Return a piece and its file on its beats; the same objects if these are the file's.

    Args:
        setting: `auto`, `file`, or the path of a file of beats.
    """
    if setting == "file" or not score.num_notes or (setting == "auto" and is_notated(score)):
        return score, data
    needs = f"beats={setting} (beats=file uses those of the file)"
    moved: tuple[Score, bytes | None] = plugin("beats", needs).on_beats(
        score, data, setting, PACE_BARS
    )
    return moved


def pace_of(score: Score, prompt_bars: int | None) -> float:
    """Return the mean tempo of the last four bars of a prompt, in quarters a minute.

    Args:
        prompt_bars: from the first bar with a note; None: all bars.
    """
    tempos = score.mean_tempos()
    lines = tempos["tick"]
    first = int(np.searchsorted(lines, score.start, side="right")) - 1
    end = len(lines) if prompt_bars is None else min(first + prompt_bars, len(lines))
    last = slice(max(first, end - PACE_BARS), end)
    lengths = np.diff(np.append(lines, score.end))[last]
    return float(lengths.sum() / (lengths / tempos["bpm"][last]).sum())
