"""Loading: from a token cache to batches."""

from musicgen.batches import IGNORED, Batch
from musicgen.data.loading.datamodule import MusicDataModule

__all__ = ["IGNORED", "Batch", "MusicDataModule"]
