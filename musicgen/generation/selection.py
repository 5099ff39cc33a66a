"""Best of n: the choice among candidates for one continuation, or for its last bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from musicgen.generation.prompts import Prompt
from musicgen.metrics.key import Key, find_scale, in_scale_share, pitch_classes
from musicgen.midi import Score, pitched_notes
from musicgen.tokenization.vocabulary import IntArray


@dataclass(frozen=True)
class Candidate:
    """A candidate for a continuation, or for the next part of one, and its measures.

    Attributes:
        tokens: [L] ids, those of the prompt and of the parts before included.
        log_likelihood: mean log-probability of the new tokens under the model alone, in nats;
            NaN without new tokens. Without copies, if the model has a copy head.
        in_scale: share of the new notes in the major scale, or its relative minor, that fits the
            prompt; without notes there, that fits the parts before or, without any, its own notes.
            NaN without notes; drums do not count.
    """

    tokens: IntArray
    log_likelihood: float
    in_scale: float


def measure(
    prompt: Prompt,
    tokens: IntArray,
    score: Score,
    start_tick: int,
    log_probs: Sequence[float],
) -> Candidate:
    """Return a candidate.

    Args:
        score: the music of `tokens`, of which the candidate begins at `start_tick`.
        log_probs: log-probabilities of its tokens.
    """
    new = score.clip(start_tick, score.end + 1)
    known = [prompt.score, score.clip(0, start_tick), new]
    scale = find_scale(next((music for music in known if pitch_classes(music).any()), new))
    log_likelihood = float(np.mean(log_probs)) if len(log_probs) else np.nan
    return Candidate(tokens, log_likelihood, in_scale_share(new, scale))


def restfulness(bar: Score, key: Key, length: int) -> float:
    """Return how much a last bar rests on the tonic, from 0 to 1.

    The mean of three numbers: the share of its sounding time that belongs to the tonic triad,
    whether its lowest note is the root, and the part of it in which no more note begins. 0 without
    pitched notes.

    Args:
        length: ticks of the bar.
    """
    notes = pitched_notes(bar)
    if not len(notes):
        return 0.0
    in_triad = np.isin(notes["pitch"] % 12, key.triad)
    share = notes["duration"][in_triad].sum() / notes["duration"].sum()
    on_root = notes["pitch"].min() % 12 == key.tonic
    return float(share + on_root + 1 - notes["onset"].max() / length) / 3


def ends_on(bar: Score, key: Key) -> bool:
    """Return whether the lowest of the notes that sound last is the tonic."""
    notes = pitched_notes(bar)
    ends = notes["onset"] + notes["duration"]
    last = notes["pitch"][ends == ends.max(initial=0)]
    return bool(len(last)) and int(last.min()) % 12 == key.tonic


@dataclass(frozen=True)
class Selection:
    """Candidates for the same part; likelihood and key decide which is chosen, see `best`."""

    candidates: Sequence[Candidate]

    @property
    def chosen(self) -> int:
        """Number of the best candidate."""
        return best([(c.log_likelihood, c.in_scale) for c in self.candidates])

    @property
    def tokens(self) -> IntArray:
        """[L] ids of the best candidate."""
        return self.candidates[self.chosen].tokens


def best(measures: Sequence[Sequence[float]]) -> int:
    """Return the number of the best candidate by several measures [N, M], higher being better.

    All count alike: each is standardised over the candidates (less the mean, over the standard
    deviation) and they are added. A measure that is equal for all does not count. A candidate with
    more undefined measures (NaN) than another is not chosen: one without notes, among others with
    notes, has no share in the scale. Of equals the first is the best.
    """
    values = np.array(measures)
    num_undefined = np.isnan(values).sum(1)
    numbers = np.flatnonzero(num_undefined == num_undefined.min())
    values = values[numbers]
    differences = values - values.mean(0)
    deviations = np.sqrt((differences**2).mean(0))
    counts = deviations > 1e-9  # differences by rounding are none; False for NaN
    scores = (differences[:, counts] / deviations[counts]).sum(1)
    return int(numbers[np.argmax(np.round(scores, 9))])
