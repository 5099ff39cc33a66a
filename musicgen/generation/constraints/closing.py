"""The last chord of a closed piece: the tonic triad of the prompt's key."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.constraints.base import Constraint
from musicgen.generation.prompt import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.metrics.descriptors import in_key_share
from musicgen.midi.key import Key, find_key
from musicgen.midi.score import pitched_notes
from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.frames import NUM_VOICES
from musicgen.tokenization.chorale.grammar import ChoraleGrammar, ChoraleState
from musicgen.tokenization.chords.symbols import ROOTS, chord_index
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar
from musicgen.tokenization.vocabulary import IntArray

TRIAD, ROOT = (0, 4, 7), (0,)
"""Semitones above the tonic of a major key; a minor key has the third a semitone lower."""
BASS = 48
"""Pitches below C3 are the tonic: it is the lowest note of 96 of 100 last chords of songs."""

# A signature of C is ignored if the share of notes in the key that the notes have exceeds the share
# in C by more than this. So it is in 72 of 120 songs of POP909 with this signature.
_CONTRADICTION = 0.2


def key_of(prompt: Prompt) -> Key | None:
    """Return the key at the end of a prompt, one of the two of its key signature if it has one.

    A signature of C is ignored if the notes contradict it: sequencers write C if no key is set.
    """
    score, notes = prompt.score, pitched_notes(prompt.score)
    fifths = score.key_signatures[-1].fifths if score.key_signatures else None
    if fifths == 0:
        shares = [in_key_share(score, key) for key in (find_key(notes), Key(0, major=True))]
        fifths = None if shares[0] - shares[1] > _CONTRADICTION else 0
    return find_key(notes, fifths)


def last_chord_constraints(
    tokenizer: Tokenizer,
    grammar: Grammar[Any],
    prompts: Sequence[Prompt],
    request: GenerationRequest,
) -> list[Constraint]:
    """Return the constraint that a closed piece ends on the tonic chord of its prompt's key."""
    keys = [key_of(prompt) for prompt in prompts]
    end = np.array([request.end_time(prompt) or NEVER for prompt in prompts])
    if isinstance(grammar, BarGrammar):
        start = end - [prompt.bar_length for prompt in prompts]
        return [LastChordOfBars(grammar, start, last_pitches(keys, tokenizer.pitches))]
    if isinstance(grammar, ChoraleGrammar):
        start = end - tokenizer.steps_per_beat
        chord, bass = (tonic_pitches(keys, tokenizer.pitches, each) for each in (TRIAD, ROOT))
        of_voices = np.stack([*(NUM_VOICES - 1) * [chord], bass], axis=1)
        return [LastChordOfChorale(grammar, start, of_voices)]
    return []


def closing_chord(prompt: Prompt, end: int | None) -> IntArray:
    """Return grid step and index of the tonic chord of the prompt's key in the last bar. [N, 2]"""
    key = key_of(prompt)
    if key is None or end is None:
        return np.empty((0, 2), np.int64)
    tonic = chord_index(f"{ROOTS[key.tonic]}_{'M' if key.major else 'm'}")
    return np.array([[end - prompt.bar_length, tonic]])


def tonic_pitches(
    keys: Sequence[Key | None], pitches: range, semitones: Sequence[int] = TRIAD
) -> BoolArray:
    """Return which MIDI pitches belong to the tonic chord of each key, [B, num_pitches].

    Without a key all do.

    Args:
        semitones: of the chord's notes above the tonic of a major key.
    """
    found = np.ones((len(keys), len(pitches)), bool)
    for of_key, key in zip(found, keys, strict=True):
        if key is not None:
            chord = [each - (each == TRIAD[1] and not key.major) for each in semitones]
            of_key[:] = np.isin((np.array(pitches) - key.tonic) % 12, chord)
    return found


def last_pitches(keys: Sequence[Key | None], pitches: range) -> BoolArray:
    """Return which MIDI pitches may be in the last chord, [B, num_pitches], see `tonic_pitches`."""
    is_bass = np.array(pitches) < BASS
    return np.where(
        is_bass, tonic_pitches(keys, pitches, ROOT), tonic_pitches(keys, pitches, TRIAD)
    )


