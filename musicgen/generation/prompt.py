"""Prompts, which the model reads: the beginning of a piece, cut at a bar, or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from musicgen.errors import UserError
from musicgen.generation.performance import Performance
from musicgen.generation.source import (
    Source,
    median_velocities,
    other_time_signature,
    signatures_of,
    tracks_with_notes,
    with_own_keys,
    with_signatures,
)
from musicgen.midi import TEMPO, TICKS_PER_BEAT, KeySignature, Marker, Score, TimeSignature
from musicgen.midi.key import note_names
from musicgen.package_data import BAND_MODEL
from musicgen.tokenization.base import ConditioningTokens, Tokenizer
from musicgen.tokenization.chords import CHORDS, spelled
from musicgen.tokenization.quantization import QuantizationSummary, relocate
from musicgen.tokenization.vocabulary import IntArray
from musicgen.tokenization.whole_bars import without_long_gaps
from musicgen.validation import check_int

PROMPT_BARS = 4
"""Bars of a prompt with `prompt_bars=auto`."""

NEW_PIECE = "new piece"  # the name of the prompt of pieces without one
_BAND_STEPS = 48  # of the band model in a whole note


class Boundary(NamedTuple):
    """Where new music begins.

    Attributes:
        step: its musical time, in grid steps of the tokens.
        tick: the same in ticks of decoded scores.
        file_tick: the same in ticks of the file: at the prompt's end, or in the first bar after all
            notes of the file if the prompt is the whole piece.
        cut: tick of the file after which its events are left out: `file_tick`, or earlier if notes
            of the next bar are played before its bar line.
    """

    step: int = 0
    tick: int = 0
    file_tick: int = 0
    cut: int = 0


@dataclass(frozen=True, eq=False)
class KeptParts:
    """A whole piece: some parts are kept, and the others, the target parts, are written.

    Attributes:
        conditioning: the tokens that the model is given.
        source: the piece as it was read.
        span: ticks [first, end) of the source where new notes replace those of target parts.
        progression: grid step and index in `CHORDS` of the chords to be written. [N, 2]
        begin: returns the conditioning of a sample, whose first bar may be composed.
    """

    conditioning: ConditioningTokens
    source: Score
    span: tuple[int, float]
    progression: IntArray
    begin: Callable[[int], ConditioningTokens]

    @property
    def targets(self) -> Sequence[int]:
        """Indices of the decoded tracks that are written."""
        return self.conditioning.targets

    @property
    def unchanged(self) -> Score:
        """The source without the notes that are replaced."""
        tracks = []
        for track, role in zip(self.source.tracks, self.conditioning.roles, strict=True):
            onset = track.notes["onset"]
            is_target = role in self.targets
            stays = (onset < self.span[0]) | (onset >= self.span[1]) | (not is_target)
            notes = track.notes[stays]
            if self.conditioning.stop is None and is_target:  # frames go on, in a new note
                left = np.where(onset[stays] < self.span[0], self.span[0] - onset[stays], np.inf)
                notes["duration"] = np.minimum(notes["duration"], left)
            tracks.append(replace(track, notes=notes))
        return replace(self.source, tracks=tracks)


@dataclass(frozen=True, eq=False)
class Prompt:
    """The beginning of a piece, or the kept parts of a piece.

    Attributes:
        tokenizer: of the model that continues it.
        tokens: ids. [L]
        end: where the continuation begins.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its tempi and its time signature.
        piece: the whole piece that it begins, likewise; without music if there is none.
        summary: what the vocabulary cannot express of its bars.
        source: the user's file, and how its music sounds.
        kept: the parts that are kept of a whole piece; None: the prompt is a beginning.
        has_upbeat: whether its first bar is an upbeat, which counts as no bar.
    """

    tokenizer: Tokenizer
    tokens: IntArray
    end: Boundary
    bar_length: int
    score: Score
    piece: Score
    summary: QuantizationSummary
    source: Source
    kept: KeptParts | None = None
    has_upbeat: bool = False

    def of_sample(self, sample: int) -> "Prompt":
        """Return the prompt of a sample, which may have a composed first bar of its own."""
        if self.kept is None:
            return self
        conditioning = self.kept.begin(sample)
        if conditioning is self.kept.conditioning:
            return self
        tokens = conditioning.ids[: np.flatnonzero(conditioning.ids < 0)[0]]
        return replace(self, tokens=tokens, kept=replace(self.kept, conditioning=conditioning))

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def gap_end(self) -> int | None:
        """Grid step at which what follows a gap begins; None: nothing follows."""
        return None if self.kept is None else self.kept.conditioning.gap_end

    @property
    def targets(self) -> Sequence[int]:
        """Indices of the decoded tracks that are written: those with notes in the piece, or all."""
        return self.kept.targets if self.kept else tracks_with_notes(self.piece)

    @property
    def notice(self) -> str:
        """One line on what the vocabulary cannot express; empty if it expresses everything."""
        return f"{self.name}: {self.summary.describe()}" if self.summary.lossy else ""

    def decode(self, tokens: IntArray) -> Score:
        """Return the music of ids [L] that begin with those of the prompt, on the grid.

        It has the prompt's tempo, time signature, programs and velocities. Chords are spelled by
        the prompt's key signature, else in its key, else in that of the music.
        """
        score = with_signatures(self.tokenizer.decode(tokens), self.score)
        if self.source.tempo is not None:
            score.tempos["bpm"][:1] = self.source.tempo  # not that of the nearest token
        for index, velocity in self.source.velocities.items():
            score.tracks[index].notes["velocity"] = velocity
        for index, program in self.source.programs.items():
            score.tracks[index] = replace(score.tracks[index], program=program)
        if names := note_names(self.score) or note_names(score):
            score.markers = [m._replace(text=spelled(m.text, names)) for m in score.markers]
        return score

    def perform(self, score: Score, seed: int) -> Score:
        """Return decoded music with new notes that are played like those of the prompt."""
        if self.source.performance is None:
            return score
        tracks = self.kept.targets if self.kept else range(len(score.tracks))
        return self.source.performance.play(score, self.end.tick, tracks, seed)


def empty_prompt(
    tokenizer: Tokenizer,
    tempo: float | None = None,
    keys: Sequence[KeySignature] = (),
    first_chord: int | None = None,
    signatures: Sequence[TimeSignature] = (),
) -> Prompt:
    """Return a prompt without music, for a new piece.

    That of a song has no tempo before its key, which the model may choose, see `SongBeginning`.

    Args:
        tempo: in quarters a minute.
        keys: the key signature, if it is given.
        first_chord: index in `CHORDS` of the chord at the beginning, if it is given.
        signatures: the time signature, if it is given.
    """
    score = Score(TICKS_PER_BEAT, time_signatures=[*signatures], key_signatures=[*keys])
    if tempo is not None:
        score.tempos = np.array([(0, tempo)], TEMPO)
    tokens = tokenizer.start_tokens(*signatures)
    markers = [] if first_chord is None else [Marker(0, CHORDS[first_chord])]
    has_tempo = tempo is not None and tokenizer.families.get("Tempo")
    if keys or markers or (has_tempo and not tokenizer.families.get("Key")):
        tokens = tokenizer.until_end(tokenizer.encode(replace(score, markers=markers)))
        tokens = tokenizer.beginning(tokens)
    source, summary = Source(NEW_PIECE, tempo=tempo), QuantizationSummary()
    bar_length = tokenizer.bar_length(score)
    return Prompt(tokenizer, tokens, Boundary(), bar_length, score, score, summary, source)


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

    The prompt ends with a bar of the file. If the tokens' bars are others, the piece is read again
    with a time signature there. Notes that sound across the end keep their length.

    Args:
        data: the MIDI file that the score was read from.
        tempo: in quarters a minute, instead of the score's.
        played: the same notes as they were played, whose performance new notes take over.

    Raises:
        UserError: the piece has no note that the vocabulary can represent.
    """
    check_int("prompt_bars", prompt_bars, none_means="all")
    if tempo is not None:
        score = replace(score, tempos=np.array([(0, tempo)], TEMPO))
    bars = FirstBars(tokenizer, score, name, prompt_bars)
    while bars.splits_bar and bars.signature.tick != bars.end_tick:
        here = bars.signature._replace(tick=bars.end_tick)
        score = replace(score, time_signatures=sorted([*score.time_signatures, here]))
        bars = FirstBars(tokenizer, score, name, prompt_bars)
    end, tokens = bars.boundary(played or score), bars.tokens
    if bars.number:
        tokens = tokenizer.crops.from_bar(tokens, bars.number, tokenizer.bar_length(score))
    in_bars, grid = bars.report.score, bars.grid
    from_start = in_bars.clip(bars.tick(bars.start), in_bars.end + 1)
    piece = grid.clip(bars.start * bars.step, grid.end + 1)
    piece = with_own_keys(with_signatures(piece, signatures_of(tokenizer, from_start)), score)
    before = score.clip(0, bars.end_tick)
    roles = tokenizer.find_tracks(before.tracks)
    return Prompt(
        tokenizer,
        tokenizer.beginning(tokenizer.until_end(tokens[tokenizer.times(tokens) < end.step])),
        end,
        bars.bar_length,
        score=piece.clip(0, end.tick),
        piece=piece,
        summary=bars.describe(),
        source=Source(
            name,
            data,
            bar_ticks=bars.tick(bars.bar_length),
            is_whole=bars.is_whole,
            time_signature=bars.added_signature,
            tempo=tempo,
            velocities=median_velocities(tokenizer, before, roles, range(len(grid.tracks))),
            performance=None if played is None else bars.performance(played),
        ),
        has_upbeat=bars.has_upbeat,
    )


