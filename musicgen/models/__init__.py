"""Models. This package knows nothing of music, Hydra or Lightning."""

from musicgen.models.compatibility import check_compatible
from musicgen.models.transformer import ModelState, Transformer, parameter_count

__all__ = ["ModelState", "Transformer", "check_compatible", "parameter_count"]
