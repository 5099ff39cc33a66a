"""How tokens are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from musicgen.errors import ParameterError
from musicgen.generation import logits_processors
from musicgen.generation.logits_processors import Processor
from musicgen.validation import check_bool, check_float, check_int

SWITCHES = ("top_k", "variation", "max_notes")
"""Sampling parameters that None and False switch off."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. The filters apply one after another, in the order of the attributes.

    False is the same as None in `top_k`, `variation` and `max_notes`.

    Attributes:
        temperature: divides the logits; with a copy head, only the logits of the model's own
            distribution. 0: always take the most probable token.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the most probable tokens that together reach this probability (nucleus
            sampling, Holtzman et al. 2020); 1 keeps all.
        variation: scale of the probability of all tokens but the most probable: with 1 they come
            as often as the model expects, also if `top_k` and `min_p` leave few of them; if they
            leave none, or with `typical_p`, this does not hold. `top_p` then applies to these
            tokens alone, see `top_p_of_others`. None: `top_p` applies to all tokens, and music
            repeats itself more often than the model expects. Ignored with kept parts, which prevent
            such repetition.
        min_p: keep the tokens at least this many times as probable as the most probable one
            (Nguyen et al. 2024); 0 keeps all.
        typical_p: keep the tokens whose surprise -log p is nearest to the entropy, until they
            together reach this probability (locally typical sampling, Meister et al. 2023);
            1 keeps all. The most probable token may be left out.
        max_notes: how many notes of an instrument may sound at once, for tokenizers of several
            instruments: one number, or one per instrument; None: any number.
        avoid_parallels: no two voices move in parallel fifths or octaves; for tokenizers of voices.
        guidance: the scale of classifier-free guidance (Ho & Salimans 2022) by kept parts, or by
            the named key of a new piece: logits l become m + guidance (l - m). The logits m follow
            the negative prompt, in which the kept parts of the new bars are a tritone higher or
            lower, or the key is the relative one. 1: no guidance; other scales take up to twice the
            time.
        lag_bias: for models with a copy head: nats added to the log-probability of copies at the
            lags 0, 1, … bars; later lags have 0. None: see `decoder.lag_bias`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    variation: float | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    max_notes: int | Sequence[int] | None = None
    avoid_parallels: bool = False
    guidance: float = 1.0
    lag_bias: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in SWITCHES:
            if getattr(self, name) is False:
                object.__setattr__(self, name, None)
        check_float("temperature", self.temperature)
        check_int("top_k", self.top_k, none_means="all tokens")
        check_float("top_p", self.top_p, above=0, maximum=1)
        check_float("variation", self.variation, maximum=1, none_means="top_p of all tokens")
        check_float("min_p", self.min_p, maximum=1)
        check_float("typical_p", self.typical_p, above=0, maximum=1)
        if isinstance(self.max_notes, Sequence):
            for number in self.max_notes:
                check_int("max_notes", number)
        else:
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
            return [logits_processors.greedy]
        processors: list[Processor] = []
        if self.temperature != 1:
            processors.append(partial(logits_processors.temperature, temperature=self.temperature))
        if self.variation is not None:
            others: dict[str, Any] = {"variation": self.variation, "top_k": self.top_k}
            others |= {"p": self.top_p, "min_p": self.min_p}
            processors.append(partial(logits_processors.top_p_of_others, **others))
        else:
            processors += self._filters()
        if self.typical_p < 1:
            processors.append(partial(logits_processors.typical_p, p=self.typical_p))
        return processors

    def _filters(self) -> list[Processor]:
        """Return the filters that apply to all tokens alike."""
        filters: list[Processor] = []
        if self.top_k is not None:
            filters.append(partial(logits_processors.top_k, k=self.top_k))
        if self.top_p < 1:
            filters.append(partial(logits_processors.top_p, p=self.top_p))
        if self.min_p > 0:
            filters.append(partial(logits_processors.min_p, p=self.min_p))
        return filters
