"""Decoding with torch: the model as it is, or one step as a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
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


class CudaGraphEngine(Engine):
    """Records one step as a CUDA graph, and replays it.

    Args:
        model, noise: as for `Engine`; linear attention only, as the state must not grow.
        warn: called with one line where recording fails; decoding then runs without a graph.
    """

    def __init__(self, model: Transformer, noise: NoiseKey, warn: Callable[[str], object]) -> None:
        super().__init__(model, noise)
        self.warn = warn
        self._graph: _Graph | None = None
        self._failed = False

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: Any,
        copy_settings: CopySettings | None = None,
    ) -> tuple[Tensor, Any]:
        if not self._failed:
            try:
                # Recording takes several steps: a graph also serves down to half of its batch.
                size = 0 if self._graph is None else len(self._graph.tokens)
                if self._graph is None or not size // 2 < len(tokens) <= size:
                    self._graph = _Graph(super().step, tokens, positions, state, copy_settings)
                return self._graph(tokens, positions, state, copy_settings)
            except Exception as error:  # torch raises exceptions of several types
                self._failed = True
                self.warn(f"decoding runs without a CUDA graph: {first_line(error)}")
        return super().step(tokens, positions, state, copy_settings)


class _Graph:
    """One step as a CUDA graph over buffers that hold its inputs, its state and its logits.

    A step that waits for the GPU cannot be recorded and raises `RuntimeError`.
    """

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, ModelState]],
        tokens: Tensor,
        positions: Tensor,
        state: ModelState,
        copy_settings: CopySettings | None,
    ) -> None:
        self.tokens, self.positions = tokens.clone(), positions.clone()
        self.copy_settings = copy_settings
        if copy_settings is not None:
            self.copy_settings = CopySettings(*(part.clone() for part in copy_settings))
        self.state = state.select(torch.arange(len(tokens), device=tokens.device))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries initialise themselves in the first
                    step(self.tokens, self.positions, self.state, self.copy_settings)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits, after = step(self.tokens, self.positions, self.state, self.copy_settings)
            _copy(after, self.state)

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: ModelState,
        copy_settings: CopySettings | None,
    ) -> tuple[Tensor, ModelState]:
        """Run the step; ignore further sequences of the returned state."""
        batch = len(tokens)
        if state is not self.state:
            _copy(state, self.state)
        self.tokens[:batch].copy_(tokens)
        self.positions[:batch].copy_(positions)
        if self.copy_settings is not None and copy_settings is not None:
            for buffer, new in zip(self.copy_settings, copy_settings, strict=True):
                buffer[:batch].copy_(new)
        self.graph.replay()
        return self.logits[:batch], self.state


def _copy(source: ModelState, target: ModelState) -> None:
    """Copy a state of linear attention to the first sequences of another."""
    batch = len(source.length)
    new = source.tensors()
    for name, old in target.tensors().items():
        old[:batch].copy_(new[name])
