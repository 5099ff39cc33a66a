"""Held tempo and metre: no token of a continuation changes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from musicgen.midi import TEMPO, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import METRES, REMI, Groove2Groove
from musicgen.tokenization.grammar import NEVER

TOKENIZER = REMI(time_signatures=METRES, max_bars=40)
BEAT = 480


def prompt(*, tempo: bool = True) -> torch.Tensor:
    """One bar of 4/4 at 90 bpm, one of 3/4 at 120 bpm."""
    score = Score(
        BEAT,
        [Track(notes=notes_from([(beat * BEAT, BEAT, 60 + beat, 64) for beat in range(7)]))],
        np.array([(0, 90.0), (4 * BEAT, 120.0)] if tempo else [], dtype=TEMPO),
        [TimeSignature(0, 4, 4), TimeSignature(4 * BEAT, 3, 4)],
    )
    return torch.from_numpy(TOKENIZER.until_end(TOKENIZER.encode(score)))


def walk(tokens: torch.Tensor, *, tempo: bool, metre: bool, rows: int = 32, steps: int = 300):
    """The names of uniformly drawn tokens after a prompt. [rows][steps]"""
    grammar, names = TOKENIZER.grammar(), TOKENIZER.vocabulary
    state = grammar.hold(grammar.start(tokens[None].expand(rows, -1)), tempo=tempo, metre=metre)
    state = grammar.between(state, end=NEVER)
    drawn, generator = [], torch.Generator().manual_seed(0)
    for _ in range(steps):
        allowed = grammar.allowed(state)
        assert allowed.any(dim=1).all()
        token = torch.multinomial(allowed.double(), 1, generator=generator)[:, 0]
        state = grammar.advance(state, token)
        drawn.append(token)
    columns = torch.stack(drawn, dim=1)
    assert grammar.accepts(torch.cat([tokens.expand(rows, -1), columns], dim=1)).all()
    return [[names.token(int(t)).split("_") for t in row] for row in columns]


def changes(rows, family):
    return {name[1] for row in rows for name in row if name[0] == family}


@pytest.mark.parametrize(("tempo", "metre"), [(True, True), (True, False), (False, True)])
def test_no_token_changes_what_is_held(tempo, metre):
    rows = walk(prompt(), tempo=tempo, metre=metre)
    assert (changes(rows, "Bar") == {"3/4"}) == metre
    assert (changes(rows, "Tempo") == set()) == tempo
    assert changes(rows, "Pitch")


def test_a_prompt_without_a_tempo_gets_none():
    assert changes(walk(prompt(tempo=False), tempo=True, metre=True), "Tempo") == set()


def test_a_piece_from_nothing_takes_one_tempo_at_most():
    rows = walk(torch.from_numpy(TOKENIZER.start_tokens()), tempo=True, metre=True)
    tempi = [[at for at, name in enumerate(row) if name[0] == "Tempo"] for row in rows]
    assert {len(found) for found in tempi} == {0, 1}
    for row, found in zip(rows, tempi, strict=True):
        assert all("Pitch" not in {name[0] for name in row[:at]} for at in found)


def test_grooves_have_neither():
    grammar = Groove2Groove().grammar()
    state = grammar.start(torch.tensor([[grammar.bos]]))
    assert grammar.hold(state, tempo=True, metre=True) is state
