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

_RECENT = NUM_VOICES * (LEAD + 2)  # tokens from which parallels are seen
_UNISON, _FIFTH = 0, 7


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
    recent: IntArray  # pitches of the last tokens, counted from the lowest; -1: none [B, _RECENT]


class ChoraleGrammar(Grammar[ChoraleState]):
    """A header, frames of four voices, and EOS.

    After BOS all frames have four voices, and EOS may follow a frame in which a voice sounds, or
    BOS. The other headers say which voices of which frames are empty, and where EOS stands, see
    `Arrangements`; there the leading voices end with a frame in which one of them sounds.

    Args:
        limit: maximum number of frames.
    """

    def __init__(self, vocabulary: Vocabulary, families: Mapping[str, range], limit: int) -> None:
        super().__init__(vocabulary, families)
        self.limit = limit
        self.may_be_parallel = True
        self.arrangements = Arrangements(len(vocabulary), families)
        # The first and the last of the leading voices, by header.
        leading = self.arrangements.leading
        self._first = leading.argmax(axis=1)
        self._last = NUM_VOICES - 1 - leading[:, ::-1].argmax(axis=1)
        self._pitches = np.arange(len(families["Pitch"]))
        self._pitch = np.full(len(vocabulary), -1)  # of each token, counted from the lowest
        for name in ("Pitch", "Ahead"):
            self._pitch[self._slices[name]] = self._pitches[: len(families[name])]
        self._is_empty, self._is_header = self._of("Empty"), self._of("BOS", "Lead")

    def _initial_state(self, num_rows: int) -> ChoraleState:
        return ChoraleState(
            **self._initial_fields(num_rows),
            sounding=np.zeros(num_rows, bool),
            header=np.full(num_rows, self.pad),
            end=np.full(num_rows, NEVER),
            recent=np.full((num_rows, _RECENT), -1),
        )

    def forbid_parallels(self) -> None:
        self.may_be_parallel = False

    def _allowed(self, state: ChoraleState) -> BoolArray:
        # The next token's frame and voice; the header has index 0.
        index, header, sounding = state.positions[:, 0], state.header, state.sounding
        frame, voice = index // NUM_VOICES, index % NUM_VOICES
        begun, plain = index >= 0, header == self._slices["BOS"].start
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
        may_sing = np.ones((len(index), len(self._pitches)), bool)
        if not self.may_be_parallel:
            may_sing = ~self._parallels(state.recent, header, voice)
        mask = np.zeros((len(index), len(self.vocabulary)), bool)
        mask[:, self._slices["Pitch"]] = may_sing & (sings & ~ahead)[:, None]
        mask[:, self._slices["Silence"]] = (sings & (~last_chance | sounding))[:, None]
        mask[:, self._slices["EOS"]] = (begun & may_end)[:, None]
        mask[:, self._is_header] = ~begun[:, None]
        if self._is_empty.any():  # voices may lead
            mask[:, self._slices["Empty"]] = (begun & ~over & (must_wait | stops))[:, None]
            mask[:, self._slices["Ahead"]] = may_sing & ahead[:, None]
        return mask

    def _parallels(self, recent: IntArray, header: IntArray, voice: IntArray) -> BoolArray:
        """Return which pitches of the next token would make parallel fifths or octaves. [B, P].

        Two voices move together, and are a perfect fifth (an octave or unison) apart before and
        after, give or take octaves: as `metrics.part_writing` counts them. The other voice is one
        that is known already, in this frame or, leading, in one before.
        """
        rows, pitches, mine = np.arange(len(voice)), self._pitches, recent[:, -NUM_VOICES]
        orders = self.arrangements
        behind = ~orders.leading[header] * orders.delay[header][:, None]  # [B, 4]
        found = np.zeros((len(voice), len(pitches)), bool)
        for other in range(NUM_VOICES):
            back = NUM_VOICES * (behind[rows, voice] - behind[:, other]) + voice - other
            known = back > 0
            back = np.maximum(back, 1)
            now, before = recent[rows, -back], recent[rows, -back - NUM_VOICES]
            interval = np.abs(mine - before) % 12
            moves = known & (now != before) & (np.minimum(np.minimum(now, before), mine) >= 0)
            perfect = moves & ((interval == _UNISON) | (interval == _FIFTH))
            same = np.abs(pitches - now[:, None]) % 12 == interval[:, None]
            found |= perfect[:, None] & same & (pitches != mine[:, None])
        return found

    def _time_tokens(self, state: ChoraleState, until: IntArray) -> BoolArray:
        """Return silence before `until`, and every token where the next one is at `until`."""
        return self._of("Silence") | (state.positions[:, 0] // NUM_VOICES >= until)[:, None]

    def _advance(self, state: ChoraleState, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        index = state.positions[:, 0] + (ids != self.pad).cumsum(axis=0)
        header = latest(state.header, self._is_header[ids], ids)
        frame, voice = np.divmod(index - 1, NUM_VOICES)
        leads = self.arrangements.leading[header, voice] & (index > 0)
        pitch = self._pitch[ids]
        sounds = pitch >= 0
        tells = leads & (sounds | (voice == self._first[header]))  # the first of a frame, or a note
        stops = np.where(leads & self._is_empty[ids], frame, NEVER)
        recent = np.concatenate([state.recent.T, pitch])
        window = np.arange(1, len(ids) + 1)[:, None] + np.arange(_RECENT)
        return self.arrangements.times(header, index, ids == self.eos), {
            "sounding": latest(state.sounding, tells, sounds),
            "header": header,
            "end": np.minimum(state.end, np.minimum.accumulate(stops)),
            "recent": recent[window].swapaxes(1, 2),
        }
