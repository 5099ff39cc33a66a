"""Elementwise work as one kernel where there is a GPU and a compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor


class Fused:
    """Elementwise work on x [H, B, T, K] and more: on a GPU, compiled into one kernel.

    Without a compiler it runs as it is, which is told once. So do the single tokens of decoding,
    whose steps are captured as a graph.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function, self.works = function, True

    @cached_property
    def compiled(self) -> Callable[..., Tensor]:
        return torch.compile(self.function, dynamic=True)

    @staticmethod
    def pays(x: Tensor) -> bool:
        return x.is_cuda and x.shape[2] > 1

    def __call__(self, x: Tensor, *more: Tensor | None) -> Tensor:
        if self.works and self.pays(x):
            try:
                return self.compiled(x, *more)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may raise
                self.works = False
                reason = (str(error).splitlines() or [""])[0]
                told = f"SPE runs uncompiled: {type(error).__name__}: {reason}"
                warnings.warn(told, stacklevel=2)
        return self.function(x, *more)
