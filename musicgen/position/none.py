"""No positional encoding: a causal model still knows order through what it may see."""

from __future__ import annotations

from musicgen.position.base import PositionalEncoding, Site


class NoPosition(PositionalEncoding):
    """Leaves embedding, queries and keys as they are."""

    name = "none"
    sites = frozenset({Site.EMBEDDING, Site.QUERY_KEY})
    relative = "exact"