class LastChordMemory(NamedTuple):
    """The last chord of each sequence, see `LastChord`."""

    start: IntArray  # [B]
    chord: BoolArray  # [B, num_pitches], or of each voice [B, num_voices, num_pitches]


class LastChord(Constraint):
    """From a musical time on, all notes that sound belong to a chord, and one of them begins.

    Args:
        start: the time in grid steps. [B]
        chord: the pitches of the vocabulary that belong to the chord, see `LastChordMemory`.
    """

    def __init__(self, grammar: Grammar[Any], start: IntArray, chord: BoolArray) -> None:
        self.grammar, self.memory = grammar, LastChordMemory(start, chord)
        self._pitch, self._eos = grammar.slices["Pitch"], grammar.eos

    def start(self, state: Any, prompts: Any) -> LastChordMemory:
        return self.memory

    def allowed(self, state: Any, memory: LastChordMemory) -> BoolArray:
        mask = np.ones((len(memory.start), len(self.grammar.vocabulary)), bool)
        self._restrict(mask, state, memory)
        return mask

    @abstractmethod
    def _restrict(self, mask: BoolArray, state: Any, memory: LastChordMemory) -> None:
        """Clear in a mask [B, V] what may not come."""


class LastChordOfBars(LastChord):
    """For tokens of bars: the last bar comes to rest on the chord.

    Earlier notes outside the chord end when it begins, and no note begins in the second half of the
    bar. The probability of such notes is added to that of the next part and of the end, see
    `EndBy`.
    """

    def __init__(self, grammar: BarGrammar[Any], start: IntArray, chord: BoolArray) -> None:
        super().__init__(grammar, start, chord)
        self._duration = grammar.slices["Duration"]
        self._may_be_last = grammar.of_families("Duration", "Drum")
        self._lengths = grammar.durations / grammar.unit  # in grid steps
        self._beat, self._is_beat = grammar.slices["Beat"], grammar.of_families("Beat")
        self._steps = grammar.ranks["Beat"]
        self._ends_part = grammar.of_families("Part", "EOS")

    def _restrict(self, mask: BoolArray, state: BarState, memory: LastChordMemory) -> None:
        start, chord = memory.start, memory.chord
        is_last = state.time >= start
        mask[:, self._pitch] = chord | ~is_last[:, None]
        mask[:, self._eos] = self._may_be_last[state.last] | ~is_last
        pitch = np.clip(state.pitch, 0, chord.shape[1] - 1)
        in_chord = np.take_along_axis(chord, pitch[:, None], axis=1)
        ends = state.time[:, None] + self._lengths
        mask[:, self._duration] = in_chord | (ends <= start[:, None]) | is_last[:, None]
        half = (state.bar_end - state.bar_start) / 2
        mask[:, self._beat] = (self._steps <= half[:, None]) | ~is_last[:, None]

    def redirect(self, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
        is_last = state.bar_end >= state.limit
        if not is_last.any():
            return logits
        is_late = self._is_beat & self.grammar.allowed(state).numpy() & is_last[:, None]
        is_late = torch.from_numpy(is_late) & ~allowed
        ends = allowed & torch.from_numpy(self._ends_part)
        late, end = (logits.masked_fill(~x, -torch.inf).logsumexp(1) for x in (is_late, ends))
        more = torch.where(end.isfinite(), torch.logaddexp(end, late) - end, 0.0)
        return torch.where(ends, logits + more[:, None], logits)


class LastChordOfChorale(LastChord):
    """For tokens of four voices, all of which sing. The chord has the pitches of each voice."""

    grammar: ChoraleGrammar

    def _restrict(self, mask: BoolArray, state: ChoraleState, memory: LastChordMemory) -> None:
        # Frame and voice of the next token: the header has index 0.
        frame, voice = np.divmod(state.positions[:, 0], NUM_VOICES)
        is_last = (frame >= memory.start)[:, None]
        mask[:, self._pitch] = memory.chord[np.arange(len(voice)), voice] | ~is_last
        mask[:, self.grammar.slices["Silence"]] = ~is_last
