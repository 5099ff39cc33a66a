"""Rotary position embedding, as a case of LRPE."""

from __future__ import annotations

from musicgen.position.lrpe import OrthogonalLRPE


class RoPE(OrthogonalLRPE):
    """RoPE (Su et al. 2021, §3.2.2, eq. 15): LRPE's type 2 with P = I and the angles fixed."""

    name = "rope"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        width: int,
        model_dim: int,
        *,
        coordinates: str | int = "index",
    ) -> None:
        sizes = num_layers, num_heads, width, model_dim
        super().__init__(*sizes, basis="identity", learned_angles=False, coordinates=coordinates)
