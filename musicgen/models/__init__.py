"""Models. This package knows nothing of music, Hydra or Lightning."""

from musicgen.models.compatibility import check_compatible
from musicgen.models.copy_attention import CopySettings
from musicgen.models.inputs import SequenceHead
from musicgen.models.state import ModelState
from musicgen.models.transformer import Transformer, parameter_count

__all__ = [
    "CopySettings",
    "ModelState",
    "SequenceHead",
    "Transformer",
    "check_compatible",
    "parameter_count",
]
