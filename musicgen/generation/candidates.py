"""Candidates for rewritten bars: one of them is drawn by how well it leads to the next bars."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from musicgen.generation.engines import Engine
from musicgen.generation.prompt import Prompt
from musicgen.generation.sampling_params import draw
from musicgen.random import NoiseKey
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.grammar import padded
from musicgen.tokenization.vocabulary import IntArray

NUM_CANDIDATES = 8
"""More candidates fit better, and take longer."""


def num_candidates(prompt: Prompt) -> int:
    """Return how many candidates a sample has: several, if bars of the piece follow."""
    bars_follow = prompt.kept is not None and len(prompt.kept.conditioning.following) > 0
    return NUM_CANDIDATES if bars_follow else 1


def choose(engine: Engine, prompt: Prompt, candidates: Sequence[IntArray], key: NoiseKey) -> int:
    """Draw one of several candidates, ids [L] each, that follow a prompt; return its index.

    The model has drawn the candidates by the tokens before them. Here one is drawn by the
    probability of the bars after it (sampling-importance resampling, Rubin 1987).
    """
    if len(candidates) == 1:
        return 0
    likelihoods = log_likelihoods(engine, prompt, candidates)
    number = torch.rand(1, generator=key.generator(), dtype=torch.float64)
    return int(draw(likelihoods[None], number))


@torch.inference_mode()
def log_likelihoods(engine: Engine, prompt: Prompt, candidates: Sequence[IntArray]) -> Tensor:
    """Return the log-probability of the bars after each candidate. [num_candidates]"""
    assert prompt.kept is not None
    following, batch = prompt.kept.conditioning.following, len(candidates)
    coordinates, names = Coordinates(prompt.tokenizer), engine.model.coordinate_names
    sequences = [np.concatenate([prompt.tokens, candidate, following]) for candidate in candidates]
    ids = padded(sequences, 0)  # padding after a sequence does not change it
    columns = [coordinates.of(each, names, bar_length=prompt.bar_length) for each in sequences]
    tokens = torch.from_numpy(ids).to(engine.device)
    positions = torch.from_numpy(padded(columns, 0)).to(engine.device)
    start = len(prompt.tokens) - 1  # the first token whose logits are needed
    state = None
    if start:
        _, state = engine.prefill(tokens[:1, :start], positions[:1, :start])
        state = state.select(torch.zeros(batch, dtype=torch.long, device=engine.device))
    logits, _ = engine.model.forward_with_state(
        tokens[:, start:], positions=positions[:, start:], noise=engine.noise, state=state
    )
    first = torch.tensor([len(candidate) for candidate in candidates], device=engine.device)
    at = first[:, None] + torch.arange(len(following), device=engine.device)
    log_probabilities = logits[torch.arange(batch, device=engine.device)[:, None], at]
    log_probabilities = log_probabilities.double().log_softmax(dim=-1)
    of_tokens = log_probabilities.gather(2, tokens[:, start:].gather(1, at + 1)[..., None])
    return of_tokens.sum(dim=(1, 2)).cpu()
