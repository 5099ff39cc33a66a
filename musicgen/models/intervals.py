"""Intervals to earlier notes: what a model sees of them, and what it prefers for the next note."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from musicgen.validation import check_int

MAX_INTERVAL = 36
"""In semitones; larger ones count as this."""

NO_PITCH = -1
"""In place of the pitch of tokens without one."""


class Intervals(nn.Module):
    """Relate tokens to the pitches at fixed distances before them, the same way in every key.

    To a token's embedding it adds a learned vector of the interval from the pitch of the token
    `lag` tokens earlier, for each lag. To each possible next token's logit it adds a linear
    function of the model's output, by the interval that this token would make with the pitch `lag`
    tokens before it: a product of an expert for absolute pitches, the head, and of one for
    intervals (Johnson, Keller and Weintraut 2017, "Learning to create jazz melodies using a product
    of experts"). What is learned in one key thus holds in all.

    Args:
        lags: in tokens.
        pitches: MIDI pitch of each token of the vocabulary, `NO_PITCH` for those without. [V]
        dim: model width D.
    """

    distances: Tensor
    rows: Tensor
    pitch_of: Tensor
    candidates: Tensor
    candidate_of: Tensor

    def __init__(self, lags: Sequence[int], pitches: Sequence[int], dim: int) -> None:
        super().__init__()
        for lag in lags:
            check_int("intervals", lag)
        self.lags, self.pitches = tuple(lags), tuple(pitches)
        self.num_lags, self.num_intervals = len(lags), 2 * MAX_INTERVAL + 2  # the last one: none
        self.vectors = nn.Embedding(self.num_lags * self.num_intervals, dim)
        self.head = nn.Linear(dim, self.num_lags * self.num_intervals, bias=False)
        candidates = sorted(set(pitches))
        tables = {
            "distances": lags,
            "rows": range(0, self.num_lags * self.num_intervals, self.num_intervals),
            "pitch_of": [NO_PITCH, *pitches],  # by id plus one
            "candidates": candidates,
            "candidate_of": [candidates.index(pitch) for pitch in pitches],
        }
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor([*values]), persistent=False)

    def forward(self, seen: Tensor, length: int) -> Tensor:
        """Return what is added to the embeddings of the last L tokens: [B, L, D].

        Args:
            seen: the result of `with_recent`.
        """
        now = self.pitch_of[seen[:, -length:, None]]
        return self.vectors(self.rows + self._intervals(self._before(seen, length), now)).sum(2)

    def logits(self, x: Tensor, seen: Tensor) -> Tensor:
        """Return what is added to the logits of the tokens after the last N ones: [B, N, V].

        Args:
            x: the model's output [B, N, D].
            seen: the result of `with_recent`.
        """
        before = self._before(seen, x.shape[1], ahead=1)
        scores = self.head(x).unflatten(-1, (self.num_lags, self.num_intervals))
        intervals = self._intervals(before[..., None], self.candidates)
        return scores.gather(3, intervals).sum(2)[:, :, self.candidate_of]

    def _before(self, seen: Tensor, length: int, ahead: int = 0) -> Tensor:
        """Return the pitches at each lag before the last tokens, or before those after them."""
        size = seen.shape[1]
        tokens = torch.arange(size - length + ahead, size + ahead, device=seen.device)
        return self.pitch_of[seen[:, tokens[:, None] - self.distances]]

    def _intervals(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the numbers of the intervals between pitches, which are broadcast."""
        numbers = (after - before).clamp(-MAX_INTERVAL, MAX_INTERVAL) + MAX_INTERVAL
        known = (before != NO_PITCH) & (after != NO_PITCH)
        return numbers.where(known, self.num_intervals - 1)
