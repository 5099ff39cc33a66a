"""The grammar of chorales, in all orders of the voices, and constraints on their tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from musicgen.metrics.part_writing import FIFTH, SILENT, UNISON, parallel_intervals
from musicgen.tokenization.closing import BY_STEP, DOMINANT, MIDDLE, OCTAVE, WHOLE_TONE, LastTonic
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.constraints import FREE, Constraint, narrowed_where_possible, padded
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar, GrammarState, latest
from musicgen.tokenization.vocabulary import IntArray
from musicgen.tokenization.voices import NUM_VOICES

LEAD = 16

LEADING = [
    [bool(number >> voice & 1) for voice in range(NUM_VOICES)]
    for number in range(1, 2**NUM_VOICES - 1)
]
"""The sets of voices that may lead, in the order of their tokens; the first is the soprano."""

THIRDS = (3, 4)
"""Semitones of the minor and the major third."""

SEVENTH = (DOMINANT, 11, 2, 5)
"""Semitones of the dominant seventh above the tonic, its root first."""

_BASS = NUM_VOICES - 1
RECENT = NUM_VOICES * (LEAD + 2)  # tokens from which parallels are seen


class Arrangements:
    """What the first token of a sequence says of its order, by the token's id.

    A token of the key may follow it. In all orders each voice has a token in each frame:

    - `BOS`: four voices of one frame after another.
    - `Lead_*`, the names of one to three voices: those are `LEAD` frames ahead. Their pitches are
      `Ahead_*`, so that each tells by itself what it is. The other voices begin with `Empty`
      tokens, the leading ones end with them. The piece ends with the leading voices.

    Attributes:
        leading: the voices that are not behind others: all, but after `Lead_*`. [V, 4]
        delay: frames by which the other voices are behind. [V]
    """

    def __init__(self, size: int, families: Mapping[str, range]) -> None:
        self.leading = np.ones((size, NUM_VOICES), bool)
        self.delay = np.zeros(size, np.int64)
        for header, voices in zip(families["Lead"], LEADING, strict=False):
            self.leading[header], self.delay[header] = voices, LEAD

    def times(self, header: IntArray, index: IntArray, is_end: BoolArray) -> IntArray:
        """Return the musical time in frames of tokens, by their index, of any shape.

        Args:
            header: the first tokens of their sequences.
            is_end: whether they are EOS, which has the first frame after all.
        """
        frame, voice = np.divmod(np.maximum(index - 1, 0), NUM_VOICES)
        behind = ~self.leading[header, voice] | is_end
        return np.maximum(frame - behind * self.delay[header], 0)


@dataclass
class ChoraleState(GrammarState):
    """The state of Chorale sequences. [B] each."""

    sounding: BoolArray  # whether a leading voice sounds in their last or current frame
    header: IntArray  # the first token, see `Arrangements`; PAD before it
    end: IntArray  # the frame in which a leading voice is empty for the first time


class ChoraleGrammar(Grammar[ChoraleState]):
    """A header, the key if the vocabulary has keys, frames of four voices, and EOS.

    After BOS all frames have four voices, and EOS may follow a frame in which a voice sounds, or
    BOS. The other headers say which voices of which frames are empty, and where EOS stands, see
    `Arrangements`; there the leading voices end with a frame in which one of them sounds.

    Attributes:
        limit: maximum number of frames.
        pitch: of each token, from the lowest; -1: none. [V]
    """

    state_type = ChoraleState
    holds_last_chord = True
    counts_future = False  # voices and beats follow from the index

    def __init__(self, tokenizer: Codec, arrangements: Arrangements, limit: int) -> None:
        super().__init__(tokenizer.vocabulary, tokenizer.families)
        self.arrangements, self.limit, self.pitch = arrangements, limit, tokenizer.pitch_ranks
        self.num_pitches = len(tokenizer.pitches)
        self._is_key = self.of_families("Key")
        self.counts &= ~self._is_key  # voices and beats stay at their index
        self.future_header = (self.slices["BOS"].start, *np.flatnonzero(self._is_key)[:1])
        # The first and the last of the leading voices, by header.
        leading = self.arrangements.leading
        self._first = leading.argmax(axis=1)
        self._last = NUM_VOICES - 1 - leading[:, ::-1].argmax(axis=1)
        self._is_empty, self._is_header = self.of_families("Empty"), self.of_families("BOS", "Lead")

    def _initial_fields(self, batch: int) -> dict[str, Any]:
        return super()._initial_fields(batch) | {
            "sounding": np.zeros(batch, bool),
            "header": np.full(batch, self.pad),
            "end": np.full(batch, NEVER),
        }

    def _allowed(self, state: ChoraleState, earliest: Mapping[str, IntArray]) -> BoolArray:
        # The next token's frame and voice; the header has index 0.
        index, header, sounding = state.positions[:, 0], state.header, state.sounding
        frame, voice = index // NUM_VOICES, index % NUM_VOICES
        begun, plain = index >= 0, header == self.slices["BOS"].start
        delay = self.arrangements.delay[header]
        leads = self.arrangements.leading[header, voice]
        first, last = voice == self._first[header], voice == self._last[header]
        limit = np.minimum(state.limit, self.limit)
        over = frame >= state.end + delay
        must_wait = np.where(leads, frame >= state.end, frame < delay)
        sings = begun & ~over & ~must_wait & (~leads | (frame < limit))
        # The last frame that fits must have a note, or else the piece could not end there.
        last_chance = leads & (frame == limit - 1) & last
        stops = leads & first & (delay > 0) & sounding & (frame > 0)
        may_end = np.where(plain, (frame == 0) | sounding, over) & (voice == 0)
        ahead = sings & leads & (delay > 0)
        mask = np.zeros((len(index), len(self.vocabulary)), bool)
        mask[:, self.slices["Pitch"]] = (sings & ~ahead)[:, None]
        mask[:, self.slices["Silence"]] = (sings & (~last_chance | sounding))[:, None]
        mask[:, self.slices["EOS"]] = (begun & may_end)[:, None]
        mask[:, self._is_header] = ~begun[:, None]
        if self._is_empty.any():  # voices may lead
            mask[:, self.slices["Empty"]] = (begun & ~over & (must_wait | stops))[:, None]
            mask[:, self.slices["Ahead"]] = ahead[:, None]
        if self._is_key.any():
            mask[self._is_header[state.last]] = self._is_key
        return mask

    def recent_pitches(self, prompts: Sequence[IntArray], number: int) -> IntArray:
        """Return the pitch of each of the last tokens, see `pitch`; `SILENT` without one. [B, N]"""
        recent = np.full((len(prompts), number), SILENT)
        for of_prompt, tokens in zip(recent, prompts, strict=True):
            pitches = self.pitch[np.asarray(tokens)[-number:]]
            of_prompt[number - len(pitches) :] = pitches
        return recent

    def time_tokens(self, state: ChoraleState, until: IntArray) -> BoolArray:
        """Return silence before `until`, and every token where the next one is at `until`."""
        return (
            self.of_families("Silence", "Key")
            | (state.positions[:, 0] // NUM_VOICES >= until)[:, None]
        )

    def _advance(self, state: ChoraleState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        index = state.positions[:, 0] + self.counts[ids].cumsum(axis=0)
        header = latest(state.header, self._is_header[ids], ids)
        frame, voice = np.divmod(index - 1, NUM_VOICES)
        leads = self.arrangements.leading[header, voice] & (index > 0)
        sounds = self.pitch[ids] >= 0
        tells = leads & (sounds | (voice == self._first[header]))  # the first of a frame, or a note
        stops = np.where(leads & self._is_empty[ids], frame, NEVER)
        return self.arrangements.times(header, index, ids == self.eos), {
            "sounding": latest(state.sounding, tells, sounds),
            "header": header,
            "end": np.minimum(state.end, np.minimum.accumulate(stops)),
        }


class KeptTokens(Constraint):
    """The tokens are those of a piece, except where the model writes.

    Args:
        conditioning: ids of each sequence by index, so without its key, FREE where the model
            writes; later tokens are free. [L]
    """

    def __init__(self, grammar: Grammar[Any], conditioning: Sequence[IntArray]) -> None:
        self.conditioning = padded(conditioning, FREE)
        self._tokens = np.arange(len(grammar.vocabulary))

    def allowed(self, state: GrammarState, memory: IntArray) -> BoolArray:
        at = np.minimum(state.positions[:, 0] + 1, self.conditioning.shape[1] - 1)
        token = self.conditioning[memory, at][:, None]
        return (token == FREE) | (self._tokens == token)


class NoParallels(Constraint):
    """No two voices move in parallel fifths or octaves.

    They are those that `metrics.part_writing` counts. The other voice is one that is known already,
    in this frame or, if it leads, in an earlier one.

    The memory is the pitch of each of the last tokens, from the lowest; `SILENT` without one.
    [B, RECENT]
    """

    def __init__(self, grammar: ChoraleGrammar) -> None:
        self.grammar = grammar

    def start(self, state: ChoraleState, prompts: Sequence[IntArray]) -> IntArray:
        return self.grammar.recent_pitches(prompts, RECENT)

    def advance(self, state: ChoraleState, memory: IntArray, tokens: IntArray) -> IntArray:
        return np.concatenate([memory[:, 1:], self.grammar.pitch[tokens][:, None]], axis=1)

    def allowed(self, state: ChoraleState, memory: IntArray) -> BoolArray:
        may_sing = ~self._parallels(state, memory)
        mask = np.ones((len(may_sing), len(self.grammar.vocabulary)), bool)
        mask[:, self.grammar.slices["Pitch"]] = may_sing
        ahead = self.grammar.slices["Ahead"]
        mask[:, ahead] = may_sing[:, : ahead.stop - ahead.start]
        return mask

    def _parallels(self, state: ChoraleState, recent: IntArray) -> BoolArray:
        """Return which pitches of the next token would make a parallel. [B, num_pitches]"""
        arrangements = self.grammar.arrangements
        voice = state.positions[:, 0] % NUM_VOICES  # of the next token: the header has index 0
        sequences, mine = np.arange(len(voice)), recent[:, -NUM_VOICES]
        delay = arrangements.delay[state.header][:, None]
        behind = ~arrangements.leading[state.header] * delay  # frames, of each voice [B, 4]
        found = np.zeros((len(voice), self.grammar.num_pitches), bool)
        for other in range(NUM_VOICES):
            frames = behind[sequences, voice] - behind[:, other]
            back = NUM_VOICES * frames + voice - other  # tokens from the other voice to this one
            is_known = back > 0
            back = np.maximum(back, 1)
            now, before = recent[sequences, -back], recent[sequences, -back - NUM_VOICES]
            is_parallel = _in_parallel((mine, before), now, self.grammar.num_pitches)
            found |= is_known[:, None] & is_parallel
        return found


class LastChordOfChorale(Constraint):
    """From a frame on all voices sing a tonic chord and hold it, the bass its root.

    Its third is major in minor keys, too, as in 94 of Bach's 101 (Picardy), unless a kept voice
    sings the minor one. The last voice above the bass sings it if no other does. Before the chord
    they may sing the dominant seventh, its root in the bass. The soprano steps to the tonic if it
    can, and to a note before it from which it can if that is a third away at most. No voice leaps
    by more than an octave, or moves in parallel with the bass after it, if it need not. The root in
    the bass is at most C4.

    The memory is the number of the prompt, the semitones of the third, 0 before it is sung, and the
    pitches of the last four tokens. [B, 6]

    Args:
        rests: frame and key of each chord. [B]
        pitches: the MIDI pitches of the vocabulary.
        dominants: frame of each dominant seventh, that of the tonic chord if there is none. [B]
    """

    def __init__(
        self,
        grammar: ChoraleGrammar,
        rests: Sequence[LastTonic],
        pitches: range,
        dominants: Sequence[int],
    ) -> None:
        self.grammar = grammar
        self.first = np.array([(at, rest.step) for at, rest in zip(dominants, rests, strict=True)])
        self.degrees = np.zeros((len(rests), len(pitches)), np.int64)  # semitones above the tonic
        # Before both chords, in the dominant seventh, and in the tonic chord.
        self.chord = np.ones((len(rests), 3, NUM_VOICES, len(pitches)), bool)
        for rest, degrees, chords in zip(rests, self.degrees, self.chord, strict=True):
            if rest.key is not None:
                degrees[:] = (np.array(pitches) - rest.key.tonic) % 12
                for chord, tones in zip(chords[1:], (SEVENTH, (0, *THIRDS, 7)), strict=True):
                    chord[:] = np.isin(degrees, tones)
                    chord[-1] = (degrees == tones[0]) & (np.array(pitches) <= MIDDLE)
        # The last voice above the bass, by header: those that do not lead come later.
        leads = grammar.arrangements.leading[:, :-1]
        last = np.where(leads.all(axis=1, keepdims=True), leads, ~leads)
        self.last_voice = last.shape[1] - 1 - last[:, ::-1].argmax(axis=1)

    def start(self, state: ChoraleState, prompts: Sequence[IntArray]) -> IntArray:
        begin = np.stack([np.arange(len(prompts)), np.zeros(len(prompts), np.int64)], axis=1)
        return np.concatenate([begin, self.grammar.recent_pitches(prompts, NUM_VOICES)], axis=1)

    def _place(self, state: ChoraleState, prompt: IntArray, index: IntArray) -> list[IntArray]:
        """Return chord and voice of the tokens at an index; the header has index 0. [B] each

        Chords are 0 before both, 1 in the dominant seventh, and 2 in the tonic chord.
        """
        frame, voice = np.divmod(index - 1, NUM_VOICES)
        arrangements, header = self.grammar.arrangements, state.header
        is_behind = ~arrangements.leading[header, voice]
        frame = frame - is_behind * arrangements.delay[header]
        return [(frame[:, None] >= self.first[prompt]).sum(axis=1), voice]

    def advance(self, state: ChoraleState, memory: IntArray, tokens: IntArray) -> IntArray:
        prompt, third = memory[:, :2].T
        pitch = self.grammar.pitch[tokens]
        degree = self.degrees[prompt, pitch]
        is_last = self._place(state, prompt, state.positions[:, 0])[0] == 2
        sings_third = is_last & (pitch >= 0) & np.isin(degree, THIRDS)
        third = np.where(sings_third, degree, third)
        return np.concatenate([np.stack([prompt, third], 1), memory[:, 3:], pitch[:, None]], axis=1)

    def allowed(self, state: ChoraleState, memory: IntArray) -> BoolArray:
        prompt, third, before = memory[:, :3].T
        index = state.positions[:, 0] + 1
        chord, voice = self._place(state, prompt, index)
        chord_before = self._place(state, prompt, index - NUM_VOICES)[0]
        holds, begins = (chord_before == 2)[:, None], chord > chord_before
        leap = np.abs(np.arange(self.grammar.num_pitches) - before[:, None])
        leap = np.where(before[:, None] < 0, OCTAVE, leap)  # a voice begins
        degrees, is_last = self.degrees[prompt], (chord == 2)[:, None]
        asked = np.where(third == 0, THIRDS[1], third)[:, None]
        is_other = is_last & np.isin(degrees, THIRDS) & (degrees != asked)
        lacks_third = is_last & ((third == 0) & (voice == self.last_voice[state.header]))[:, None]
        is_other |= lacks_third & (degrees != asked)
        mask = np.ones((len(prompt), len(self.grammar.vocabulary)), bool)
        may_sing = self.chord[prompt, chord, voice] & ~is_other & (~holds | (leap == 0))
        to_tonic = np.isin(degrees, BY_STEP) & (leap <= THIRDS[0]) & (chord == 1)[:, None]
        to_tonic |= (degrees == 0) & (leap <= WHOLE_TONE) & is_last
        to_tonic &= ((voice == 0) & begins)[:, None]
        parallel = self._parallel_to_bass(state, memory, chord, voice) & begins[:, None]
        near = (leap <= OCTAVE) | (chord == 0)[:, None]
        may_sing = narrowed_where_possible(may_sing, [to_tonic, ~parallel, near])
        mask[:, self.grammar.slices["Pitch"]] = may_sing
        mask[:, self.grammar.slices["Silence"]] = (chord == 0)[:, None]
        return mask

    def _parallel_to_bass(
        self, state: ChoraleState, memory: IntArray, chord: IntArray, voice: IntArray
    ) -> BoolArray:
        """Return pitches in parallel with the bass that goes to the root, which comes later."""
        leads = self.grammar.arrangements.leading[state.header]
        sequences, prompt, before = np.arange(len(memory)), memory[:, 0], memory[:, 2]
        is_with_bass = (voice < _BASS) & (leads[sequences, voice] == leads[:, _BASS])
        bass = memory[sequences, 2 + _BASS - voice]  # in the frame before
        root = np.where(chord == 1, SEVENTH[0], 0)
        to_root = bass - (self.degrees[prompt, bass] - root) % 12
        is_parallel = _in_parallel((before, bass), to_root, self.grammar.num_pitches)
        return is_with_bass[:, None] & is_parallel


def _in_parallel(before: tuple[IntArray, IntArray], other: IntArray, num_pitches: int) -> BoolArray:
    """Return which pitches move in parallel fifths or octaves with another voice. [B, num_pitches]

    Args:
        before: the pitches of this and of the other voice. [B] each
        other: the pitch to which the other voice goes. [B]
    """
    pairs = np.stack(np.broadcast_arrays(np.arange(num_pitches), other[:, None]), axis=-1)
    intervals = parallel_intervals(np.stack(before, axis=-1)[:, None], pairs)
    return np.isin(intervals, (UNISON, FIFTH))
