"""Prompts: the beginning of a piece, cut at a bar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError, errors_name
from musicgen.midi import TEMPO, TICKS_PER_BEAT, KeySignature, Marker, Score, TimeSignature
from musicgen.midi.key import note_names
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.progression import schedule
from musicgen.tokenization.chords.symbols import CHORDS, ROOTS, chord_index, spelled
from musicgen.tokenization.part_order import KeptParts
from musicgen.tokenization.quantization import relocate, to_grid
from musicgen.tokenization.quantization_report import QuantizationSummary
from musicgen.tokenization.vocabulary import IntArray
from musicgen.tokenization.whole_bars import without_long_gaps
from musicgen.validation import check_int

FROM_NOTHING = "from nothing"  # the name of the prompt of pieces without one


@dataclass(frozen=True, eq=False)
class Prompt:
    """The beginning of a piece, or the parts of one to which others are written.

    Attributes:
        tokenizer: of the model that continues it.
        tokens: [L] ids.
        end_time: musical time in grid steps at which the continuation begins.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its tempi and its metre.
        piece: the same with the rest of the piece that it begins; without music if there is none.
        summary: what the vocabulary cannot express of its bars.
        data: the MIDI file that it was read from, to which music is added; None if there is none.
        file_end: the file's tick at which the continuation begins: at the prompt's end, or in the
            first bar after all notes of the file if the prompt is the whole piece.
        file_bar: ticks in its last bar.
        is_whole: whether it is the whole piece of the file.
        metre: the metre of the continuation, if its bars have another length than the file's.
        tempo: at which the continuation begins, see `GenerationRequest`; None: that of the prompt.
        programs: General MIDI programs of its tracks, by index, instead of the tokenizer's.
        progression: the chords that the continuation has, see `Grammar.harmonise`. [N, 2]
        kept: parts given and parts to be written, of the whole piece; None: of a beginning.
        own: the piece of `kept`, as it was read; else without music.
        span: its ticks [first, end) in which what is written replaces its notes.
        velocities: of the notes of decoded tracks, by index, where the tokens have none.
    """

    name: str
    tokenizer: Tokenizer
    tokens: NDArray[np.int64]
    end_time: int
    bar_length: int
    score: Score
    piece: Score
    summary: QuantizationSummary
    data: bytes | None = None
    file_end: int = 0
    file_bar: int = 0
    is_whole: bool = False
    metre: TimeSignature | None = None
    tempo: float | None = None
    programs: Mapping[int, int] = field(default_factory=dict)
    progression: IntArray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    kept: KeptParts | None = None
    own: Score = field(default_factory=Score)
    span: tuple[int, float] = (0, np.inf)
    velocities: Mapping[int, int] = field(default_factory=dict)

    @property
    def end_tick(self) -> int:
        """`end_time` in ticks of a decoded score."""
        return self.end_time * (TICKS_PER_BEAT // self.tokenizer.steps_per_beat)

    @property
    def given(self) -> IntArray:
        """Ids of a kept piece, -1 for those to be written, see `Grammar.give`; else none. [L]"""
        return self.kept.given if self.kept else np.empty(0, np.int64)

    @property
    def written(self) -> Sequence[int]:
        """Indices of the decoded tracks that are written: those with notes in the piece, or all."""
        return self.kept.written if self.kept else playing(self.piece)

    @property
    def untouched(self) -> Score | None:
        """The piece of `kept` without the notes that what is written replaces."""
        if self.kept is None:
            return None
        tracks = []
        for track, role in zip(self.own.tracks, self.kept.roles, strict=True):
            onset = track.notes["onset"]
            stays = (onset < self.span[0]) | (onset >= self.span[1]) | (role not in self.written)
            notes = track.notes[stays]
            if self.kept.stop is None and role in self.written:  # frames go on, in a new note
                notes["duration"] = np.minimum(notes["duration"], self.span[0] - notes["onset"])
            tracks.append(replace(track, notes=notes))
        return replace(self.own, tracks=tracks)

    @property
    def notice(self) -> str:
        """One line on what the vocabulary cannot express; empty if nothing was lost."""
        return f"{self.name}: {self.summary.describe()}" if self.summary.lossy else ""

    def decode(self, tokens: IntArray) -> Score:
        """Return the music of ids [L] that begin with its own, in its tempo, metre and programs.

        Chords are spelled by its key signature, else in its key, else in that of the music.
        """
        score = with_frame(self.tokenizer.decode(tokens), self.score)
        if self.tempo is not None:
            score.tempos["bpm"][:1] = self.tempo  # not that of the nearest token
        for index, velocity in self.velocities.items():
            score.tracks[index].notes["velocity"] = velocity
        for index, program in self.programs.items():
            score.tracks[index] = replace(score.tracks[index], program=program)
        if names := note_names(self.score) or note_names(score):
            score.markers = [m._replace(text=spelled(m.text, names)) for m in score.markers]
        return score


def playing(score: Score) -> list[int]:
    """Return the indices of the tracks that have notes."""
    return [i for i, track in enumerate(score.tracks) if len(track.notes)]


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
    shorter, gaps = without_long_gaps(score)
    encoded, report = tokenizer.encode_with_report(shorter)
    grid = tokenizer.decode(encoded)
    if grid.num_notes == 0:
        raise UserError(
            f"{name}: no note that the {tokenizer.name} vocabulary can represent "
            f"({report.summary().describe()})"
        )
    step = grid.ticks_per_beat // tokenizer.steps_per_beat  # ticks
    bars = tokenizer.bar_starts(encoded, bar_length)
    onsets = grid.notes["onset"] // step
    first_bar = int(np.searchsorted(bars, onsets.min(), side="right")) - 1
    start_time = int(bars[first_bar])

    # The bar lines are those of the file, not of the tokens.
    lines = np.append(score.bar_starts(), 0)
    lines[-1] = lines[-2] + score.bar_ticks(score.metre_at(int(lines[-2])))
    times = report.grid(relocate(relocate(lines, gaps), report.places))
    first, final = np.searchsorted(times, [onsets.min(), onsets.max()], side="right") - 1
    is_upbeat = first == 0 and lines[1] < score.bar_ticks(score.metre_at(int(lines[1])))
    last = final if prompt_bars is None else min(first + is_upbeat + prompt_bars - 1, final)
    after = last + 1
    if last == final and not report.too_long:  # where nothing sounds that the grid sees
        margin = score.ticks_per_beat // (2 * tokenizer.steps_per_beat)
        after = max(after, int(np.searchsorted(lines, score.end - margin)))
    end, end_time = int(lines[after]), int(times[after]) - start_time
    last_bar = bar_length
    bar = int(np.searchsorted(bars, start_time + end_time)) - 1
    if bar + 1 < len(bars):
        last_bar = int(bars[bar + 1] - bars[bar])
    elif grid.time_signatures:  # the tokens hold each bar's metre
        last_bar = tokenizer.bar_length(grid.clip(int(bars[bar]) * step, grid.end + 1))
    metre = score.metre_at(end)
    signatures = score.time_signatures
    if (start_time + end_time - bars[bar]) % last_bar and metre.tick != end:
        # The tokens' bars are not the file's: they begin so that they end with the prompt.
        score = replace(score, time_signatures=sorted([*signatures, metre._replace(tick=end)]))
        return make_prompt(tokenizer, score, name, prompt_bars, data, tempo)
    piece = grid.clip(start_time * step, grid.end + 1)
    # Cut as tokens, not as music, so that notes that sound across the end keep their length.
    tokens = tokenizer.crops.from_bar(encoded, first_bar, bar_length) if first_bar else encoded
    tokens = tokens[tokenizer.times(tokens) < end_time]

    def own_tick(time: int) -> int:
        return round(time * score.ticks_per_beat / tokenizer.steps_per_beat)

    from_start = report.score.clip(own_tick(start_time), report.score.end + 1)
    piece = with_frame(piece, _frame(tokenizer, from_start))
    summary = report.summary(start_time, start_time + end_time)
    repairs = [repair for repair in shorter.repairs if repair != "chords recognised"]
    summary.rules = [*repairs, *summary.rules]
    written = _metre(metre, last_bar, tokenizer.steps_per_beat)
    in_metre = tokenizer.bar_length(Score(time_signatures=[metre._replace(tick=0)]))
    if written and _metre(metre, in_metre, tokenizer.steps_per_beat):  # not only held
        goes_on = f"goes on in {written.numerator}/{written.denominator}"
        of_file = f"{metre.numerator}/{metre.denominator}"
        summary.rules.append(f"{goes_on}, for {of_file} take checkpoint=groove-small")
    return Prompt(
        name=name,
        tokenizer=tokenizer,
        tokens=tokenizer.until_end(tokens),
        end_time=end_time,
        bar_length=last_bar,
        score=piece.clip(0, end_time * step),
        piece=piece,
        summary=summary,
        data=data,
        file_end=end,
        file_bar=own_tick(last_bar),
        is_whole=bool(last == final),
        metre=written,
        tempo=tempo,
        velocities=_velocities(tokenizer, score.clip(0, end)),
    )


def kept_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    keep: Sequence[str],
    bars: tuple[int, int | None],
    markers: Sequence[Marker],
    progression: list[list[int]] | None = None,
    data: bytes | None = None,
) -> Prompt:
    """Return some parts of a whole piece, to which the others are to be written.

    Args:
        keep: names of decoded tracks.
        bars: the first that is written, from 0, and the one after the last; None: to the end.
        markers: the piece's, with chords that were recognised, which the model reads before these
            bars; in them they tell the parts to be written.
        progression: the chords of each of the bars, see `parse_progression`; None: the piece's.
        data: the MIDI file that the score was read from.

    Raises:
        UserError: the piece has no such parts or bars, or the model cannot write to them.
    """
    lines = score.bar_starts().tolist()
    lines.append(lines[-1] + score.bar_ticks(score.metre_at(lines[-1])))
    if (bars[1] or 0) >= len(lines):
        raise UserError(f"{name}: rewrite: expected some of its {len(lines) - 1} bars")
    first = lines[min(bars[0], len(lines) - 1)]
    end = lines[-1 if bars[1] is None else bars[1]]
    chords = [m for m in score.markers if chord_index(m.text) is not None]
    others = [m for m in score.markers if chord_index(m.text) is None]
    stay = [m for m in chords if not first <= m.tick < end]
    if progression is not None:
        changes = schedule(progression, lines[bars[0] : lines.index(end) + 1]).tolist()
        names = note_names(score) or ROOTS
        asked = [Marker(tick, spelled(CHORDS[chord], names)) for tick, chord in changes]
        if end < lines[-1]:  # the chord in force behind the bars stays
            stay += [m._replace(tick=end) for m in chords if m.tick <= end][-1:]
    else:
        asked = [m for m in chords if first <= m.tick < end]
    seen = sorted([m for m in markers if m.tick < first or m in others] + asked, key=lambda m: m[0])
    own = replace(score, markers=sorted({*others, *asked, *stay}))
    # The tokens' bars may not be the file's: they begin where it is cut.
    cuts = [score.metre_at(tick)._replace(tick=tick) for tick in (first, end)]
    signatures = sorted([*score.time_signatures, *cuts], key=lambda s: s.tick)
    score = tokenizer.normalise_rhythm(replace(score, markers=seen, time_signatures=signatures))
    with errors_name(name):
        kept = tokenizer.part_order.keep_parts(score, keep, first, None if bars[1] is None else end)
    if not (kept.given < 0).any():
        raise UserError(f"{name}: nothing is left to write")
    in_force = [m._replace(tick=first) for m in chords if m.tick < first][-1:] + asked
    ticks = relocate(np.array([m.tick for m in in_force], np.int64), kept.places)
    at = to_grid(ticks, tokenizer.steps_per_beat, score.ticks_per_beat)
    indices = [chord_index(m.text) or 0 for m in in_force]
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks

    def as_parts(roles: set[int | None]) -> Score:
        tracks = [
            replace(decoded[role], notes=track.notes)
            for track, role in zip(score.tracks, kept.roles, strict=True)
            if role is not None and role in roles
        ]
        return on_grid(tokenizer, replace(score, tracks=tracks))

    return Prompt(
        name=name,
        tokenizer=tokenizer,
        tokens=kept.given[: np.argmax(kept.given < 0)],
        end_time=kept.start,
        bar_length=tokenizer.bar_length(score),
        score=as_parts({*kept.roles} - {*kept.written}),
        piece=as_parts({*kept.roles}),
        summary=QuantizationSummary(),
        data=data,
        file_end=first,
        progression=np.stack([at, np.array(indices, np.int64)], axis=1),
        kept=kept,
        own=own,
        span=(first, np.inf if bars[1] is None else end),
        velocities=_velocities(tokenizer, score, kept),
    )


def _velocities(
    tokenizer: Tokenizer, score: Score, kept: KeptParts | None = None
) -> dict[int, int]:
    """Return the median velocity of each part, of those to be written or all.

    A part that the score lacks has that of all notes. Empty if the tokens hold velocities.
    """
    if tokenizer.families.get("Velocity") or not score.num_notes:
        return {}
    roles = kept.roles if kept else [tokenizer.find_track(track) for track in score.tracks]
    velocities = {}
    num_parts = len(tokenizer.families.get("Part", ())) - tokenizer.chords  # and one of chords
    for index in kept.written if kept else range(num_parts):
        own = [t.notes for t, role in zip(score.tracks, roles, strict=True) if role == index]
        notes = np.concatenate(own or [score.notes])
        velocities[index] = int(np.median((notes if len(notes) else score.notes)["velocity"]))
    return velocities


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
    """Return the tempi and the first key signature of a score, and its first metre.

    The metre is left out if bars of tokens are in another.
    """
    tempos = score.tempos.copy()
    tempos["tick"] = tempos["tick"] * TICKS_PER_BEAT // score.ticks_per_beat
    metre = score.metre_at(score.start)._replace(tick=0)
    bar_length = tokenizer.bar_length(score)
    fits = score.time_signatures and _metre(metre, bar_length, tokenizer.steps_per_beat) is None
    metres = [metre] if fits else []
    keys = [each._replace(tick=0) for each in score.key_signatures[:1]]
    return Score(TICKS_PER_BEAT, tempos=tempos, time_signatures=metres, key_signatures=keys)


def with_frame(score: Score, frame: Score) -> Score:
    """Return the score with what it lacks of `frame`: tempi, metres, keys, and Gb if it has F#."""
    tempos = score.tempos if len(score.tempos) else frame.tempos
    signatures = score.time_signatures or frame.time_signatures
    own = {key.fifths % 12: key.fifths for key in frame.key_signatures}
    keys = score.key_signatures or frame.key_signatures
    keys = [key._replace(fifths=own.get(key.fifths % 12, key.fifths)) for key in keys]
    return replace(score, tempos=tempos, time_signatures=signatures, key_signatures=keys)


