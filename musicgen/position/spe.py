"""Stochastic positional encoding (Liutkus et al. 2021): random codes with a relative covariance.

Letters: head width K (the paper's D), encoded width E = the number of realizations R. For each
head, q̂[n, r] = Σ_d q[n, d] q̄[n, d, r] with random codes q̄, k̄ such that
E[q̄[m, d, r] k̄[n, d, r]] ∝ P_d(m − n), so that q̂·k̂ estimates Σ_d q_d k_d P_d(m − n).

The products q̂ and k̂ are computed here by few large operations, for accelerators and for compiled
graphs, and in `spe_blockwise.py` by blocks of positions, for CPUs. Codes are arrays [L, H, K, R]
that all sequences and layers share, or, for SineSPE with few sequences, products with Ω.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from musicgen.position.angles import angles_at
from musicgen.position.base import LayerCode, PositionalEncoding, Site
from musicgen.random import NoiseKey, RandomStream
from musicgen.validation import check_bool, check_int


class SPE(PositionalEncoding):
    """Base class of SineSPE and ConvSPE (Liutkus et al. 2021).

    Args:
        num_realizations: R, the width of encoded queries and keys; None: R → ∞, for SineSPE only.
        gated: mix each layer's kernel with a constant, P_d ← δ + (1 − δ) P_d (§2.2, eqs. 23–25).
        shared: draw one code per forward pass for all layers; else one code per layer with its own
            parameters.
        class_token: allow tokens without a position, which have a negative coordinate. If gated,
            the code of such a token is the noise ε of the gate: its expected products are δ q·k. If
            ungated, it is a learned function of the noise of the other codes.
    """

    sites = frozenset({Site.QUERY_KEY})
    relative: Literal["no", "exact", "expected"] = "expected"

    def __init__(
        self,
        *args: int,
        num_realizations: int | None = 64,
        gated: bool = True,
        shared: bool = True,
        class_token: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, value in (("gated", gated), ("shared", shared), ("class_token", class_token)):
            check_bool(name, value)
        check_int("num_realizations", num_realizations, none_means="the limit of sine_spe")
        self.num_realizations, self.class_token = num_realizations, class_token
        self.class_code: nn.Parameter | None = None  # if class tokens have a learned code
        self.num_codes = 1 if shared else self.num_layers
        self.shares_kernel = shared and not gated
        if num_realizations is not None:
            self.encoded_dim = num_realizations
            # Codes of queries and of keys are scaled by (R·K)^-¼ each. With R^-½ here, the expected
            # product is scaled by K^-½.
            self.logit_scale = num_realizations**-0.5
            self.code_scale = (num_realizations * self.width) ** -0.25
        sizes = self.num_layers, self.num_heads, self.width
        self.gate = nn.Parameter(torch.randn(sizes)) if gated else None

    def kernel(self, lags: Tensor, layer: int = 0) -> Tensor:
        """Return the expected kernel P_d: lags m − n, [N] or [N, num_dims] -> [H, K, N]."""
        steps = lags.reshape(-1, self.num_dims)
        kernel = self.code_kernel(steps, layer % self.num_codes)
        if self.gate is None:
            return kernel
        delta = self.gate[layer].sigmoid()[..., None]
        return delta + (1 - delta) * kernel

    @abstractmethod
    def code_kernel(self, lags: Tensor, code: int) -> Tensor:
        """Return P_d of one code without a gate: lags [N, num_dims] -> [H, K, N]."""

    def draw_epsilon(self, key: NoiseKey, device: torch.device) -> Tensor | None:
        """Return the scaled noise ε of all gates, [layers, H, K, R]; None without gates."""
        if self.gate is None or self.num_realizations is None:
            return None
        epsilon = key.fold(RandomStream.SPE_GATE).normal(
            *self.gate.shape, self.num_realizations, device=device
        )
        return epsilon.mul_(self.code_scale)

    def gates(self, epsilon: Tensor | None) -> list[Gate | None]:
        """Return each layer's gate (eqs. 23–25), with the noise that `draw_epsilon` returned."""
        if self.gate is None:
            return [None] * self.num_layers
        # √(1 − δ) and √δ by logarithms: the root of a sigmoid that rounds to 0 has no gradient.
        gate = self.gate.float()
        position, constant = (F.logsigmoid(x).div(2).exp() for x in (-gate, gate))
        by_layer = [None] * self.num_layers if epsilon is None else epsilon
        layers = zip(position, constant, by_layer, strict=True)
        return [Gate(*factors_and_noise) for factors_and_noise in layers]


class Gate(NamedTuple):
    """The gate of a layer. It scales q and k, so that no layer keeps a gated copy of the codes."""

    position: Tensor  # [H, K]: √(1 − δ), the factor on codes of positions
    constant: Tensor  # [H, K]: √δ, the factor on ε
    epsilon: Tensor | None  # [H, K, R]: noise, scaled like the codes; None in the limit R → ∞


