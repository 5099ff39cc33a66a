"""The causal product over all pairs of tokens: the reference for the fast implementations."""

import torch
from torch import Tensor

from musicgen.attention.linear.decay import by_token, pair_log_decay
from musicgen.attention.linear.state import LinearState, ProductInputs, normaliser, segments


def naive(inputs: ProductInputs) -> tuple[Tensor, LinearState]:
    """Compute all pairs of tokens at once: quadratic, the oracle of the fast ones."""
    q, k, v, norm, log_decay, state, rescale_points, eps = inputs
    norm_q, norm_k = norm or (q, k)
    batch, length, heads, width = q.shape
    if state is None:
        kv = q.new_zeros(batch, heads, width, v.shape[-1])
        state = LinearState(kv, q.new_zeros(batch, heads, norm_k.shape[-1]))
    log_decay = q.new_zeros(heads) if log_decay is None else log_decay
    log_decay = by_token(log_decay, q if log_decay.dim() == 3 else q[:1])  # [1|B, L, H]
    # The factors at rescale points contain the decay of one token, but no gradient.
    contained = q.new_zeros(length, 1)
    contained[list(rescale_points)] = 1
    log_decay = (log_decay - log_decay.detach() * contained).transpose(1, 2)  # [1|B, H, L]
    from_state = log_decay.cumsum(-1).exp()[..., None].transpose(1, 2)  # [1|B, L, H, 1]
    decay = pair_log_decay(log_decay).masked_fill(
        q.new_ones(length, length).triu(1) > 0, -torch.inf
    )
    decay = decay.exp()  # [1|B, H, L, L]

    outputs = []
    for part in segments(length, rescale_points):
        if part.start in rescale_points:
            factor = rescale_points[part.start]
            k, norm_k = (
                torch.cat((x[:, : part.start] * factor[:, None], x[:, part.start :]), dim=1)
                for x in (k, norm_k)
            )
            state = state.scaled(factor)
        weights, norm_weights = (
            torch.einsum("bnhe,bmhe->bhnm", x[:, part], y[:, : part.stop])
            * decay[:, :, part, : part.stop]
            for x, y in ((q, k), (norm_q, norm_k))
        )
        numerator = torch.einsum("bhnm,bmhv->bnhv", weights, v[:, : part.stop])
        numerator = numerator + torch.einsum(
            "bnhe,bhev->bnhv", q[:, part] * from_state[:, part], state.kv
        )
        denominator = norm_weights.sum(-1).transpose(1, 2)
        denominator = denominator + torch.einsum(
            "bnhe,bhe->bnh", norm_q[:, part] * from_state[:, part], state.k
        )
        outputs.append(numerator / normaliser(denominator, eps)[..., None])
    # Sums decayed to the last token.
    to_end = decay[:, :, -1].transpose(1, 2)[..., None]  # [1|B, L, H, 1]
    state = state.scaled(from_state[:, -1])
    kv = state.kv + torch.einsum("blhe,blhv->bhev", k * to_end, v)
    return torch.cat(outputs, dim=1), LinearState(kv, state.k + (norm_k * to_end).sum(1))
