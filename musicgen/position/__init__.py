"""Positional encodings. This package knows nothing of music, Hydra or Lightning."""

from musicgen.position.absolute import Learnable, NoPosition, Sinusoidal
from musicgen.position.base import LayerCode, PositionalEncoding, Site
from musicgen.position.logit.alibi import ALiBi
from musicgen.position.logit.siren import SIREN
from musicgen.position.logit.transformer_xl import TransformerXL
from musicgen.position.rotary.permutation import PermutationLRPE, PermuteFormer
from musicgen.position.rotary.rotation import OrthogonalLRPE, RoPE, UnitaryLRPE
from musicgen.position.spe.base import SPE
from musicgen.position.spe.conv import ConvSPE
from musicgen.position.spe.sine import SineSPE

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
