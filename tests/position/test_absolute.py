import math

import pytest
import torch

from musicgen.errors import UserError
from musicgen.position import Learnable, Sinusoidal
from musicgen.random import NoiseKey

SIZES = {"num_layers": 1, "num_heads": 1, "width": 6, "model_dim": 6}


def test_sinusoidal_is_the_papers_formula():
    # Vaswani et al. 2017, §3.5: PE(n, 2i) = sin(n / 10000^(2i/D)), PE(n, 2i + 1) = cos(…).
    code = Sinusoidal(**SIZES).embed(torch.zeros(1, 2, 6), torch.tensor([[[3], [1000]]]))
    for row, n in enumerate((3, 1000)):
        for i in range(3):
            angle = n / 10000 ** (2 * i / 6)
            assert code[0, row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-4)
            assert code[0, row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-4)


def test_learnable_adds_its_row_and_ends_at_its_length():
    position = Learnable(**SIZES, max_length=4)
    out = position.embed(torch.ones(1, 2, 6), torch.tensor([[[3], [0]]]))
    torch.testing.assert_close(out[0], 1 + position.table[[3, 0]])
    with pytest.raises(
        UserError, match=r"^max_length=4: expected more than position 4; .*sine_spe"
    ):
        position.embed(torch.ones(1, 1, 6), torch.tensor([[[4]]]))


def test_noise_keys():
    key = NoiseKey((1, 2))
    draw = key.normal(1000, device="cpu")
    assert torch.equal(draw, NoiseKey((1, 2)).normal(1000, device="cpu"))
    assert not torch.equal(draw, key.fold(0).normal(1000, device="cpu"))
    assert not torch.equal(NoiseKey((12,)).normal(9, device="cpu"), key.normal(9, device="cpu"))
    assert abs(draw.mean()) < 0.1
    assert abs(draw.std() - 1) < 0.1
