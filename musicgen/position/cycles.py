"""Powers of permutations, by walking along their cycles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Cycles(NamedTuple):
    """A permutation π of M elements as its cycles, one behind the other: [M] each."""

    order: Tensor  # the elements in the order in which π walks through them, cycle by cycle
    start: Tensor  # where in `order` the cycle of element j begins
    length: Tensor  # how long it is
    step: Tensor  # how far along it j lies

    @staticmethod
    def of(permutation: Tensor) -> Cycles:
        """The cycles of j -> permutation[j]."""
        image = permutation.tolist()
        order: list[int] = []
        start, length, step = ([0] * len(image) for _ in range(3))
        seen = [False] * len(image)
        for first in range(len(image)):
            cycle = []
            element = first
            while not seen[element]:
                seen[element] = True
                cycle.append(element)
                element = image[element]
            for i, element in enumerate(cycle):
                start[element], length[element], step[element] = len(order), len(cycle), i
            order += cycle
        return Cycles(*(torch.tensor(x) for x in (order, start, length, step)))


def power(cycles: Tensor, exponents: Tensor) -> Tensor:
    """π_h^s(j) for exponents s of either sign: cycles [4, H, M], s [..., 1, 1] -> [..., H, M].

    The cost does not depend on s.
    """
    order, start, length, step = cycles
    places = start + (step + exponents) % length
    return order.expand_as(places).gather(-1, places)
