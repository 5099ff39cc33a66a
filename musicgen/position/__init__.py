"""Positional encodings: positions in, one code per layer out. No music, no Hydra, no Lightning."""

from musicgen.position.absolute import Learnable, Sinusoidal
from musicgen.position.alibi import ALiBi
from musicgen.position.base import LayerCode, NoiseKey, PositionalEncoding, Projection, Site
from musicgen.position.conv_spe import ConvSPE
from musicgen.position.lrpe import LRPE, OrthogonalLRPE, PermutationLRPE, UnitaryLRPE
from musicgen.position.none import NoPosition
from musicgen.position.permute import PermuteFormer
from musicgen.position.relative import LagTable, RelativeCode, RelativeEncoding
from musicgen.position.rope import RoPE
from musicgen.position.sine_spe import SineSPE
from musicgen.position.siren import SIREN
from musicgen.position.spe import SPE
from musicgen.position.transformer_xl import TransformerXL

__all__ = [
    "LRPE",
    "SIREN",
    "SPE",
    "ALiBi",
    "ConvSPE",
    "LagTable",
    "LayerCode",
    "Learnable",
    "NoPosition",
    "NoiseKey",
    "OrthogonalLRPE",
    "PermutationLRPE",
    "PermuteFormer",
    "PositionalEncoding",
    "Projection",
    "RelativeCode",
    "RelativeEncoding",
    "RoPE",
    "SineSPE",
    "Sinusoidal",
    "Site",
    "TransformerXL",
    "UnitaryLRPE",
]
