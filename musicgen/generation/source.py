"""Where the music of a prompt came from, and what its tokens do not hold of how it sounds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import PurePosixPath

import numpy as np

from musicgen.errors import ParameterError
from musicgen.generation.performance import Performance
from musicgen.midi import TICKS_PER_BEAT, Score, TimeSignature
from musicgen.midi.tick_grid import is_notated
from musicgen.plugins import plugin, suffixes
from musicgen.tokenization.base import Tokenizer

PACE_BARS = 4
"""Last bars of a played prompt whose mean tempo the continuation has."""


@dataclass(frozen=True)
class Source:
    """The user's file, and how its music sounds.

    Attributes:
        name: of the file, or of the prompt if it is no file.
        data: the MIDI file's bytes; None: the prompt is no file.
        bar_ticks: ticks of the file in the prompt's last bar.
        is_whole: whether the prompt is the whole piece of the file.
        time_signature: of the continuation, if its bars have another length than the file's.
        tune_part: index of the decoded track for a lone melody, see `Tokenizer.name_tune`; None:
            tracks are read as `Tokenizer.find_tracks` finds them.
        tempo: first tempo of the continuation, in quarters a minute; None: that of the prompt.
        programs: General MIDI programs of decoded tracks, by index, instead of the tokenizer's.
        velocities: of the notes of decoded tracks, by index, where the tokens have none.
        performance: how the prompt is played, which new notes take over; None: they do not.
    """

    name: str
    data: bytes | None = None
    bar_ticks: int = 0
    is_whole: bool = False
    time_signature: TimeSignature | None = None
    tune_part: int | None = None
    tempo: float | None = None
    programs: Mapping[int, int] = field(default_factory=dict)
    velocities: Mapping[int, int] = field(default_factory=dict)
    performance: Performance | None = None

    @property
    def is_printed(self) -> bool:
        """Whether the file is a printed score, such as MusicXML, by its name."""
        path = PurePosixPath(self.name)  # BOOK/TUNE for a tune of a book
        return not {path.suffix.lower(), path.parent.suffix.lower()}.isdisjoint(suffixes())


def on_beats(
    score: Score, data: bytes | None, setting: str, time_signature: str | None = None
) -> tuple[Score, bytes | None]:
    """Return a piece and its file on its beats; the same objects if these are the file's.

    Args:
        setting: `auto`, `file`, or the path of a file of beats.
        time_signature: of the piece, such as 3/4; None: the one that is found or the file's.

    Raises:
        ParameterError: there is no such time signature.
    """
    metre = None if time_signature is None else _metre(time_signature)
    is_own = setting == "file" or (setting == "auto" and is_notated(score))
    if not score.num_notes or (is_own and metre is None):
        return score, data
    needs = f"beats={setting} (beats=file uses those of the file)"
    moved: tuple[Score, bytes | None] = plugin("beats", needs).on_beats(
        score, data, setting, PACE_BARS, metre
    )
    return moved


def _metre(time_signature: str) -> tuple[int, int]:
    """Return the numerator and the denominator of a time signature such as 3/4."""
    match = re.fullmatch(r"([2-9]|1[0-2])/(2|4|8)", str(time_signature))
    if match is None or str(time_signature) == "3/8":  # a bar of one beat
        expected = "expected a time signature of two beats or more, such as 3/4 or 6/8"
        raise ParameterError("time_signature", time_signature, expected)
    return int(match[1]), int(match[2])


def signatures_of_new(tokenizer: Tokenizer, name: str | None) -> list[TimeSignature]:
    """Return the time signature of a new piece by its name, such as 3/4; [] without a name.

    Raises:
        ParameterError: the tokens have no bars in it.
    """
    if name is None:
        return []
    if name not in tokenizer.time_signatures:
        known = ", ".join(tokenizer.time_signatures)
        expected = f"expected one of {known}, or a prompt with it"
        raise ParameterError("time_signature", name, expected)
    return [TimeSignature(0, *map(int, name.split("/")))]


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


def tracks_with_notes(score: Score) -> list[int]:
    """Return the indices of the tracks that have notes."""
    return [i for i, track in enumerate(score.tracks) if len(track.notes)]


def median_velocities(
    tokenizer: Tokenizer, score: Score, roles: Sequence[int | None], parts: Sequence[int]
) -> dict[int, int]:
    """Return the median velocity of some decoded tracks, by index.

    A track that the score lacks has the median of all notes. Empty if the tokens hold velocities.

    Args:
        roles: the decoded track of each of the score's tracks; None: no track.
        parts: indices of the decoded tracks.
    """
    if tokenizer.families.get("Velocity") or not score.num_notes:
        return {}
    velocity, sizes = score.notes["velocity"], [len(track.notes) for track in score.tracks]
    part_of = np.repeat([-1 if role is None else role for role in roles], sizes)
    found = {part: velocity[part_of == part] for part in parts}
    return {part: int(np.median(own if len(own) else velocity)) for part, own in found.items()}


# The tempi, the time signature and the key of a piece, which its tokens need not hold.


def on_grid(tokenizer: Tokenizer, score: Score) -> Score:
    """Return a score as its tokens hold it, with its tempi and its time signature."""
    return with_signatures(
        tokenizer.decode(tokenizer.encode(score)), signatures_of(tokenizer, score)
    )


def signatures_of(tokenizer: Tokenizer, score: Score) -> Score:
    """Return the tempi, the first key signature and the first time signature of a score.

    The time signature is left out if the bars of the tokens have another.
    """
    tempos = score.tempos.copy()
    tempos["tick"] = tempos["tick"] * TICKS_PER_BEAT // score.ticks_per_beat
    signature = score.time_signature_at(score.start)._replace(tick=0)
    bar_length = tokenizer.bar_length(score)
    other = other_time_signature(signature, bar_length, tokenizer.steps_per_beat)
    fits = score.time_signatures and other is None
    return Score(
        TICKS_PER_BEAT,
        tempos=tempos,
        time_signatures=[signature] if fits else [],
        key_signatures=[key._replace(tick=0) for key in score.key_signatures[:1]],
    )


def with_signatures(score: Score, source: Score) -> Score:
    """Return a score with the tempi, time signatures and keys of `source` where it has none.

    A key is spelled as in `source`: Gb instead of F# if that has Gb. So is its mode.
    """
    spelling = {key.fifths % 12: key for key in source.key_signatures}
    keys = score.key_signatures or source.key_signatures
    return replace(
        score,
        tempos=score.tempos if len(score.tempos) else source.tempos,
        time_signatures=score.time_signatures or source.time_signatures,
        key_signatures=[spelling.get(key.fifths % 12, key)._replace(tick=key.tick) for key in keys],
    )


def with_own_keys(score: Score, source: Score) -> Score:
    """Return a decoded score without the keys and the modes that its source does not say.

    Tokens have those that are found from the notes then, which are less certain.
    """
    keys = score.key_signatures if source.key_signatures else []
    says_mode = any(each.minor for each in source.key_signatures)
    keys = [each._replace(minor=each.minor and says_mode) for each in keys]
    return replace(score, key_signatures=keys)


def other_time_signature(
    signature: TimeSignature, bar_length: int, steps_per_beat: int
) -> TimeSignature | None:
    """Return the time signature of bars of `bar_length` grid steps, if it is not `signature`.

    Also None if no time signature has such bars, such as ten twelfths of a beat, the bar of 7/32 on
    a grid of twelfths.
    """
    bar = Fraction(bar_length, 4 * steps_per_beat)  # of a whole note
    is_power_of_two = bar.denominator.bit_count() == 1
    if not is_power_of_two or bar == Fraction(signature.numerator, signature.denominator):
        return None
    denominator = max(4, bar.denominator)
    return TimeSignature(0, int(bar * denominator), denominator)
