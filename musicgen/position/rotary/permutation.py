"""LRPE's type 3, which permutes features, and PermuteFormer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.position.rotary.lrpe import LRPE
from musicgen.validation import check_bool


class PermutationLRPE(LRPE):
    """Type 3: Λ^(s) = (I)_{π^s}, x_j -> x_{π^s(j)}, with a random π for each head (eq. 24).

    Raises:
        ValueError: `coordinates` are several.
    """

    name = "lrpe_permutation"
    keeps_sign = True
    cycles: Tensor  # [4, codes, H, M]

    def __init__(self, *args: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.num_dims > 1:
            expected = (
                "expected index or time or another name alone, as a permutation has one power; "
                "rope takes several"
            )
            raise ParameterError("coordinates", kwargs["coordinates"], expected)
        count = self.num_codes * self.num_heads
        drawn = [find_cycles(torch.randperm(self.width)) for _ in range(count)]
        cycles = torch.stack(drawn, dim=1).unflatten(1, (self.num_codes, self.num_heads))
        self.register_buffer("cycles", cycles)

    def transform(self, positions: Tensor, code: int) -> Callable[[Tensor], Tensor]:
        order, start, length, offset = self.cycles[:, code]  # [H, M] each
        exponents = positions[:, :, None].long()  # [1|B, L, 1, 1], of either sign
        place = start + (offset + exponents) % length
        index = order.expand_as(place).gather(-1, place)  # π^s(j): [1|B, L, H, M]
        return lambda x: x.gather(-1, index.expand(x.shape[0], -1, -1, -1))


class PermuteFormer(PermutationLRPE):
    """PermuteFormer (Chen 2021): LRPE's type 3 with P = I, and a decay in causal attention.

    The paper encodes queries by (r P_π)^s and keys by (r⁻¹ P_π)^s, which weights the pair (n, m)
    of tokens by r^(n − m). Here the causal product applies r^(n − m), where it cannot overflow.
    Head h has r = sigmoid(2 + 3h/H), as in the paper's language models. The decay always counts
    tokens. Softmax attention, which has no decay, takes `PermutationLRPE` in the identity basis.

    Args:
        decay: False sets r = 1. Bidirectional attention never decays.
    """

    name = "permute"
    decays = True

    def __init__(self, *args: int, decay: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, basis="identity", **kwargs)
        check_bool("decay", decay)
        self.decay = decay

    def log_decay(self) -> Tensor | None:
        if not self.decay:
            return None
        heads = torch.arange(self.num_heads, device=self.cycles.device)
        return F.logsigmoid(2 + 3 * heads / self.num_heads)


def find_cycles(permutation: Tensor) -> Tensor:
    """Return the cycles of the permutation j -> permutation[j] of M elements.

    Returns:
        [4, M]: the elements, cycle by cycle, in the order in which the permutation visits them;
        then for each element j the start of its cycle in that order, the cycle's length, and the
        offset of j within it.
    """
    if permutation.is_meta:
        return torch.empty(4, len(permutation), dtype=torch.long, device="meta")
    image = permutation.tolist()
    order: list[int] = []
    rows: dict[int, tuple[int, int, int]] = {}
    for first in range(len(image)):
        if first not in rows:
            cycle = [first]
            while (element := image[cycle[-1]]) != first:
                cycle.append(element)
            rows |= {element: (len(order), len(cycle), i) for i, element in enumerate(cycle)}
            order += cycle
    return torch.tensor([order, *zip(*(rows[j] for j in range(len(image))), strict=True)])
