"""A learned state of linear attention in which sequences begin."""

import math

import torch
from torch import nn

from musicgen.attention.linear.state import LinearState


class InitialState(nn.Module):
    """A state (S₀, z₀), as if tokens with these sums stood before the first one.

    z₀ = exp(ζ) keeps the normaliser positive. S₀ = z₀ ⊙ U, where U holds a mean value for each
    feature, so that outputs stay averages of values. If features are encoded by position, their
    sums may have another width and sign than z₀, and S₀ = max z₀ · U for each head.

    Args:
        like: a state whose sizes this one has.
        by_feature: S₀ = z₀ ⊙ U, not max z₀ · U.

    Attributes:
        log_k: ζ, [H, M].
        mean: U, [H, E, V].
    """

    def __init__(self, like: LinearState, *, by_feature: bool) -> None:
        super().__init__()
        self.log_features, self.by_feature = like.log_scale is not None, by_feature
        self.log_k = nn.Parameter(torch.zeros_like(like.k[0]))
        self.mean = nn.Parameter(torch.zeros_like(like.kv[0]))

    def forward(self, batch: int) -> LinearState:
        """Return the state of `batch` rows."""
        exponent = self.log_k if self.by_feature else self.log_k.amax(-1, keepdim=True)  # [H, E|1]
        scale = exponent.detach() if self.log_features else torch.zeros_like(exponent)
        k = (self.log_k - scale).exp()
        kv = self.mean * (exponent - scale).exp()[..., None]
        rows = [x.expand(batch, *x.shape) for x in (kv, k, scale)]
        return LinearState(*rows) if self.log_features else LinearState(*rows[:2])

    @torch.no_grad()
    def initialise(self, state: LinearState, num_tokens: float) -> None:
        """Begin as the mean over the rows of a state, divided by `num_tokens`."""
        kv, k, log_scale = state
        if log_scale is None:
            log_scale = torch.zeros_like(k if self.by_feature else k[..., :1])
        top = log_scale.amax(0)  # [H, E|1]
        factor = (log_scale - top).exp()  # [B, H, E|1]
        k_sum, kv_sum = (k * factor).sum(0), (kv * factor[..., None]).sum(0)
        smallest = torch.finfo(k.dtype).tiny
        self.log_k.copy_(k_sum.clamp(min=smallest).log() + top - math.log(len(k) * num_tokens))
        weight = k_sum if self.by_feature else k_sum.amax(-1, keepdim=True)
        self.mean.copy_(kv_sum / weight.clamp(min=smallest)[..., None])
