"""One decoding step as a function of tensors alone, and the state that decoding begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from musicgen.errors import UserError
from musicgen.models import ModelState, Transformer
from musicgen.models.copy_state import EMPTY, CopySettings, CopyState
from musicgen.random import NoiseKey

NO_SCALE = -1e30
"""The logarithm of a scale before the first token: in place of −∞, which JSON does not have."""

RINGS = {
    "copied.keys": ("copied.last_key", 2),
    "copied.bars": ("copied.last_bar", 1),
    "copied.successors": ("tokens", 1),
}
"""The rings of a state, with W slots each, which a step only reads. Of each: the input that the
caller writes into slot number length mod W before a step, and the axis of the slots."""

SLOTS = {name: axis for name, (_, axis) in RINGS.items()} | {"copied.matches": 1}
"""The axis of the slots in all tensors of a state that have one element for each slot."""


class _ReadRing(CopyState):
    """A copy head's state whose ring has the token of this step already: its caller wrote it."""

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        return self


class _CopiedRing(CopyState):
    """A copy head's state whose ring is copied at each step: a graph cannot change an array."""

    def write(self, tokens: Tensor, index: Tensor, *, overwrite: bool = True) -> CopyState:
        slots = torch.arange(self.bars.shape[1])
        here = slots == index[:, None] % (slots[-1:] + 1)  # [B, W]; by a tensor, which ONNX needs
        return self._replace(
            keys=torch.where(here[:, None, :, None], self.last_key[:, :, None], self.keys),
            bars=torch.where(here, self.last_bar[:, None], self.bars),
            successors=torch.where(here, tokens[:, None], self.successors),
        )


class RecurrentStep(nn.Module):
    """One decoding step, from tokens and a state to logits and the changed parts of the state.

    State and settings are dictionaries of tensors. The noise of a stochastic encoding is drawn
    once, into buffers of this module.

    Args:
        model: causal, in evaluation mode.
        key: of the positional encoding's random draws.
        writes_rings: the step writes its token into a copy head's ring and returns the ring; else
            the caller does so beforehand, which is faster, see `RINGS`.

    Attributes:
        template: the state of one sequence before its first token.
        settings: a copy head's `CopySettings` for one sequence, which change nothing; `{}` without
            a copy head.

    Raises:
        UserError: the model's state grows with the number of tokens.
    """

    def __init__(self, model: Transformer, key: NoiseKey, *, writes_rings: bool = False) -> None:
        super().__init__()
        layer: Any = model.layers[0]
        if not layer.attention.has_fixed_state:
            raise UserError(
                f"attention={layer.attention.name} cannot be exported, as its state grows with "
                "each token; export a model of linear attention, such as attention=favor"
            )
        if not model.position.has_fixed_state:
            raise UserError(
                f"position={model.position.name} cannot be exported, as it draws more noise from "
                "token to token; export a model of another encoding, such as position=sine_spe"
            )
        self.model, self.key = model, key
        self.template = first_state(model, key)
        if (copied := self.template.copied) is not None:
            ring = _CopiedRing if writes_rings else _ReadRing
            self.template = replace(self.template, copied=ring(*copied))
        head = model.copy_head
        of_copies = {} if head is None else head.settings(1)._asdict()
        self.settings = {f"copy.{name}": tensor for name, tensor in of_copies.items()}
        self.noise = nn.Module()
        drawn = [x for x in tree_leaves(self.template.position) if isinstance(x, Tensor)]
        for i, tensor in enumerate(drawn):
            self.noise.register_buffer(str(i), tensor)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        state: dict[str, Tensor],
        settings: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [B, V] and the changed tensors of the state.

        Args:
            tokens: ids. [B]
            positions: [B, P]
            state: of B sequences, named as in `ModelState.tensors`.
            settings: of B sequences, named as in `settings`.
        """
        drawn = self.noise.buffers()
        noise = tree_map_only(Tensor, lambda _: next(drawn), self.template.position)
        logits, after = self.model.forward_with_state(
            tokens[:, None],
            positions=positions[:, None],
            noise=self.key,
            state=replace(self.template.replaced(state), position=noise),
            copy_settings=CopySettings(*settings.values()) if settings else None,
        )
        return logits[:, 0], {k: x for k, x in after.tensors().items() if x is not state[k]}


@torch.no_grad()
def first_state(model: Transformer, key: NoiseKey) -> ModelState:
    """Return the state of one sequence before its first token: no sums, no tokens."""
    device = next(model.parameters()).device
    positions = torch.zeros(1, 1, model.num_position_columns, dtype=torch.long, device=device)
    tokens = positions[:, :, 0]
    _, after = model.forward_with_state(tokens, positions=positions, noise=key)
    begin = {"log_scale": NO_SCALE, "bars": EMPTY, "last_bar": EMPTY}
    return after.replaced(
        {
            name: torch.full_like(tensor, begin.get(name.rpartition(".")[2], 0))
            for name, tensor in after.tensors().items()
        }
    )