class FirstBars:
    """The first bars of a piece, in its tokens and in its file.

    Attributes:
        score: the piece, as in the file.
        tokens: ids of the piece. [L]
        report: what the tokens do not hold.
        grid: the music of the tokens.
        step: ticks of `grid` in a grid step.
        bars: grid steps at which the bars of the tokens begin. [num_bars]
        lines: ticks of the file's bar lines, with the end of the last bar. [num_lines]
        line_steps: the grid steps of these lines. [num_lines]
        number: of the first of these bars among those of the tokens.
        start: grid step at which that begins.
        has_upbeat: whether it is an upbeat, which counts as no bar.
        end: grid step at which the last one ends.
        end_tick: the file's tick there.
        signature: the file's time signature there.
        bar_length: grid steps in the last one.
        splits_bar: whether the end is within a bar of the tokens.
        added_signature: of the bars that follow, if they are not those of the file.
        is_whole: whether the last note of the piece begins in these bars.

    Raises:
        UserError: the piece has no note that the vocabulary can represent.
    """

    def __init__(
        self, tokenizer: Tokenizer, score: Score, name: str, prompt_bars: int | None
    ) -> None:
        self.tokenizer, self.score = tokenizer, score
        shorter, gaps = without_long_gaps(score)
        self.repairs = shorter.repairs
        self.tokens, self.report = tokenizer.encode_with_report(shorter)
        self.grid = tokenizer.decode(self.tokens)
        if self.grid.num_notes == 0:
            raise UserError(
                f"{name}: no note that the {tokenizer.name} vocabulary can represent "
                f"({self.report.summary().describe()})"
            )
        self.step = self.grid.ticks_per_beat // tokenizer.steps_per_beat
        self.bars = tokenizer.bar_starts(self.tokens, tokenizer.bar_length(score))
        self.lines = score.bar_lines()
        in_bars = relocate(relocate(self.lines, gaps), self.report.tick_map)
        self.line_steps = self.report.grid(in_bars)
        onsets = self.grid.notes["onset"] // self.step
        self.number = int(np.searchsorted(self.bars, onsets.min(), side="right")) - 1
        self.start = int(self.bars[self.number])
        self.has_upbeat = score.has_upbeat and bool(onsets.min() < self.line_steps[1])
        line, self.is_whole = self._last_line(onsets, prompt_bars)
        self.end, self.end_tick = int(self.line_steps[line]), int(self.lines[line])
        self.signature = score.time_signature_at(self.end_tick)
        bar = int(np.searchsorted(self.bars, self.end)) - 1  # the last one of the tokens
        self.bar_length = self._length(bar)
        self.splits_bar = bool((self.end - self.bars[bar]) % self.bar_length)
        self.added_signature = other_time_signature(
            self.signature, self.bar_length, tokenizer.steps_per_beat
        )

    def _last_line(self, onsets: IntArray, prompt_bars: int | None) -> tuple[int, bool]:
        """Return the number of the line at the end, and whether no note begins after it.

        Args:
            onsets: grid steps of all notes. [N]
        """
        score, lines = self.score, self.lines
        edges = np.searchsorted(self.line_steps, [onsets.min(), onsets.max()], side="right") - 1
        first, final = edges.tolist()
        last = final
        if prompt_bars is not None:
            last = min(first + self.has_upbeat + prompt_bars - 1, final)
        line = last + 1
        if last == final and not self.report.too_long:  # to where nothing sounds on the grid
            margin = score.ticks_per_beat // (2 * self.tokenizer.steps_per_beat)
            line = max(line, int(np.searchsorted(lines, score.end - margin)))
        return line, last == final

    def _length(self, bar: int) -> int:
        """Return the grid steps in a bar of the tokens, by its number."""
        tokenizer, bars, grid = self.tokenizer, self.bars, self.grid
        if bar + 1 < len(bars):
            return int(bars[bar + 1] - bars[bar])
        if grid.time_signatures:  # the tokens hold each bar's time signature
            return tokenizer.bar_length(grid.clip(int(bars[bar]) * self.step, grid.end + 1))
        return tokenizer.bar_length(self.score)

    def tick(self, step: int) -> int:
        """Return the tick of the file at a grid step."""
        return round(step * self.score.ticks_per_beat / self.tokenizer.steps_per_beat)

    def boundary(self, played: Score) -> Boundary:
        """Return the end of these bars, cut before notes of the next bar that are played early.

        Args:
            played: the piece as it was played.
        """
        onset, written = played.notes["onset"], self.score.notes["onset"]
        is_after = np.rint(np.interp(written, self.lines, self.line_steps)) >= self.end
        first_after = onset[is_after].min(initial=self.end_tick)
        last_before = onset[~is_after].max(initial=0)
        cut = int(min(max(first_after, last_before + 1), self.end_tick))
        step = self.end - self.start
        return Boundary(step, step * self.step, self.end_tick, cut)

    def performance(self, played: Score) -> Performance | None:
        """Return how these bars are played; None if they have no notes."""
        tokenizer = self.tokenizer
        bars = self.bars[(self.bars >= self.start) & (self.bars < self.end)]
        return Performance.of(
            played,
            self.score,
            tokenizer.find_tracks(played.tracks),
            (self.lines, self.line_steps),
            np.append(bars, self.end),
            tokenizer.steps_per_beat,
            has_kept=False,
        )

    def describe(self) -> QuantizationSummary:
        """Return what the tokens do not hold of these bars."""
        tokenizer, signature, added = self.tokenizer, self.signature, self.added_signature
        summary = self.report.summary(self.start, self.end)
        repairs = [repair for repair in self.repairs if repair != "chords recognised"]
        summary.rules = [*repairs, *summary.rules]
        of_tokens = tokenizer.bar_length(Score(time_signatures=[signature._replace(tick=0)]))
        if added and other_time_signature(signature, of_tokens, tokenizer.steps_per_beat):
            advice = ""
            if _BAND_STEPS * signature.numerator % signature.denominator == 0:
                asked = f"{signature.numerator}/{signature.denominator}"
                advice = f", for {asked} take checkpoint={BAND_MODEL}"
            summary.rules.append(f"goes on in {added.numerator}/{added.denominator}{advice}")
        return summary
