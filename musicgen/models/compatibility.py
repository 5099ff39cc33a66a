"""Whether positional encoding, attention and span go together: decided before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from musicgen.attention import AttentionKernel, AttentionSpan, FeatureMap, LinearAttention
from musicgen.errors import UserError
from musicgen.position import PositionalEncoding, Site

_ACTS_ON = {
    Site.EMBEDDING: "the embedding",
    Site.QUERY_KEY: "queries and keys",
    Site.FEATURE: "feature maps",
    Site.LOGIT: "attention logits",
}
# Where an encoding may act at several sites, the one nearest to the attention weights.
_PREFERENCE = (Site.LOGIT, Site.FEATURE, Site.QUERY_KEY, Site.EMBEDDING)


def check_compatible(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., AttentionKernel],
    span: Callable[..., AttentionSpan] | None = None,
    *,
    causal: bool = True,
) -> Site:
    """The site at which the encoding will act.

    Args:
        position, attention, span: classes, or partials of them, as the configuration gives them.
        causal: whether a token sees only those before it.

    Raises:
        UserError: they do not go together; names both settings and the cure.
    """
    decay = attention.keywords.get("decay", "none") if isinstance(attention, partial) else "none"
    if not causal and decay != "none":
        raise UserError(
            f"model.attention.decay={decay} weighs by how long ago a token was, which "
            "model.causal=false has no direction for. Use model.attention.decay=none"
        )
    encoding, kernel = _class_of(position), _class_of(attention)
    if span is not None and not kernel.supports_span:
        able = sorted(c.name for c in _concrete(AttentionKernel) if c.supports_span)
        raise UserError(
            f"span={_class_of(span).name} limits which keys a query meets, but attention="
            f"{_word(attention)} sums all keys up first. Use attention={' or '.join(able)}, or "
            "span=none"
        )
    common = encoding.sites & kernel.accepts
    if common:
        return next(site for site in _PREFERENCE if site in common)
    sites = " or ".join(_ACTS_ON[site] for site in _PREFERENCE if site in encoding.sites)
    fitting = [c for c in _concrete(AttentionKernel) if c.accepts & encoding.sites]
    kernels = sorted(word for c in fitting for word in _words(c))
    positions = sorted(c.name for c in _concrete(PositionalEncoding) if c.sites & kernel.accepts)
    cure = f"attention={' or '.join(kernels)}, or " if kernels else ""
    raise UserError(
        f"position={encoding.name} acts on {sites}, which attention={_word(attention)} does not "
        f"form. Use {cure}position in: {', '.join(positions)}"
    )


def _class_of(build: Any) -> Any:
    return build.func if isinstance(build, partial) else build


def _word(build: Any) -> str:
    """The word for an attention: linear attention goes by its feature map."""
    feature_map = build.keywords.get("feature_map") if isinstance(build, partial) else None
    return str(_class_of(feature_map or build).name)


def _words(kernel: Any) -> list[str]:
    """The words for a kernel with any of its feature maps."""
    return [c.name for c in (_concrete(FeatureMap) if kernel is LinearAttention else [kernel])]


def _concrete(base: Any) -> Iterator[Any]:
    """The classes of ours below a base that have a word on the command line."""
    for cls in base.__subclasses__():
        ours = cls.__module__.startswith("musicgen.")
        if ours and not inspect.isabstract(cls) and hasattr(cls, "name"):
            yield cls
        yield from _concrete(cls)
