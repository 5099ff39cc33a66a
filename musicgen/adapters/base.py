"""The interface of adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from musicgen.models import Transformer


class Adapter(ABC):
    """Few trainable weights that are added to a trained model, whose own are frozen.

    Attributes:
        marker: part of the names of these weights in the model's state, and of no others.
    """

    name: ClassVar[str]  # on the command line
    marker: ClassVar[str]

    @abstractmethod
    def attach(self, model: Transformer) -> None:
        """Freeze the model's weights, and add the adapter's, which change little or nothing yet.

        Raises:
            UserError: the model cannot have this adapter.
        """

    def initialise(self, model: Transformer, tokens: Tensor, positions: Tensor) -> None:  # noqa: B027
        """Choose the first weights from data: [N, L] ids, at positions [N, L, P]."""

    def finish(self, model: Transformer) -> None:  # noqa: B027
        """Prepare a trained model for generation."""

    def merge(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Return the settings of a finished model that has no adapter, by those of the model.

        None: it has one.
        """
        return None

    def changed(self, own: Iterable[str]) -> list[str]:
        """Return the names of the model's weights that `finish` changes, by those of its own."""
        return []

    def base(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's weights in the state of a model that it is attached to."""
        return {name: tensor for name, tensor in weights.items() if self.marker not in name}

    def own(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the adapter's own weights in the state of a model."""
        return {name: tensor for name, tensor in weights.items() if self.marker in name}