def empty_prompt(
    tokenizer: Tokenizer, tempo: float | None = None, keys: Sequence[KeySignature] = ()
) -> Prompt:
    """Return a prompt without music, from which the model starts a piece."""
    score = Score(TICKS_PER_BEAT, key_signatures=[*keys])
    tokens = tokenizer.start_tokens()
    if tempo is not None:
        score.tempos = np.array([(0, tempo)], TEMPO)
    if keys or (tempo is not None and tokenizer.families.get("Tempo")):
        tokens = tokenizer.until_end(tokenizer.encode(score))
    bar_length, lost = tokenizer.bar_length(score), QuantizationSummary()
    return Prompt(FROM_NOTHING, tokenizer, tokens, 0, bar_length, score, score, lost, tempo=tempo)


def prompt_with_chords(prompt: Prompt, bars: list[list[int]], end: int) -> Prompt:
    """Return a prompt whose continuation up to a musical time has the chords of bars.

    Args:
        bars: indices in `CHORDS`, see `parse_progression`; they begin again when they end.
    """
    progression = schedule(bars, range(prompt.end_time, end + 1, prompt.bar_length))
    tokens, tokenizer = prompt.tokens, prompt.tokenizer
    if prompt.end_time == 0:  # the first chord comes before the tempo
        chord = Marker(0, CHORDS[progression[0, 1]])
        tokens = tokenizer.until_end(tokenizer.encode(replace(prompt.score, markers=[chord])))
    return replace(prompt, tokens=tokens, progression=progression)
