"""How tokens are drawn: the parameters, and the draw itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.errors import ParameterError
from musicgen.generation.logits_processors import (
    MinP,
    Processor,
    Temperature,
    TopK,
    TopP,
    TopPOfOthers,
    TypicalP,
    greedy,
)
from musicgen.validation import check_bool, check_float, check_int


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. The filters apply one after another, in the order of the attributes.

    Attributes:
        temperature: divides the logits; with a copy head, only the logits of the model's own
            distribution. 0: always take the most probable token.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the most probable tokens that together reach this probability (nucleus
            sampling, Holtzman et al. 2020); 1 keeps all.
        variation: how often another token than the most probable one comes, as a share of its
            probability: 1 is as often as the model expects. `top_p` then applies to the other
            tokens alone, see `TopPOfOthers`. None: `top_p` applies to all tokens, and music repeats
            itself more often than the model expects. It is not used with kept parts, which prevent
            such repetition.
        min_p: keep the tokens at least this many times as probable as the most probable one
            (Nguyen et al. 2024); 0 keeps all.
        typical_p: keep the tokens whose surprise -log p is nearest to the entropy, until they
            together reach this probability (locally typical sampling, Meister et al. 2023);
            1 keeps all. The most probable token may be left out.
        max_notes: how many notes of an instrument may sound at once, for tokenizers of several
            instruments: one number, or one for each; None or False: any number.
        avoid_parallels: no two voices move in parallel fifths or octaves; for tokenizers of voices.
        guidance: the scale of classifier-free guidance (Ho & Salimans 2022) by kept parts: logits l
            become m + guidance (l - m), where m are those of the same model after the negative
            prompt, in which the kept parts of the new bars are a tritone higher or lower. 1: none;
            other scales take up to twice the time.
        lag_bias: for models with a copy head: nats added to the log-probability of copies at the
            lags 0, 1, … bars; later lags have 0. None: see `form.lag_bias`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    variation: float | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    max_notes: int | Sequence[int] | bool | None = None
    avoid_parallels: bool = False
    guidance: float = 1.0
    lag_bias: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature)
        check_int("top_k", self.top_k, none_means="all tokens")
        check_float("top_p", self.top_p, above=0, maximum=1)
        check_float("variation", self.variation, maximum=1, none_means="top_p of all tokens")
        check_float("min_p", self.min_p, maximum=1)
        check_float("typical_p", self.typical_p, above=0, maximum=1)
        if isinstance(self.max_notes, Sequence):
            for number in self.max_notes:
                check_int("max_notes", number)
        elif self.max_notes is not False:
            check_int("max_notes", self.max_notes, none_means="any number")
        check_bool("avoid_parallels", self.avoid_parallels)
        check_float("guidance", self.guidance)
        if self.lag_bias is not None and not isinstance(self.lag_bias, Sequence):
            raise ParameterError("lag_bias", self.lag_bias, "expected a list of numbers, or None")
        for nats in self.lag_bias or ():
            check_float("lag_bias", nats, minimum=-1000)

    def processors(self) -> list[Processor]:
        """Return the logits processors of these parameters, in the order in which they apply."""
        if self.temperature == 0:
            return [greedy]
        processors: list[Processor] = []
        if self.temperature != 1:
            processors.append(Temperature(self.temperature))
        if self.top_k is not None:
            processors.append(TopK(self.top_k))
        if self.variation is not None:
            processors.append(TopPOfOthers(self.top_p, self.variation))
        elif self.top_p < 1:
            processors.append(TopP(self.top_p))
        if self.min_p > 0:
            processors.append(MinP(self.min_p))
        if self.typical_p < 1:
            processors.append(TypicalP(self.typical_p))
        return processors


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw a token of each sequence: [B, V] -> [B].

    Args:
        logits: in fp64, −∞ for tokens that may not come; at least one of each sequence may.
        uniform: fp64 in [0, 1); a token is a function of its logits and this number alone. [B]
    """
    cumulative = logits.softmax(-1).cumsum(-1)
    # Scale by the rounded sum, so that the draw cannot pass the last possible token. Tokens of
    # probability 0 are never drawn, as their cumulative sum equals the one before.
    threshold = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0]
