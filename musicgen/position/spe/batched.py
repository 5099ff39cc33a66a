"""Products of queries and keys with stochastic codes, by few large operations.

This implementation is for accelerators, and it compiles into one graph. Codes are arrays
[L, H, K, R] that all sequences and layers share, or, for few sequences, products with Ω.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from musicgen.position.base import LayerCode
from musicgen.position.spe.base import Gate


@dataclass(eq=False)
class ArrayCode(LayerCode):
    """Encoding by codes that are arrays: the gate of a layer, the codes, and each token's slot."""

    gate: Gate | None  # its factors may differ between tokens: [1|B, L, H, K]
    q_code: Tensor  # [N, H, K, R]
    k_code: Tensor
    slots: Tensor | None  # [1|B, L]; None means 0, 1, …, L − 1

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            return self._encode(q, self.q_code), self._encode(k, self.k_code)

    def _encode(self, x: Tensor, code: Tensor) -> Tensor:
        x = x.to(code.dtype)
        if self.gate is None:
            return times_codes(x, code, self.slots)
        encoded = times_codes(x * self.gate.position.to(x.dtype), code, self.slots)
        return (encoded + times_noise(x, self.gate)).contiguous()


def times_codes(x: Tensor, code: Tensor, slots: Tensor | None) -> Tensor:
    """Return x̂[n, r] = Σ_d x[n, d] x̄[n, d, r].

    Args:
        x: queries or keys, [B, L, H, K].
        code: their codes at N slots, [N, H, K, R].
        slots: of each token, [1|B, L]; None: 0, 1, …, L − 1.

    Returns:
        [B, L, H, R].
    """
    batch, length, heads, width = x.shape
    if slots is not None and len(slots) > 1:
        return (x[..., None, :] @ code[slots])[..., 0, :]
    token_codes = code[:length] if slots is None else code[slots[0]]
    # One matrix product for each position and head, over all sequences.
    by_position = x.reshape(batch, length * heads, width).transpose(0, 1)  # [L·H, B, K]
    product = torch.bmm(by_position, token_codes.flatten(0, 1))
    return product.transpose(0, 1).unflatten(1, (length, heads))


def times_noise(x: Tensor, gate: Gate) -> Tensor:
    """Return the constant part of a gated product, (x c) ε with c = √δ: [B, L, H, R].

    Args:
        x: queries or keys, [B, L, H, K].
    """
    assert gate.epsilon is not None
    x = x * gate.constant.to(x.dtype)
    by_head = x.flatten(0, 1).transpose(0, 1)  # [H, B·L, K]
    product = torch.bmm(by_head, gate.epsilon.to(x.dtype))
    return product.transpose(0, 1).unflatten(0, x.shape[:2])


def times_sines(x: Tensor, omega: Tensor, z: Tensor, gate: Gate | None) -> Tensor:
    """Return x̂ = vec(x_d a_d Ω_d(n)) z + (x c) ε, with a = √(1 − δ) and c = √δ of the gate.

    Args:
        x: queries or keys, [B, L, H, K].
        omega: Ω, [1|B, H, L, 2K', K].
        z: noise, or the directions of random features, [H, 2K', K, R].
        gate: None: a = 1, c = 0.

    Returns:
        [B, L, H, R], in Ω's dtype.
    """
    x = x.to(omega.dtype)
    if gate is not None:
        z = z * gate.position[:, None, :, None]
    waves = x.permute(2, 0, 1, 3)[..., None, :] * omega.transpose(0, 1)  # [H, B, L, 2K', K]
    product = torch.bmm(waves.flatten(3).flatten(1, 2), z.flatten(1, 2).to(x.dtype))
    encoded = product.transpose(0, 1).unflatten(0, x.shape[:2])
    return encoded if gate is None else encoded + times_noise(x, gate)
