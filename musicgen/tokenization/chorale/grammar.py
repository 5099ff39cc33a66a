"""The grammar of Chorale as batched masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from musicgen.tokenization.chorale.frames import NUM_VOICES
from musicgen.tokenization.grammar import NEVER, BoolArray, Grammar, GrammarState, latest
from musicgen.tokenization.vocabulary import IntArray, Vocabulary

LEAD = 16

LEADING = [
    [bool(number >> voice & 1) for voice in range(NUM_VOICES)]
    for number in range(1, 2**NUM_VOICES - 1)
]
"""The sets of voices that may lead, in the order of their tokens; the first is the soprano."""


class Arrangements:
    """What the first token of a sequence says of its order, by the token's id.

    All orders keep a token for each voice of each frame:

    - `BOS`: four voices of one frame after another.
    - `Lead_*`, the names of one to three voices: those are `LEAD` frames ahead of the others, which
      therefore begin, as they end, with `Empty` tokens. Their pitches are `Ahead_*`, so that each
      tells by itself what it is. The piece ends with the leading voices.

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
    """A header, frames of four voices, and EOS.

    After BOS all frames have four voices, and EOS may follow a frame in which a voice sounds, or
    BOS. The other headers say which voices of which frames are empty, and where EOS stands, see
    `Arrangements`; there the leading voices end with a frame in which one of them sounds.

    Args:
        limit: maximum number of frames.
    """

    holds_last_chord = True

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range], limit: int) -> None:
        super().__init__(vocabulary, families)
        self.limit = limit
        self.arrangements = Arrangements(len(vocabulary), families)
        # The first and the last of the leading voices, by header.
        leading = self.arrangements.leading
        self._first = leading.argmax(axis=1)
        self._last = NUM_VOICES - 1 - leading[:, ::-1].argmax(axis=1)
        self.num_pitches = len(families["Pitch"])
        self.pitch = np.full(len(vocabulary), -1)  # of each token, from the lowest; -1: none [V]
        for name in ("Pitch", "Ahead"):
            self.pitch[self.slices[name]] = np.arange(len(families[name]))
        self._is_empty, self._is_header = self.of_families("Empty"), self.of_families("BOS", "Lead")

    def _initial_state(self, batch: int) -> ChoraleState:
        return ChoraleState(
            **self._initial_fields(batch),
            sounding=np.zeros(batch, bool),
            header=np.full(batch, self.pad),
            end=np.full(batch, NEVER),
        )

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
        return mask

    def time_tokens(self, state: ChoraleState, until: IntArray) -> BoolArray:
        """Return silence before `until`, and every token where the next one is at `until`."""
        return self.of_families("Silence") | (state.positions[:, 0] // NUM_VOICES >= until)[:, None]

    def _advance(self, state: ChoraleState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        index = state.positions[:, 0] + (ids != self.pad).cumsum(axis=0)
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
