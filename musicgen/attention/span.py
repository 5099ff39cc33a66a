"""Differentiable span: each layer learns how far back it looks (Alfons 2022, §3.6)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from musicgen.validation import check_choice, check_float, check_int


@dataclass(frozen=True)
class LayerSpan:
    """The span of one block of tokens, as one layer sees it."""

    positions: Tensor  # [1|B, L, P] of the tokens
    decay: Tensor  # [P], fp32: the Gaussian is exp(−Σ_i decay_i x_i²) at the lag x in positions
    window: tuple[int, ...] | None  # the furthest visible lag in each dimension; None: no limit
    multiply: bool  # multiply logits by the Gaussian; else add its logarithm


class GaussianSpan(nn.Module):
    """A Gaussian of the lag with a learned width σ in each dimension, for one layer.

    G(x) = exp(−½ Σ_i x_i² / σ_i²) (formula 2), lags x normalised by the training length N, to
    lag / (N − 1). Keys at which the Gaussian of one dimension alone is below the threshold t are
    not visible: |x_i| > σ_i √(−2 ln t), rounded up to whole positions (algorithm 6).

    Args:
        training_length: N; in n dimensions one number per dimension.
        mode: `multiply` multiplies logits by G (algorithm 8). Logits of far keys then tend to 0,
            which is more than a negative logit of a near key. `log` adds ln G, which multiplies
            softmax weights by G: far keys are ignored.
        threshold: t; None: all keys are visible.
        sigma: initial σ in every dimension.

    Attributes:
        num_dims: number of coordinates with a lag; they are the first columns of positions.
        window: the furthest visible lag in each dimension; None: no limit.
    """

    name: ClassVar[str] = "gaussian"  # on the command line
    normaliser: Tensor
    window: tuple[int, ...] | None

    def __init__(
        self,
        *,
        training_length: int | Sequence[int],
        mode: str = "multiply",
        threshold: float | None = 0.1,
        sigma: float = 0.3,
    ) -> None:
        super().__init__()
        check_choice("mode", mode, ("multiply", "log"))
        check_float("threshold", threshold, above=0, below=1, none_means="all keys are visible")
        check_float("sigma", sigma, above=0)
        self.mode, self.threshold = mode, threshold
        sizes = [training_length] if isinstance(training_length, int) else list(training_length)
        for size in sizes:
            check_int("training_length", size)
        # Saved with the weights, as σ depends on it.
        self.register_buffer("normaliser", torch.tensor(sizes).float().sub(1).clamp(min=1))
        self.num_dims = len(sizes)
        self.sigma = nn.Parameter(torch.full((self.num_dims,), float(sigma)))
        self.update_window()
        self.register_load_state_dict_post_hook(lambda module, _: module.update_window())

    def update_window(self) -> None:
        """Set `window` from σ. It waits for the device, so call it once per training step."""
        self.window = None
        if self.threshold is not None and not self.sigma.is_meta:
            # On the CPU: Apple's GPUs have no fp64.
            sigma, sizes = self.sigma.detach().abs().cpu().double(), self.normaliser.cpu()
            reach = sigma * math.sqrt(-2 * math.log(self.threshold))
            # Slightly less, so that a rounding error above a whole number is not rounded up.
            self.window = tuple((reach * sizes * (1 - 1e-6)).ceil().long().tolist())

    def forward(self, positions: Tensor) -> LayerSpan:
        """Return the span of tokens at positions [1|B, L, P]."""
        # The small term avoids a division by zero where σ is 0.
        variance = self.sigma.float().square() * self.normaliser.square() + 1e-12
        return LayerSpan(positions, 0.5 / variance, self.window, self.mode == "multiply")

    def weight(self, lags: Tensor) -> Tensor:
        """Return G at lags [N, num_dims] in positions, 0 outside of the window: [N]."""
        span = self(lags[None])
        gaussian = (-(lags.square() * span.decay).sum(-1)).exp()
        if span.window is None:
            return gaussian
        return gaussian * (lags.abs() <= torch.tensor(span.window, device=lags.device)).all(-1)
