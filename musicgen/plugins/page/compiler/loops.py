"""JavaScript text: nested loops over strided views, elements of arrays, numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from musicgen.plugins.page.compiler.views import Array

LETTERS = "oabcdefghijklmn"
"""Parameters of a kernel: `o`, the array that it writes, then those that it reads."""


def elements(places: Sequence[str], first: int = 1) -> list[str]:
    """Return the text of an element of each array that a kernel reads, at these places.

    Args:
        first: number of the parameter that the first place belongs to.
    """
    return [f"{LETTERS[i]}[{place}]" for i, place in enumerate(places, first)]


def literal(value: float) -> str:
    """Return a number or a truth value as JavaScript; negative numbers are in brackets."""
    text = json.dumps(int(value) if isinstance(value, bool) else value)
    return f"({text})" if text.startswith("-") else text


def nested_loops(
    layouts: Sequence[Array], starts: Sequence[str], body: Callable[..., str], counter: str = "i"
) -> str:
    """Return the text of loops over all elements of layouts with equal shapes.

    Dimensions that are adjacent in all of the layouts are merged into one.

    Args:
        starts: text of the first index in each layout.
        body: returns the text inside the loops; its arguments are the index in each layout.
        counter: first letter of the names of the loops' counters.
    """
    dims = _merged_dimensions(layouts)
    text, places = "", list(starts)
    for depth, (size, steps) in enumerate(dims):
        i = f"{counter}{depth}"
        text += f"for(let {i}=0;{i}<{size};{i}++){{"
        for number, step in enumerate(steps):
            if not step:
                continue
            moved = i if step == 1 else f"{i}*{step}"
            places[number] = moved if places[number] == "0" else f"{places[number]}+{moved}"
            if depth < len(dims) - 1:
                text += f"const {i}_{number}={places[number]};"
                places[number] = f"{i}_{number}"
    return text + body(*places) + "}" * len(dims)


def _merged_dimensions(layouts: Sequence[Array]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the size of each dimension to loop over, and its stride in each layout."""
    dims: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(layouts[0].shape):
        steps = tuple(layout.strides[axis] for layout in layouts)
        if size == 1:
            continue
        if dims and all(a == b * size for a, b in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = dims[-1][0] * size, steps
        else:
            dims.append((size, steps))
    return dims
