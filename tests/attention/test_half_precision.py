"""Training under bf16 autocast, beside the same in fp32."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from musicgen.attention import FAVOR, LinearAttention, ReLU
from musicgen.models import Transformer
from musicgen.position import SineSPE
from musicgen.random import NoiseKey

VOCABULARY, LENGTH, STEPS = 24, 72, 200


def phrases(generator: torch.Generator) -> torch.Tensor:
    """Each row repeats a phrase of its own, now and then with a wrong note: [4, LENGTH]."""
    phrase = torch.randint(VOCABULARY, (4, 12), generator=generator)
    tokens = phrase.repeat(1, LENGTH // 12)
    wrong = torch.rand(tokens.shape, generator=generator) < 0.05
    return torch.where(wrong, torch.randint(VOCABULARY, tokens.shape, generator=generator), tokens)


def losses(attention: partial[LinearAttention], half: bool) -> torch.Tensor:
    """The loss of each step."""
    torch.manual_seed(0)
    sizes = {"dim": 32, "num_layers": 2, "num_heads": 4, "ff_dim": 64, "init_std": 0.1}
    position = partial(SineSPE, num_realizations=8)
    model = Transformer(VOCABULARY, **sizes, position=position, attention=attention, dropout=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = torch.Generator().manual_seed(1)
    found = []
    for step in range(STEPS):
        tokens = phrases(data)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(tokens[:, :-1], noise=NoiseKey((step,)))
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("feature_map", [FAVOR, ReLU])
def test_two_hundred_steps_in_bf16_learn_what_fp32_does(feature_map):
    attention = partial(LinearAttention, feature_map=feature_map, decay="head")
    full, half = (losses(attention, half) for half in (False, True))
    assert half.isfinite().all()
    assert full[-20:].mean() < 0.95 * full[:5].mean()
    torch.testing.assert_close(half[-20:].mean(), full[-20:].mean(), atol=0, rtol=0.02)
