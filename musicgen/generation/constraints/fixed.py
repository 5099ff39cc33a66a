"""The tempo and the time signature of the prompt, which stay."""

from typing import Any

import numpy as np

from musicgen.generation.constraints.base import Constraint
from musicgen.tokenization.bar_grammar import BarGrammar, BarState
from musicgen.tokenization.grammar import NEVER, BoolArray
from musicgen.tokenization.vocabulary import IntArray


class FixedTempo(Constraint):
    """The tempo stays. A piece without notes may still take its first tempo."""

    def __init__(self, grammar: BarGrammar[Any]) -> None:
        self._others = ~grammar.of_families("Tempo")  # [V]

    def _is_fixed(self, state: BarState) -> BoolArray:
        fixed = state.tempo >= 0
        return fixed if fixed.all() else fixed | state.has_note

    def earliest(self, state: BarState, memory: None) -> dict[str, IntArray]:
        return {"Tempo": np.where(self._is_fixed(state), NEVER, 0)}

    def allowed(self, state: BarState, memory: None) -> BoolArray:
        return ~self._is_fixed(state)[:, None] | self._others


class FixedTimeSignature(Constraint):
    """The time signature stays. A piece without bars may still take its first one."""

    def __init__(self, grammar: BarGrammar[Any]) -> None:
        bars = grammar.slices["Bar"]
        others = ~grammar.of_families("Bar")
        signatures = np.arange(bars.stop - bars.start)
        # The tokens after each time signature, and at last without one. [N + 1, V]
        self._after = np.repeat(others[None], len(signatures) + 1, axis=0)
        self._after[signatures, bars.start + signatures] = True
        self._after[-1] = True

    def allowed(self, state: BarState, memory: None) -> BoolArray:
        return self._after[state.time_signature]
