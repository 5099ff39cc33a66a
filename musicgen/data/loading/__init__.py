"""Loading: from a token cache to batches."""

from musicgen.data.loading.datamodule import MusicDataModule

__all__ = ["MusicDataModule"]
