"""Check that positional encoding, attention and span go together, before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from musicgen.attention import Attention, AttentionSpan, FeatureMap, LinearAttention
from musicgen.errors import ParameterError, UserError
from musicgen.position import PositionalEncoding, Site

_ACTS_ON = {
    Site.EMBEDDING: "the embedding",
    Site.QUERY_KEY: "queries and keys",
    Site.FEATURE: "feature maps",
    Site.LOGIT: "attention logits",
}
# An encoding that may act at several sites acts at the one nearest to the attention weights.
_PREFERENCE = (Site.LOGIT, Site.FEATURE, Site.QUERY_KEY, Site.EMBEDDING)


def check_compatible(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    span: Callable[..., AttentionSpan] | None = None,
    *,
    causal: bool = True,
) -> Site:
    """Return the site at which the encoding will act.

    Args:
        position, attention, span: classes, or partials of them, as the configuration gives them.

    Raises:
        ValueError: they do not go together. The cure in the message names all classes that are
            imported, those of other packages included.
    """
    decay = _as_partial(attention).keywords.get("decay", "none")
    if not causal and decay != "none":
        expected = "expected none with causal=false, as decay needs a direction"
        raise ParameterError("attention.decay", decay, expected)
    encoding: Any = _as_partial(position).func
    attention_class: Any = _as_partial(attention).func
    if span is not None and not attention_class.supports_span:
        names = sorted({c.name for c in _named_subclasses(Attention) if c.supports_span})
        raise UserError(
            f"span={_name_of(span)} limits which keys a query sees, but attention="
            f"{_name_of(attention)} sums over all keys first. Use attention={' or '.join(names)}, "
            "or span=none"
        )
    if common := encoding.sites & attention_class.accepts:
        return next(site for site in _PREFERENCE if site in common)
    sites = " or ".join(_ACTS_ON[site] for site in _PREFERENCE if site in encoding.sites)
    attentions = sorted(
        {
            c.name
            for accepting in _named_subclasses(Attention)
            if accepting.accepts & encoding.sites
            for c in _named_subclasses(FeatureMap if accepting is LinearAttention else accepting)
        }
    )
    positions = sorted(
        {c.name for c in _named_subclasses(PositionalEncoding) if c.sites & attention_class.accepts}
    )
    cure = f"attention={' or '.join(attentions)}, or " if attentions else ""
    raise UserError(
        f"position={encoding.name} acts on {sites}, which attention={_name_of(attention)} does not "
        f"form. Use {cure}position in: {', '.join(positions)}"
    )


def _as_partial(build: Callable[..., Any]) -> partial[Any]:
    return build if isinstance(build, partial) else partial(build)


def _name_of(build: Any) -> str:
    """Return the name on the command line; linear attention has its feature map's."""
    build = _as_partial(build)
    named: Any = _as_partial(build.keywords.get("feature_map", build.func)).func
    return str(named.name)


def _named_subclasses(base: Any) -> Iterator[Any]:
    """Yield the concrete classes with a name at and below a base."""
    if hasattr(base, "name") and not inspect.isabstract(base):
        yield base
    for cls in base.__subclasses__():
        yield from _named_subclasses(cls)
