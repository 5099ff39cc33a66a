"""Decoding with the model as it is, and the interface of decoding engines."""

from typing import Any

from torch import Tensor

from musicgen.models import CopySettings, ModelState, Transformer
from musicgen.random import NoiseKey


class Engine:
    """Decodes with a model: a prefill in one parallel pass, then one token per sequence and step.

    Steps run uncompiled, on any device, with any attention; other engines override `step`.

    Args:
        model: causal, in evaluation mode.
        noise: key of the positional encoding's random draws, for all sequences and steps.
    """

    def __init__(self, model: Transformer, noise: NoiseKey) -> None:
        self.model, self.noise = model, noise
        self.device = next(model.parameters()).device

    def prefill(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ModelState]:
        """Return the logits [B, V] after prompts [B, L] at positions [B, L, P], and the state."""
        logits, state = self.model.forward_with_state(
            tokens, positions=positions, noise=self.noise, last=True
        )
        return logits[:, 0], state

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: Any,
        copy_settings: CopySettings | None = None,
    ) -> tuple[Tensor, Any]:
        """Return the logits [B, V] after tokens [B] at positions [B, P], and the state.

        The engine may overwrite the state that it receives, from `prefill` or from the last step.
        What it returns may be of its own kind, with the method `select` of a `ModelState`.
        """
        logits, state = self.model.forward_with_state(
            tokens[:, None],
            positions=positions[:, None],
            noise=self.noise,
            state=state,
            copy_settings=copy_settings,
            overwrite=True,
        )
        return logits[:, 0], state


def first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {' '.join(line.split())}"
