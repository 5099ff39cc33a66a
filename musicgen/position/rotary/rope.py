"""RoPE, a case of LRPE; `rotation.py` computes the angles."""

from __future__ import annotations

from typing import Any

from musicgen.position.rotary.rotation import OrthogonalLRPE


class RoPE(OrthogonalLRPE):
    """RoPE (Su et al. 2021, §3.2.2, eq. 15): LRPE's type 2 with P = I and fixed angles."""

    name = "rope"

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, basis="identity", learned_angles=False, **kwargs)
