"""Chorale: four voices in sixteenths, one token a voice, as models of Bach's chorales read them."""

from collections.abc import Sequence
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from musicgen.midi import Score, Track
from musicgen.midi.key import final_key
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.constraints import (
    KeptTokens,
    LastChordOfChorale,
    NoParallels,
)
from musicgen.tokenization.chorale.frames import (
    NUM_VOICES,
    SILENCE,
    STEPS_PER_BEAT,
    VOICES,
    find_voice,
    frames_of_score,
    score_of_frames,
)
from musicgen.tokenization.chorale.grammar import LEADING, ChoraleGrammar
from musicgen.tokenization.chorale.part_order import ChoralePartOrder
from musicgen.tokenization.constraints import ROOT, TRIAD, Constraint, tonic_pitches
from musicgen.tokenization.crops import Crops
from musicgen.tokenization.quantization_report import QuantizationReport
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.validation import check_float, check_int


class Chorale(Tokenizer):
    """`BOS`, then soprano, alto, tenor and bass of each sixteenth, `EOS`.

    The layout of Huang et al. 2019 ("Music Transformer", §4.1): a piece of T sixteenths has 4 T
    tokens of voices, each a pitch or `Silence`; which voice a token belongs to and where it stands
    in the beat follow from its index alone. A note that goes on and one that is struck again are
    the same tokens, which decode to one long note. Velocity, tempo and time signature are not
    encoded.

    Tracks named `Soprano`, `Alto`, `Tenor` and `Bass`, or up to four tracks without chords, are
    voices. The notes of other Scores are divided among four voices (`lead_voices`).

    Pieces are encoded in the order above. Training crops may be in others, see `Arrangements`, from
    which a model learns to harmonise a voice; their tokens are in the vocabulary if
    `lead_probability` is positive.

    Args:
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_transposition: training crops are shifted by up to this many semitones.
        lead_probability: share of the crops in which voices are ahead of the others: in half of
            them the soprano, in the others any of one to three voices.
    """

    name: ClassVar[str] = "chorale"
    note_families = ("Pitch", "Silence")  # one for each voice and frame, as in the literature
    steps_per_beat = STEPS_PER_BEAT
    pitches = range(21, 109)

    def __init__(
        self, *, max_beats: int = 16384, max_transposition: int = 6, lead_probability: float = 0
    ) -> None:
        check_int("max_beats", max_beats)
        check_int("max_transposition", max_transposition, 0)
        check_float("lead_probability", lead_probability, maximum=1)
        self.max_beats, self.max_transposition = max_beats, max_transposition
        self.lead_probability = lead_probability
        families = {
            "Pitch": [f"Pitch_{pitch}" for pitch in self.pitches],
            "Silence": ["Silence"],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
            "Empty": [],
            "Ahead": [],
            "Lead": [],
        }
        if lead_probability > 0:
            families["Empty"] = ["Empty"]
            families["Ahead"] = [f"Ahead_{pitch}" for pitch in self.pitches]
            families["Lead"] = ["Lead_" + "+".join(compress(VOICES, each)) for each in LEADING]
        self.vocabulary, self.families = number_tokens(families)

    @cached_property
    def crops(self) -> Crops:
        return _ChoraleCrops(self.families)

    @cached_property
    def part_order(self) -> ChoralePartOrder:
        return ChoralePartOrder(self, self.lead_probability)

    def grammar(self) -> ChoraleGrammar:
        return ChoraleGrammar(self.vocabulary, self.families, self.max_beats * self.steps_per_beat)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        constraints: list[Constraint] = []
        if request.ends_on_tonic:
            start = [request.end_time(prompt) - self.steps_per_beat for prompt in prompts]
            keys = [final_key(prompt.score) for prompt in prompts]
            chord, bass = (tonic_pitches(keys, self.pitches, each) for each in (TRIAD, ROOT))
            of_voices = np.stack([*(NUM_VOICES - 1) * [chord], bass], axis=1)
            constraints.append(LastChordOfChorale(grammar, np.array(start), of_voices))
        if request.piece.is_whole_piece:
            conditioning = [prompt.kept.conditioning.ids for prompt in prompts]
            constraints.append(KeptTokens(grammar, conditioning))
        if request.sampling.avoid_parallels:
            constraints.append(NoParallels(grammar))
        return constraints

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else find_voice(track.name)

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        report = QuantizationReport(score, STEPS_PER_BEAT)
        frames = frames_of_score(report, self.pitches, self.max_beats).ravel()
        pitches = frames - self.pitches.start + self.families["Pitch"].start
        tokens = np.where(frames == SILENCE, self.vocabulary.id("Silence"), pitches)
        bos, eos = self.vocabulary.id("BOS"), self.vocabulary.id("EOS")
        return np.concatenate([[bos], tokens, [eos]]), report

    def decode(self, tokens: IntArray) -> Score:
        """Return a track for each voice, also without notes; no tempo; constant velocity.

        A frame with fewer than four voices, at the end, is left out.
        """
        frames = self.part_order.frames(tokens)
        is_pitch = within(frames, self.families["Pitch"])
        pitches = frames - self.families["Pitch"].start + self.pitches.start
        return score_of_frames(np.where(is_pitch, pitches, SILENCE))

    def times(self, tokens: IntArray) -> IntArray:
        """Return the frame (sixteenth) of each id; EOS has the first after all. [L] -> [L]."""
        tokens = np.asarray(tokens)
        if not len(tokens):
            return np.empty(0, np.int64)
        index = np.cumsum(tokens != self.vocabulary.pad_id) - 1
        header, is_end = np.full_like(index, tokens[0]), tokens == self.vocabulary.id("EOS")
        return self.part_order.arrangements.times(header, index, is_end)


class _ChoraleCrops(Crops):
    """Crops of frames: BOS stands in the place of the token before the bar."""

    def __init__(self, families: dict[str, range]) -> None:
        self.families = families

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        num_tokens = sum(within(tokens, self.families[name]).sum() for name in ("Pitch", "Silence"))
        num_frames = -(-int(num_tokens) // NUM_VOICES)  # rounded up
        starts = np.arange(0, num_frames, bar_length)
        return np.stack([NUM_VOICES * starts, -starts], axis=1)

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        window = super().crop(tokens, starts, length)
        if len(starts):
            window[0] = self.families["BOS"].start
        return window
