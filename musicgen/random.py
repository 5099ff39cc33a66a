"""Random draws that depend only on a key, not on earlier draws."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class RandomStream(IntEnum):
    """Ids of independent random streams under one seed."""

    CANDIDATE = -6
    PERFORMANCE = -5
    EVALUATION = -4
    DROPOUT = -3
    SAMPLING = -2
    FEATURE_REDRAW = -1
    SPE_CODE = 0
    SPE_GATE = 1


@dataclass(frozen=True)
class NoiseKey:
    """The key of a random draw: the same words give the same numbers.

    A draw therefore survives resuming, activation checkpointing and chunking, and decoding token
    by token sees the noise of one parallel pass.
    """

    words: tuple[int, ...]

    @staticmethod
    def fresh() -> NoiseKey:
        """Draw a new key from torch's global generator, which `torch.manual_seed` seeds."""
        return NoiseKey((int(torch.randint(2**62, (), device="cpu")),))

    def fold(self, *words: int) -> NoiseKey:
        """Derive the key of a part of the computation, such as a layer."""
        return NoiseKey(self.words + words)

    @property
    def seed(self) -> int:
        """Return a 63-bit hash of the words."""
        words = tuple(int(word) for word in self.words)  # without the names of RandomStream
        digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator on `device`, seeded by this key."""
        return torch.Generator(device).manual_seed(self.seed)

    def normal(self, *shape: int, device: torch.device | str) -> Tensor:
        """Draw standard normal fp32 numbers of the given shape."""
        generator = self.generator(device)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
