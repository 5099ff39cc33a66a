"""Positional encodings. This package knows nothing of music, Hydra or Lightning."""

from musicgen.position.absolute import Learnable, NoPosition, Sinusoidal
from musicgen.position.base import LayerCode, PositionalEncoding, Site
from musicgen.position.conv_spe import ConvSPE
from musicgen.position.logit.alibi import ALiBi
from musicgen.position.logit.relative import SIREN, TransformerXL
from musicgen.position.lrpe import PermutationLRPE, PermuteFormer
from musicgen.position.rotation import OrthogonalLRPE, RoPE, UnitaryLRPE
from musicgen.position.sine_spe import SineSPE
from musicgen.position.spe import SPE

__all__ = [
    "SIREN",
    "SPE",
    "ALiBi",
    "ConvSPE",
    "LayerCode",
    "Learnable",
    "NoPosition",
    "OrthogonalLRPE",
    "PermutationLRPE",
    "PermuteFormer",
    "PositionalEncoding",
    "RoPE",
    "SineSPE",
    "Sinusoidal",
    "Site",
    "TransformerXL",
    "UnitaryLRPE",
]