class SPECode(LayerCode):
    """Encoding by stochastic codes that layers share, and the gate of a layer.

    Args:
        gate: its factors may differ between tokens, [1|B, L, H, K].
        of_q, of_k: return q̂ of queries and the gate, and k̂ of keys and the gate: `times_codes` or
            `times_sines` with their other arguments.
    """

    def __init__(
        self, gate: Gate | None, of_q: Callable[..., Tensor], of_k: Callable[..., Tensor]
    ) -> None:
        self.gate, self.of_q, self.of_k = gate, of_q, of_k

    def encode(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            return self.of_q(q, self.gate), self.of_k(k, self.gate)


def times_codes(x: Tensor, gate: Gate | None, *, code: Tensor, slots: Tensor | None) -> Tensor:
    """Return x̂[n, r] = Σ_d x[n, d] a_d x̄[n, d, r] + (x c) ε, with a and c of the gate.

    Args:
        x: queries or keys, [B, L, H, K].
        gate: None: a = 1, c = 0.
        code: their codes at N slots, [N, H, K, R].
        slots: of each token, [1|B, L]; None: 0, 1, …, L − 1.

    Returns:
        [B, L, H, R], in the code's dtype.
    """
    x = x.to(code.dtype)
    batch, length, heads, width = x.shape
    u = x if gate is None else x * gate.position.to(x.dtype)
    if slots is not None and len(slots) > 1:
        product = (u[..., None, :] @ code[slots])[..., 0, :]
    else:
        token_codes = code[:length] if slots is None else code[slots[0]]
        # One matrix product per position and head, over all sequences.
        by_position = u.reshape(batch, length * heads, width).transpose(0, 1)  # [L·H, B, K]
        product = torch.bmm(by_position, token_codes.flatten(0, 1))
        product = product.transpose(0, 1).unflatten(1, (length, heads))
    return product if gate is None else (product + times_noise(x, gate)).contiguous()


def times_sines(x: Tensor, gate: Gate | None, *, omega: Tensor, z: Tensor) -> Tensor:
    """Return x̂ = vec(x_d a_d Ω_d(n)) z + (x c) ε, with a and c of the gate.

    Args:
        x: queries or keys, [B, L, H, K].
        gate: None: a = 1, c = 0.
        omega: Ω, [1|B, H, L, 2K', K].
        z: noise, or the directions of random features, [H, 2K', K, R].

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


def times_noise(x: Tensor, gate: Gate) -> Tensor:
    """Return the constant part of a gated product, (x c) ε: [B, L, H, K] -> [B, L, H, R]."""
    assert gate.epsilon is not None
    x = x * gate.constant.to(x.dtype)
    by_head = x.flatten(0, 1).transpose(0, 1)  # [H, B·L, K]
    product = torch.bmm(by_head, gate.epsilon.to(x.dtype))
    return product.transpose(0, 1).unflatten(0, x.shape[:2])


class Sines(NamedTuple):
    """The parameters of one code of SineSPE, and Ω, the factor on its noise."""

    frequency: Tensor  # [P, H, K, K'] in turns per position, within ±½; in fp64 (see `angles_at`)
    phase: Tensor  # [H, K, K']: θ, of queries only
    gain: Tensor  # [H, K, K']: λ
    class_omega: Tensor | None  # [H, 2K', K]: Ω of tokens without a position; None: not allowed

    def omega(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return Ω of queries and of keys: [1|B, L, P] -> [1|B, H, L, 2K', K] each."""
        f, theta, gain = (p.transpose(-2, -1)[..., None, :, :] for p in self[:3])  # [.., 1, K', K]
        n = positions.movedim(-1, 0)[:, :, None, :, None, None]  # [P, 1|B, 1, L, 1, 1]
        with torch.autocast(positions.device.type, enabled=False):
            angle = angles_at(zip(n, f, strict=True))
            cos, sin = angle.cos(), angle.sin()
            k = torch.cat((gain * cos, gain * sin), dim=-2)
            # A rotation by θ is faster than the sines of a second angle.
            a, b = gain * theta.cos(), gain * theta.sin()
            q = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-2)
        if self.class_omega is None:
            return q, k
        positioned = (positions >= 0).all(-1)[:, None, :, None, None]
        other = self.class_omega[:, None]
        return torch.where(positioned, q, other), torch.where(positioned, k, other)

    def mean_square(self, positions: Tensor) -> Tensor:
        """Return ‖Ω‖² / 2K': [H, K]; with class tokens, where it differs, [1|B, L, H, K]."""
        width = 2 * self.gain.shape[-1]
        mean_square = self.gain.square().sum(-1) / width
        if self.class_omega is None:
            return mean_square
        positioned = (positions >= 0).all(-1)[..., None, None]  # [1|B, L, 1, 1]
        return torch.where(positioned, mean_square, self.class_omega.square().sum(-2) / width)
