"""The records of a prompt: what the model reads, and what its music is added to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from musicgen.generation.performance import Performance
from musicgen.generation.signatures import with_signatures
from musicgen.midi import TICKS_PER_BEAT, Score, TimeSignature
from musicgen.midi.key import note_names
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.symbols import spelled
from musicgen.tokenization.part_order import ConditioningTokens
from musicgen.tokenization.quantization_report import QuantizationSummary
from musicgen.tokenization.vocabulary import IntArray


@dataclass(frozen=True)
class SourceFile:
    """The user's file, and where music is added to it.

    Attributes:
        name: of the file, or of the prompt if it is no file.
        data: the MIDI file's bytes; None: the prompt is no file.
        end_tick: the file's tick at which the continuation begins: at the prompt's end, or in the
            first bar after all notes of the file if the prompt is the whole piece.
        bar_ticks: ticks in the prompt's last bar.
        cut_tick: the file's tick from which its events are left out: `end_tick`, or earlier if
            notes of the next bar are played before its bar line.
        is_whole: whether the prompt is the whole piece of the file.
        time_signature: of the continuation, if its bars have another length than the file's.
        tune_part: the decoded track as which its only track is read, see `PartOrder.name_tune`;
            None: tracks are read as `Tokenizer.find_track` finds them.
    """

    name: str
    data: bytes | None = None
    end_tick: int = 0
    bar_ticks: int = 0
    cut_tick: int = 0
    is_whole: bool = False
    time_signature: TimeSignature | None = None
    tune_part: int | None = None


@dataclass(frozen=True)
class Playback:
    """What the tokens do not hold of how decoded music sounds.

    Attributes:
        tempo: in quarters a minute, at which the continuation begins; None: that of the prompt.
        programs: General MIDI programs of decoded tracks, by index, instead of the tokenizer's.
        velocities: of the notes of decoded tracks, by index, where the tokens have none.
        performance: how the prompt is played, which new notes take over; None: they do not.
    """

    tempo: float | None = None
    programs: Mapping[int, int] = field(default_factory=dict)
    velocities: Mapping[int, int] = field(default_factory=dict)
    performance: Performance | None = None


@dataclass(frozen=True, eq=False)
class KeptParts:
    """A whole piece, of which some parts are kept and the others, the target parts, are written.

    Attributes:
        conditioning: the tokens that the model is given.
        source: the piece as it was read.
        span: ticks [first, end) of the source in which new notes replace those of target parts.
        progression: grid step and index in `CHORDS` of the chords to be written. [N, 2]
    """

    conditioning: ConditioningTokens
    source: Score
    span: tuple[int, float]
    progression: IntArray

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
                notes["duration"] = np.minimum(notes["duration"], self.span[0] - notes["onset"])
            tracks.append(replace(track, notes=notes))
        return replace(self.source, tracks=tracks)


@dataclass(frozen=True, eq=False)
class Prompt:
    """The beginning of a piece, or the parts of one to which others are written.

    Attributes:
        tokenizer: of the model that continues it.
        tokens: ids. [L]
        end_time: musical time in grid steps at which the continuation begins.
        bar_length: grid steps in its last bar.
        score: the prompt alone, on the grid, with its tempi and its time signature.
        piece: the same with the rest of the piece that it begins; without music if there is none.
        summary: what the vocabulary cannot express of its bars.
        source: the user's file.
        playback: how the music sounds.
        kept: the parts that are kept of a whole piece; None: the prompt is a beginning.
    """

    tokenizer: Tokenizer
    tokens: NDArray[np.int64]
    end_time: int
    bar_length: int
    score: Score
    piece: Score
    summary: QuantizationSummary
    source: SourceFile
    playback: Playback = field(default_factory=Playback)
    kept: KeptParts | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def end_tick(self) -> int:
        """`end_time` in ticks of a decoded score."""
        return self.end_time * (TICKS_PER_BEAT // self.tokenizer.steps_per_beat)

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

        It has the prompt's tempo and time signature, and its `playback`. Chords are spelled by the
        prompt's key signature, else in its key, else in that of the music.
        """
        score = with_signatures(self.tokenizer.decode(tokens), self.score)
        if self.playback.tempo is not None:
            score.tempos["bpm"][:1] = self.playback.tempo  # not that of the nearest token
        for index, velocity in self.playback.velocities.items():
            score.tracks[index].notes["velocity"] = velocity
        for index, program in self.playback.programs.items():
            score.tracks[index] = replace(score.tracks[index], program=program)
        if names := note_names(self.score) or note_names(score):
            score.markers = [m._replace(text=spelled(m.text, names)) for m in score.markers]
        return score

    def perform(self, score: Score, seed: int) -> Score:
        """Return decoded music with new notes that are played like those of the prompt."""
        if self.playback.performance is None:
            return score
        tracks = self.kept.targets if self.kept else range(len(score.tracks))
        return self.playback.performance.play(score, self.end_tick, tracks, seed)


def tracks_with_notes(score: Score) -> list[int]:
    """Return the indices of the tracks that have notes."""
    return [i for i, track in enumerate(score.tracks) if len(track.notes)]


def median_velocities(
    tokenizer: Tokenizer, score: Score, roles: Sequence[int | None], parts: Sequence[int]
) -> dict[int, int]:
    """Return the median velocity of some decoded tracks, by index.

    A track that the score lacks has the median of all notes. Empty if the tokens hold velocities.

    Args:
        roles: the decoded track that each of the score's tracks is; None: none.
        parts: indices of the decoded tracks.
    """
    if tokenizer.families.get("Velocity") or not score.num_notes:
        return {}
    velocities = {}
    for part in parts:
        found = [t.notes for t, role in zip(score.tracks, roles, strict=True) if role == part]
        notes = np.concatenate(found) if found else score.notes
        if not len(notes):
            notes = score.notes
        velocities[part] = int(np.median(notes["velocity"]))
    return velocities
