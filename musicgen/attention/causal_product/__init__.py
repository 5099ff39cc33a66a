"""Causal linear attention: out_n = Σ_{m≤n} (q_n·k_m) v_m / Σ_{m≤n} q_n·k_m."""

from musicgen.attention.causal_product.kernels import check_name
from musicgen.attention.causal_product.product import (
    causal_linear_attention,
    linear_attention,
    linear_attention_step,
)
from musicgen.attention.causal_product.state import LinearState

__all__ = [
    "LinearState",
    "causal_linear_attention",
    "check_name",
    "linear_attention",
    "linear_attention_step",
]
