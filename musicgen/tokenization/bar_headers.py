"""Constraints on what bars begin with: time signature, key and tempo, and how songs begin."""

import numpy as np
from torch import Tensor

from musicgen.tokenization.bar_grammar import BarGrammar, BarState, SongsGrammar
from musicgen.tokenization.constraints import Constraint
from musicgen.tokenization.grammar import NEVER, BoolArray
from musicgen.tokenization.vocabulary import IntArray


class FixedTempo(Constraint):
    """The tempo stays. A piece without notes may still take its first tempo."""

    def __init__(self, grammar: BarGrammar) -> None:
        self._others = ~grammar.of_families("Tempo")  # [V]

    def _is_fixed(self, state: BarState) -> BoolArray:
        fixed = state.tempo >= 0
        return fixed if fixed.all() else fixed | state.has_note

    def earliest(self, state: BarState, memory: IntArray) -> dict[str, IntArray]:
        return {"Tempo": np.where(self._is_fixed(state), NEVER, 0)}

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        fixed = self._is_fixed(state)
        return self._others if fixed.all() else ~fixed[:, None] | self._others


class FixedTimeSignature(Constraint):
    """The time signature stays, see `to_bar_line`. A piece without bars may take its first one."""

    def __init__(self, grammar: BarGrammar) -> None:
        self.grammar = grammar
        # By index of the time signature; the last row, of -1, is that of no bar. [N + 1, V]
        self._allowed = np.ones((len(grammar.ranks["Bar"]) + 1, len(grammar.vocabulary)), bool)
        self._allowed[:-1, grammar.slices["Bar"]] = np.eye(len(self._allowed) - 1)

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        return self._allowed[state.time_signature]

    def redirect(self, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
        return to_bar_line(self.grammar, state, logits, allowed)


def to_bar_line(grammar: BarGrammar, state: BarState, logits: Tensor, allowed: Tensor) -> Tensor:
    """Return logits [B, V] that end a bar where the model ends it, if only one bar may follow.

    After a note its token also gets the probability of bars in other time signatures, and of beats
    behind the end of the bar. A mask alone would share that among the notes, and they would pile
    up in metres that the model knows little.
    """
    bars, beats, pitches = (grammar.slices[name] for name in ("Bar", "Beat", "Pitch"))
    may_come = allowed.numpy()
    next_bar = may_come[:, bars]
    moves = next_bar.sum(axis=1) == 1
    if moves.any():
        moves &= may_come[:, pitches].any(axis=1)
    if not moves.any():
        return logits
    redirected = logits.clone()
    values, length = redirected.numpy(), (state.bar_end - state.bar_start)[:, None]
    behind = np.where(grammar.ranks["Beat"] < length, -np.inf, values[:, beats])
    ends = np.concatenate([values[:, bars], behind], axis=1)
    together = np.logaddexp.reduce(ends, axis=1, keepdims=True)
    values[:, bars] = np.where(moves[:, None] & next_bar, together, values[:, bars])
    return redirected


class FixedKey(Constraint):
    """The key stays, once the piece has one."""

    def __init__(self, grammar: BarGrammar) -> None:
        self._others = ~grammar.of_families("Key")  # [V]

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray:
        fixed = state.key >= 0
        return self._others if fixed.all() else ~fixed[:, None] | self._others


class SongBeginning(Constraint):
    """A song begins at a tempo and on a chord, which come before its notes.

    Args:
        tempo: index among the tempi of the vocabulary; None: the model chooses.
        chord: index in `CHORDS`; None: the model chooses.
    """

    def __init__(self, grammar: SongsGrammar, tempo: int | None, chord: int | None) -> None:
        slices, ranks = grammar.slices, grammar.ranks
        anything = np.ones(len(grammar.vocabulary), bool)
        self._until_tempo = self._until_chord = anything  # which tokens may come, [V] each
        if tempo is not None:
            self._until_tempo = ~grammar.of_families("Bar", "EOS", "Part")
            self._until_tempo[slices["Tempo"]] = ranks["Tempo"] == tempo
        if chord is not None:
            self._until_chord = ~grammar.of_families("Bar", "EOS")
            self._until_chord[slices["Part"]] = grammar.is_chords
            self._until_chord[slices["Beat"]] = ranks["Beat"] == 0
            self._until_chord[slices["Chord"]] = ranks["Chord"] == chord

    def allowed(self, state: BarState, memory: IntArray) -> BoolArray | None:
        has_note = state.has_note
        if has_note.all():
            return None
        has_tempo, has_chord = (x[:, None] for x in (state.tempo >= 0, state.chord >= 0))
        mask = (has_tempo | self._until_tempo) & (has_chord | self._until_chord)
        return mask | has_note[:, None]
