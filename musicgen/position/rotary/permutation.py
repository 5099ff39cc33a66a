"""LRPE of type 3, which permutes features, and PermuteFormer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.position.rotary.lrpe import LRPE
from musicgen.validation import check_bool


class PermutationLRPE(LRPE):
    """LRPE of type 3: Λ^(s) permutes x_j -> x_{π^s(j)}, with a random π for each head (eq. 24).

    Raises:
        ParameterError: there is more than one coordinate.
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
        exponents = positions[:, :, None].long()  # [1|B, L, 1, 1], may be negative
        place = start + (offset + exponents) % length
        index = order.expand_as(place).gather(-1, place)  # π^s(j): [1|B, L, H, M]
        return lambda x: x.gather(-1, index.expand(x.shape[0], -1, -1, -1))


class PermuteFormer(PermutationLRPE):
    """PermuteFormer (Chen 2021): LRPE's type 3 with P = I, and a decay in causal attention.

    The paper encodes queries by (r P_π)^s and keys by (r⁻¹ P_π)^s, which weights the pair (n, m)
    of tokens by r^(n − m). Here the causal product applies r^(n − m), where it cannot overflow.
    Head h has r = sigmoid(2 + 3h/H), as in the paper's language models. n − m is always a number of
    tokens. Softmax attention has no decay; use `PermutationLRPE` with the identity basis there.

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
        [4, M]. Row 0 has the elements, cycle by cycle, in the order in which the permutation visits
        them. For each element j, row 1 has the start of its cycle in row 0, row 2 the length of
        the cycle, and row 3 the offset of j within it.
    """
    if permutation.is_meta:
        return torch.empty(4, len(permutation), dtype=torch.long, device="meta")
    image = permutation.tolist()
    order: list[int] = []
    places: dict[int, tuple[int, int, int]] = {}  # of each element: start, length, offset
    for first in range(len(image)):
        if first not in places:
            cycle = [first]
            while (element := image[cycle[-1]]) != first:
                cycle.append(element)
            places |= {element: (len(order), len(cycle), i) for i, element in enumerate(cycle)}
            order += cycle
    starts, lengths, offsets = zip(*(places[j] for j in range(len(image))), strict=True)
    return torch.tensor([order, starts, lengths, offsets])
