"""Attention kernels and feature maps. No music, no Hydra, no Lightning."""

from musicgen.attention.base import AttentionKernel, FeatureMap
from musicgen.attention.causal_product import LinearState, causal_linear_attention
from musicgen.attention.feature_maps import ELU, FAVOR, ReLU
from musicgen.attention.linear import LinearAttention
from musicgen.attention.softmax import SoftmaxAttention, SoftmaxState
from musicgen.attention.span import AttentionSpan, GaussianSpan, LayerSpan

__all__ = [
    "ELU",
    "FAVOR",
    "AttentionKernel",
    "AttentionSpan",
    "FeatureMap",
    "GaussianSpan",
    "LayerSpan",
    "LinearAttention",
    "LinearState",
    "ReLU",
    "SoftmaxAttention",
    "SoftmaxState",
    "causal_linear_attention",
]
