"""Models. No music, no Hydra, no Lightning."""

from musicgen.models.compatibility import check_compatible
from musicgen.models.transformer import ModelState, Transformer

__all__ = ["ModelState", "Transformer", "check_compatible"]
