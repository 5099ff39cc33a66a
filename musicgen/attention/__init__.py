"""Attention and feature maps. This package knows nothing of music, Hydra or Lightning."""

from musicgen.attention.base import Attention, AttentionMask, FeatureMap
from musicgen.attention.linear.attention import LinearAttention
from musicgen.attention.linear.feature_maps import ELU, FAVOR, ReLU
from musicgen.attention.linear.product import causal_linear_attention
from musicgen.attention.linear.state import LinearState
from musicgen.attention.softmax.attention import SoftmaxAttention
from musicgen.attention.span import GaussianSpan, LayerSpan

__all__ = [
    "ELU",
    "FAVOR",
    "Attention",
    "AttentionMask",
    "FeatureMap",
    "GaussianSpan",
    "LayerSpan",
    "LinearAttention",
    "LinearState",
    "ReLU",
    "SoftmaxAttention",
    "causal_linear_attention",
]
