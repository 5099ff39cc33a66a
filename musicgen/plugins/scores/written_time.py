"""Times of notes as they are written: on divisions of a beat, in voices, as values in a bar.

Times are fractions of a quarter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import NamedTuple

from musicgen.midi.score import NoteArray

# Divisions of a quarter, the plain ones first, and those that ticks round, such as sevenths.
_COARSE = (1, 2, 3, 4, 6, 8, 12)
_PLAIN = (*_COARSE, 5, 16, 24, 10, 32, 48)
_ROUNDED = (*_COARSE, 5, 16, 24, 7, 9, 10, 11, 13, 14)  # where ticks are too few for them
_PLAYED = (2, 4, 3)  # divisions to which played notes are moved
_MOST_ODD = 0.1  # share of onsets on none of these divisions: with more, a track was played
_FINEST = 480  # divisions of a quarter for such onsets of other tracks
_MOST_FINE = 1 / 3  # share of notes that begin on a coarse division, and end before the next
_COST = 0.02  # in quarters: how much nearer the notes must lie to a finer division
_LONGEST, _SHORTEST = Fraction(8), Fraction(1, 256)  # a breve, and a 1024th


class Sound(NamedTuple):
    """Notes of one voice that begin and end together.

    Attributes:
        onset: from the beginning of the piece.
        end: likewise.
        pitches: ascending.
    """

    onset: Fraction
    end: Fraction
    pitches: tuple[int, ...]


class Tuplet(NamedTuple):
    """A span of time in which `actual` notes take the time of `normal` notes."""

    start: Fraction
    end: Fraction
    actual: int
    normal: int


class Value(NamedTuple):
    """A printed note, chord or rest.

    Attributes:
        start: from the beginning of its bar.
        end: likewise.
        base: its value without a dot, in quarters: 1/2 is an eighth.
        is_dotted: whether it has a dot.
        tuplet: the tuplet that it is in; None: none.
        sound: its notes; None: a rest.
    """

    start: Fraction
    end: Fraction
    base: Fraction
    is_dotted: bool
    tuplet: Tuplet | None
    sound: Sound | None


def written_sounds(notes: NoteArray, ticks_per_beat: int) -> list[Sound]:
    """Return notes as sounds: those that begin and end together are one.

    Ticks that are no division of a quarter become the nearest: those of a septuplet exactly what
    they round, those of notes that were played sixteenths or triplets, beat by beat. So do the ends
    of a track in which most notes are a little shorter than they are printed.
    """
    rows = _rows(notes)
    times = _Times(ticks_per_beat, rows)
    together = defaultdict[tuple[Fraction, Fraction, int], list[int]](list)
    taken = defaultdict[tuple[Fraction, Fraction, int], int](int)
    next_onset = dict[int, Fraction]()  # of each pitch
    for first, last, pitch in sorted(rows, reverse=True):
        onset = times.onset(first)
        end = times.end(last, onset)
        if end != times.exact(last) and onset < next_onset.get(pitch, end) < end:
            end = next_onset[pitch]  # moving it must not make it overlap the next
        next_onset[pitch] = onset
        number = taken[onset, end, pitch]  # of unisons
        taken[onset, end, pitch] += 1
        together[onset, end, number].append(pitch)
    found = [Sound(*key[:2], tuple(sorted(pitches))) for key, pitches in together.items()]
    return sorted(found, key=lambda each: (each.onset, -sum(each.pitches) / len(each.pitches)))


def written_onsets(notes: NoteArray, ticks_per_beat: int) -> list[Fraction]:
    """Return when each note begins in `written_sounds`."""
    rows = _rows(notes)
    times = _Times(ticks_per_beat, rows)
    return [times.onset(first) for first, _, _ in rows]


def _rows(notes: NoteArray) -> list[tuple[int, int, int]]:
    """Return onset, end and pitch of each note."""
    return [(int(n["onset"]), int(n["onset"] + n["duration"]), int(n["pitch"])) for n in notes]


def _division_at(place: Fraction, ticks_per_beat: int) -> Fraction | None:
    """Return the division at a place in a quarter that is whole ticks; None if there is none."""
    if place.denominator in _PLAIN:
        return place
    for division in _ROUNDED:
        near = Fraction(round(place * division), division)
        if abs(near - place) * ticks_per_beat <= Fraction(1, 2):
            return near
    return None


class _Times:
    """Returns the written times of ticks; in a track that was played, by the onsets of a beat."""

    def __init__(self, ticks_per_beat: int, rows: Sequence[tuple[int, int, int]]) -> None:
        self._ticks = ticks_per_beat
        onsets = {onset for onset, _, _ in rows}
        by_beat, num_odd = defaultdict[int, list[Fraction]](list), 0
        for tick in onsets:
            beat, rest = divmod(tick, ticks_per_beat)
            by_beat[beat].append(place := Fraction(rest, ticks_per_beat))
            num_odd += _division_at(place, ticks_per_beat) is None
        self._is_played = num_odd > _MOST_ODD * len(onsets)
        self._divisions = {beat: _played_division(places) for beat, places in by_beat.items()}
        spans = [(onset, end) for onset, end, _ in rows if end not in onsets]
        fine = [self._is_coarse(onset) and not self._is_coarse(end) for onset, end in spans]
        self._is_articulated = sum(fine) > _MOST_FINE * len(rows)

    def _is_coarse(self, tick: int) -> bool:
        return Fraction(tick, self._ticks).denominator in _COARSE

    def exact(self, tick: int) -> Fraction | None:
        """Return the division of a quarter at a tick; None if notes were played."""
        if self._is_played:
            return None
        beat, rest = divmod(tick, self._ticks)
        place = Fraction(rest, self._ticks)
        near = _division_at(place, self._ticks)
        return beat + (Fraction(round(place * _FINEST), _FINEST) if near is None else near)

    def onset(self, tick: int) -> Fraction:
        """Return the written onset at a tick."""
        exact = self.exact(tick)
        return self._nearest(tick) if exact is None else exact

    def end(self, tick: int, onset: Fraction) -> Fraction:
        """Return the written end of a note, which comes after its onset."""
        end = self.exact(tick)
        is_cut = self._is_articulated and not self._is_coarse(tick)
        if end is None or (is_cut and onset.denominator in _COARSE):
            end = self._nearest(tick)
        if end > onset:
            return end
        return onset + Fraction(1, self._divisions.get(int(onset), _PLAYED[1]))

    def _nearest(self, tick: int) -> Fraction:
        division = self._divisions.get(tick // self._ticks, _PLAYED[1])
        return Fraction(round(Fraction(tick, self._ticks) * division), division)


def _played_division(places: Sequence[Fraction]) -> int:
    """Return the division of a beat that is nearest to the places of onsets in it."""

    def cost(division: int) -> float:
        moved = [float(place * division) for place in places]
        miss = sum(abs(place - round(place)) for place in moved) / division
        return miss / len(places) + _COST * division

    return min(_PLAYED, key=cost)


def deal_to_voices(sounds: Sequence[Sound]) -> list[list[Sound]]:
    """Deal sounds in the order of onsets to voices in which none overlaps, the highest first.

    There are as many voices as sounds at once. Each goes to the free voice whose last pitch is
    nearest; where all voices are free, the highest of those that follow comes first again.
    """
    voices = list[list[Sound]]()
    for group in _connected(sounds):
        dealt = list[list[Sound]]()
        for sound in group:
            free = [voice for voice in dealt if voice[-1].end <= sound.onset]
            if free:
                distances = [abs(_height(voice[-1:]) - _height([sound])) for voice in free]
                free[distances.index(min(distances))].append(sound)
            else:
                dealt.append([sound])
        dealt.sort(key=_height, reverse=True)
        voices += [[] for _ in dealt[len(voices) :]]
        for voice, own in zip(voices, dealt, strict=False):
            voice += own
    return voices


def _connected(sounds: Sequence[Sound]) -> Iterator[list[Sound]]:
    """Yield groups of sounds; when one group begins, all others are silent."""
    group, end = list[Sound](), Fraction(0)
    for sound in sounds:
        if group and sound.onset >= end:
            yield group
            group = []
        group.append(sound)
        end = max(end, sound.end)
    if group:
        yield group


def _height(sounds: Sequence[Sound]) -> float:
    """Return the mean pitch of sounds."""
    pitches = [pitch for sound in sounds for pitch in sound.pitches]
    return sum(pitches) / len(pitches)


def beat_starts(length: Fraction, metre: tuple[int, int]) -> list[Fraction]:
    """Return where the beats of a bar begin, with its end: beams do not cross them.

    Those of 6/8 are dotted quarters; of 5/8 and 7/8 the first beats are the long and the short.
    """
    over, below = metre
    unit = Fraction(4, below)
    if below <= 4:
        steps = [Fraction(1)]
    elif over % 3 == 0:
        steps = [3 * unit]
    else:
        steps = {5: [3 * unit, 2 * unit]}.get(over, [2 * unit])
    starts = [Fraction(0)]
    while starts[-1] < length:
        starts.append(starts[-1] + steps[(len(starts) - 1) % len(steps)])
    return [*starts[:-1], length]


def write_values(
    sounds: Sequence[Sound], start: Fraction, length: Fraction, metre: tuple[int, int]
) -> list[Value]:
    """Return the values of a voice that fill a bar, with rests where it is silent.

    Args:
        sounds: those that sound in the bar, in order.
        start: of the bar.
    """
    pieces = list[tuple[Fraction, Fraction, Sound | None]]()
    at = Fraction(0)
    for sound in sounds:
        first, last = max(sound.onset - start, Fraction(0)), min(sound.end - start, length)
        if first > at:
            pieces.append((at, first, None))
        pieces.append((first, last, sound))
        at = last
    if at < length:
        pieces.append((at, length, None))
    tuplets = _find_tuplets({edge for piece in pieces for edge in piece[:2]}, length, metre)
    is_compound = metre[1] > 4 and metre[0] % 3 == 0
    beat = 3 * Fraction(4, metre[1]) if is_compound else None
    values = list[Value]()
    for first, last, own in pieces:
        for low, high, tuplet in _cut_at(first, last, tuplets):
            origin, scale = Fraction(0), Fraction(1)
            if tuplet is not None:
                origin, scale = tuplet.start, Fraction(tuplet.actual, tuplet.normal)
            places = (low - origin) * scale, (high - origin) * scale
            for a, b in _split(*places, beat if tuplet is None else None):
                base, is_dotted = _notated(b - a) or (_nearest_value(b - a), False)
                a, b = origin + a / scale, origin + b / scale
                values.append(Value(a, b, base, is_dotted, tuplet, own))
    return values


def _find_tuplets(edges: set[Fraction], length: Fraction, metre: tuple[int, int]) -> list[Tuplet]:
    """Return the tuplets of a bar, by the times at which notes and rests begin or end."""
    below = metre[1]
    span = Fraction(4, max(below, 4))  # a quarter, or an eighth in 6/8
    found = list[Tuplet]()
    at = Fraction(0)
    while at < length:
        wide = next((w for w in (4, 2) if _is_wide(edges, at, w * span, length, below)), 1)
        end = min(at + wide * span, length)
        inside = [edge - at for edge in (*edges, end) if at < edge <= end]
        odd = _odd_part(lcm(*(place.denominator for place in inside)))
        if wide > 1:
            odd = 3
        if odd > 1:
            found.append(Tuplet(at, end, odd, 1 << (odd.bit_length() - 1)))
        at = end
    return found


def _is_wide(
    edges: set[Fraction], at: Fraction, width: Fraction, length: Fraction, below: int
) -> bool:
    """Return whether a triplet takes several beats: notes change at its thirds alone."""
    if below > 4 or at % width or at + width > length:
        return False
    inside = [edge - at for edge in edges if at < edge < at + width]
    return bool(inside) and all(3 * place % width == 0 for place in inside)


def _odd_part(number: int) -> int:
    while number % 2 == 0:
        number //= 2
    return number


def _cut_at(
    first: Fraction, last: Fraction, tuplets: Sequence[Tuplet]
) -> Iterator[tuple[Fraction, Fraction, Tuplet | None]]:
    """Yield the pieces of a span of time that lie inside tuplets, and between them."""
    edges = {each for tuplet in tuplets for each in tuplet[:2] if first < each < last}
    for low, high in pairwise([first, *sorted(edges), last]):
        inside = (each for each in tuplets if each.start <= low and high <= each.end)
        yield low, high, next(inside, None)


def _split(
    first: Fraction, last: Fraction, beat: Fraction | None
) -> list[tuple[Fraction, Fraction]]:
    """Split a span of a bar into spans that are values, at its strongest beats.

    Args:
        beat: three units in 6/8 etc.; None: beats are divided by two.
    """
    if _is_readable(first, last, beat):
        return [(first, last)]
    steps = [] if beat is None else [4 * beat, 2 * beat, beat]
    step = _LONGEST if beat is None else beat
    while step > _SHORTEST:
        step /= 2 if beat is None or step < beat else 3
        steps.append(step)
    for step in steps:
        cut = (first // step + 1) * step
        if cut < last:
            return _split(first, cut, beat) + _split(cut, last, beat)
    return [(first, last)]


def _is_readable(first: Fraction, last: Fraction, beat: Fraction | None) -> bool:
    """Return whether a value may be written here: it shows the beats that it covers."""
    value = _notated(last - first)
    if value is None:
        return False
    base, is_dotted = value
    if beat is None and base < 1 and last > first // 1 + 1:  # a short one beyond its beat
        return False
    if beat is not None and last > (first // beat + 1) * beat:  # beyond its beat
        return first % beat == 0 and last % beat == 0
    if beat is not None:
        return first % (beat / 3) == 0 or first % base == 0
    if is_dotted:
        return first % base == 0 or last % base == 0
    return first % (base / 2) == 0


def _nearest_value(length: Fraction) -> Fraction:
    """Return a value for a length that no value has, in a tuplet within a tuplet."""
    value = _SHORTEST
    while value < _LONGEST and 2 * value <= length:
        value *= 2
    return value


def _notated(length: Fraction) -> tuple[Fraction, bool] | None:
    """Return the value without its dot of a length, and whether it has one; None: no value has."""
    for base, is_dotted in ((length, False), (length * Fraction(2, 3), True)):
        is_power = base.numerator.bit_count() == 1 and base.denominator.bit_count() == 1
        if is_power and _SHORTEST <= base <= _LONGEST:
            return base, is_dotted
    return None
