"""Differentiable span: how far back a layer looks is learned (Alfons 2022, §3.6)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from musicgen.errors import UserError


@dataclass(frozen=True)
class LayerSpan:
    """The span of one block of tokens, as one layer sees it.

    Attributes:
        positions: [1|B, L, P] of the tokens.
        decay: [P], fp32: the Gaussian of lags x is exp(−Σ_i decay_i x_i²), x in whole positions.
        window: the furthest lag that is seen in each dimension; None without a limit.
        multiply: scores are multiplied by the Gaussian; else its logarithm is added to them.
    """

    positions: Tensor
    decay: Tensor
    window: tuple[int, ...] | None
    multiply: bool

    @property
    def num_dims(self) -> int:
        """How many coordinates, from the first on, lags are taken of."""
        return len(self.decay)


class AttentionSpan(nn.Module, ABC):
    """Limits what the queries of one layer see; each layer has its own."""

    name: ClassVar[str]
    num_dims: int
    """How many coordinates, from the first on, lags are taken of."""

    @abstractmethod
    def window(self) -> tuple[int, ...] | None:
        """The furthest lag in each dimension, in whole positions; nothing beyond is computed."""

    @abstractmethod
    def update_window(self) -> None:
        """Let the window follow the parameters: once a step, as it reads them on the host."""

    @abstractmethod
    def forward(self, positions: Tensor) -> LayerSpan:
        """For tokens at positions [1|B, L, P]."""

    def weight(self, lags: Tensor) -> Tensor:
        """What a pair of tokens counts for at lags [N, num_dims]: [N], and 0 where it is not seen.

        The Gaussian, which multiplies the pair's score or, in mode `log`, its softmax weight.
        """
        span = self(lags[None])
        gaussian = (-(lags.square() * span.decay).sum(-1)).exp()
        if span.window is None:
            return gaussian
        return gaussian * (lags.abs() <= torch.tensor(span.window, device=lags.device)).all(-1)


class GaussianSpan(AttentionSpan):
    """A Gaussian of the lag with a learned width σ in each dimension.

    G(x) = exp(−½ Σ_i x_i² / σ_i²) (formula 2), lags x normalised by the training length N, to
    lag / (N − 1). Keys for which the Gaussian of one dimension alone is below the threshold t are
    not seen: |x_i| > σ_i √(−2 ln t), rounded up to whole positions (algorithm 6).

    Args:
        training_length: N; in n dimensions one number for each.
        mode: `multiply` multiplies scores by G before the softmax (algorithm 8), so that far keys
            tend to a score of 0, which is more than a near key's negative one. `log` adds ln G:
            softmax weights are multiplied by G, and far keys are ignored whatever their score.
        threshold: t; None sees all keys.
        sigma: σ at the start, in every dimension.

    Raises:
        UserError: an unknown mode, a threshold outside of (0, 1), or a σ that is not above 0.
    """

    name = "gaussian"
    normaliser: Tensor

    def __init__(
        self,
        *,
        training_length: int | Sequence[int],
        mode: str = "multiply",
        threshold: float | None = 0.1,
        sigma: float = 0.3,
    ) -> None:
        super().__init__()
        if mode not in ("multiply", "log"):
            raise UserError(f"model.span.mode={mode}: give multiply or log")
        if threshold is not None and not 0 < threshold < 1:
            raise UserError(
                f"model.span.threshold={threshold}: give a number between 0 and 1, or null to see "
                "all keys"
            )
        if sigma <= 0:
            raise UserError(f"model.span.sigma={sigma}: give a number above 0")
        self.mode, self.threshold = mode, threshold
        sizes = [training_length] if isinstance(training_length, int) else list(training_length)
        # Saved, as σ means nothing without it.
        self.register_buffer("normaliser", torch.tensor(sizes).float().sub(1).clamp(min=1))
        self.num_dims = len(sizes)
        self.sigma = nn.Parameter(torch.full((self.num_dims,), float(sigma)))
        self.update_window()
        self.register_load_state_dict_post_hook(lambda module, _: module.update_window())

    def window(self) -> tuple[int, ...] | None:
        return self._window

    def update_window(self) -> None:
        self._window: tuple[int, ...] | None = None
        if self.threshold is not None:
            # On the CPU: Apple's GPUs have no fp64.
            sigma, sizes = self.sigma.detach().abs().cpu().double(), self.normaliser.cpu()
            reach = sigma * math.sqrt(-2 * math.log(self.threshold))
            # A width that is whole but for rounding is not rounded up.
            self._window = tuple((reach * sizes * (1 - 1e-6)).ceil().long().tolist())

    def forward(self, positions: Tensor) -> LayerSpan:
        if positions.shape[-1] < len(self.sigma):
            raise UserError(
                f"span={self.name} is set up for {len(self.sigma)} coordinates, but positions have "
                f"{positions.shape[-1]}. Give model.span.training_length one number for each "
                "coordinate"
            )
        # The last term matters only where σ is 0.
        variance = self.sigma.float().square() * self.normaliser.square() + 1e-12
        return LayerSpan(positions, 0.5 / variance, self._window, self.mode == "multiply")
