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
# An encoding that may act at several sites acts at the one nearest to the attention weights. Random
# features that estimate the softmax are not encoded: they are of encoded queries and keys.
_PREFERENCE = (Site.LOGIT, Site.FEATURE, Site.QUERY_KEY, Site.EMBEDDING)
_PREFERENCE_OF_ESTIMATES = (Site.LOGIT, Site.QUERY_KEY, Site.FEATURE, Site.EMBEDDING)


def check_compatible(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    span: Callable[..., AttentionSpan] | None = None,
    *,
    causal: bool = True,
) -> Site:
    """Return the site at which the encoding will act: its `site`, or the default of the pair.

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
    common = encoding.sites & attention_class.accepts
    if encoding.decays and not attention_class.supports_decay:
        common = frozenset()
    if common:
        return _chosen_site(position, attention, common)
    acts_on = _words(encoding.sites)
    reason = f"acts on {acts_on}, which attention={_name_of(attention)} does not form"
    if encoding.decays and encoding.sites & attention_class.accepts:
        reason = f"has a decay, which attention={_name_of(attention)} does not apply"
    attentions = _attentions(encoding.sites, decays=encoding.decays)
    positions = sorted(
        {
            c.name
            for c in _named_subclasses(PositionalEncoding)
            if c.sites & attention_class.accepts
            and (attention_class.supports_decay or not c.decays)
        }
    )
    cure = f"attention={' or '.join(attentions)}, or " if attentions else ""
    raise UserError(
        f"position={encoding.name} {reason}. Use {cure}position in: {', '.join(positions)}"
    )


def _chosen_site(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    common: frozenset[Site],
) -> Site:
    """Return the encoding's `site` if it is one of `common`, or the default of `common`."""
    settings = _as_partial(position).keywords
    feature_map: Any = _as_partial(_as_partial(attention).keywords.get("feature_map", FeatureMap))
    estimates = feature_map.func.log_features
    preference = _PREFERENCE_OF_ESTIMATES if estimates else _PREFERENCE
    chosen = settings.get("site")
    if chosen is not None and chosen not in common:
        names = " or ".join(site for site in _PREFERENCE if site in common)
        expected = f"expected {names} with attention={_name_of(attention)}"
        if chosen in set(Site) and (others := _attentions(frozenset({Site(chosen)}))):
            expected += f", or attention={' or '.join(others)}, which forms {_ACTS_ON[chosen]}"
        raise ParameterError("position.site", chosen, expected)
    site = next(s for s in preference if s in common and chosen in (None, s))
    normaliser = settings.get("normaliser")
    if normaliser is not None and site != Site.FEATURE:
        expected = "expected null, as it is for encoded features"
        if Site.FEATURE in common:
            expected += "; or use position.site=feature"
        else:
            others = _attentions(frozenset({Site.FEATURE}))
            expected += f"; or use attention={' or '.join(others)} with position.site=feature"
        raise ParameterError("position.normaliser", normaliser, expected)
    return site


def _words(sites: frozenset[Site]) -> str:
    return " or ".join(_ACTS_ON[site] for site in _PREFERENCE if site in sites)


def _attentions(sites: frozenset[Site], *, decays: bool = False) -> list[str]:
    """Return the names of the attentions that accept one of these sites, and a decay."""
    return sorted(
        {
            c.name
            for accepting in _named_subclasses(Attention)
            if accepting.accepts & sites and (accepting.supports_decay or not decays)
            for c in _named_subclasses(FeatureMap if accepting is LinearAttention else accepting)
        }
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
