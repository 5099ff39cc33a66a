"""A copy head beside a trained model."""

from __future__ import annotations

from typing import Any

from musicgen.adapters.base import Adapter
from musicgen.models import Transformer


class Copy(Adapter):
    """Train a `CopyHead` on a model's output, so that it returns to what the piece has had.

    Args:
        settings: arguments of the head, such as `window`.
    """

    name = "copy"
    marker = "copy_head."

    def __init__(self, **settings: int | str) -> None:
        self.settings = settings

    def attach(self, model: Transformer) -> None:
        model.requires_grad_(False)
        model.add_copy_head(self.settings)
        model.to(model.head.weight.device)

    def merge(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {**settings, "copy": self.settings}
