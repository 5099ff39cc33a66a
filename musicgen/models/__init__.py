"""Models. No music, no Hydra, no Lightning."""

from musicgen.models.compatibility import check_compatible
from musicgen.models.decoder import Decoder
from musicgen.models.transformer import ModelState, Transformer

__all__ = ["Decoder", "ModelState", "Transformer", "check_compatible"]
