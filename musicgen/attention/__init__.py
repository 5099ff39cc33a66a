"""Attention and feature maps. This package knows nothing of music, Hydra or Lightning."""

from musicgen.attention.base import Attention, AttentionMask, FeatureMap, redraw_features
from musicgen.attention.causal_product import LinearState
from musicgen.attention.feature_maps import ELU, FAVOR, ReLU
from musicgen.attention.linear import LinearAttention, causal_linear_attention
from musicgen.attention.softmax import SoftmaxAttention
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
    "redraw_features",
]
