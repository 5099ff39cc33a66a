"""Random walks under the grammars, and random crops."""

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def names():
    """`names(tokenizer, tokens)`: the token names as one string."""

    def join(tokenizer, tokens):
        return " ".join(tokenizer.vocabulary.token(int(token)) for token in tokens)

    return join


def closing_bias(tokenizer):
    """Logits that soon lead to EOS. [V]"""
    vocabulary = tokenizer.vocabulary
    bias = {"EOS": 4e3, "Empty": 3e3, "NoteOff": 3e3, "TimeShift": 2e3, "Beat": 1e3, "Part": 1e3}
    families = [vocabulary.token(i).partition("_")[0] for i in range(len(vocabulary))]
    return torch.tensor([bias.get(family, 0.0) for family in families])


def random_walk(tokenizer, num_rows, steps, seed, state=None, grammar=None):
    """Random walks under the grammar, from a state on: `steps` tokens without EOS, then to EOS.

    Args:
        grammar: the tokenizer's, or one with constraints, whose state `state` is.

    Returns:
        Tokens [num_rows, L], and the grammar state's positions after each [num_rows, L, 2].
    """
    random = torch.Generator().manual_seed(seed)
    grammar = grammar or tokenizer.grammar()
    size = len(tokenizer.vocabulary)
    # Every row prefers other tokens, so that time passes at different speeds.
    preference = 3 * torch.randn(num_rows, size, generator=random)
    preference += 3 * (closing_bias(tokenizer) > 0) * torch.rand(num_rows, 1, generator=random)
    bias = closing_bias(tokenizer)
    if state is None:
        state = grammar.start(torch.empty(num_rows, 0, dtype=torch.long))
    eos = tokenizer.vocabulary.id("EOS")
    columns, positions = [], []
    while not state.finished.all():
        allowed = grammar.allowed(state)
        assert allowed.dtype == torch.bool
        assert allowed.shape == (num_rows, size)
        assert allowed.any(dim=1).all()
        if len(columns) < steps:
            allowed[:, eos] &= allowed.sum(dim=1) == 1
        logits = preference + torch.randn(num_rows, size, generator=random)
        if len(columns) >= steps:
            logits = logits + bias
        tokens = logits.masked_fill(~allowed, -torch.inf).argmax(dim=1)
        state = grammar.advance(state, tokens)
        columns.append(tokens)
        positions.append(state.positions)
        assert len(columns) < steps + 2000, "EOS is not reached"
    return torch.stack(columns, dim=1).numpy(), np.stack(positions, axis=1)


def random_crop(tokenizer, tokens, rng, length, bar_length, *, augment):
    """A training crop from a random bar on."""
    starts = tokenizer.crops.starts(tokens, bar_length=bar_length)
    starts = starts[int(rng.integers(len(starts))) if len(starts) else 0 :]
    if not augment:
        return tokenizer.crops.crop(tokens, starts, length)
    return tokenizer.augmentation.crop(tokens, starts, length, bar_length=bar_length, rng=rng)
