"""Checks that positional encoding, attention and span are compatible, before they are built."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from musicgen.attention import Attention, FeatureMap, GaussianSpan, LinearAttention
from musicgen.errors import ParameterError, UserError
from musicgen.position import PositionalEncoding, Site

_ACTS_ON = {
    Site.EMBEDDING: "the embedding",
    Site.QUERY_KEY: "queries and keys",
    Site.FEATURE: "feature maps",
    Site.LOGIT: "attention logits",
}
# An encoding that may act at several sites acts at the one nearest to the attention weights. The
# exception are random features that estimate the softmax: queries and keys are encoded before them.
_PREFERENCE = (Site.LOGIT, Site.FEATURE, Site.QUERY_KEY, Site.EMBEDDING)
_PREFERENCE_OF_ESTIMATES = (Site.LOGIT, Site.QUERY_KEY, Site.FEATURE, Site.EMBEDDING)


def check_compatible(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    span: Callable[..., GaussianSpan] | None = None,
    *,
    causal: bool = True,
    norm: str = "layer",
) -> Site:
    """Return the site at which the encoding will act: its `site`, or the default of the pair.

    Args:
        position, attention, span: classes, or partials of them, as in the configuration.
        causal: whether the model is causal.
        norm: see `LayerSettings`.

    Raises:
        UserError: they are not compatible. The message lists the compatible classes among all that
            are imported, also from other packages.
    """
    encoding, settings = _unwrap(position)
    kind, options = _unwrap(attention)
    feature_map = _unwrap(options.get("feature_map", FeatureMap))[0]
    name, decay = _name_of(attention), options.get("decay", "none")
    if not causal and decay != "none":
        expected = "expected none with causal=false, as decay needs a direction"
        raise ParameterError("attention.decay", decay, expected)
    if causal and norm == "batch":  # a token would depend on later ones
        raise ParameterError("norm", norm, "expected layer with causal=true")
    if span is not None and not kind.supports_span:
        raise UserError(
            f"span={_name_of(span)} limits which keys a query sees, but attention={name} sums over "
            f"all keys first. Use attention={_attentions(lambda a: a.supports_span)}, or span=none"
        )
    common = encoding.sites & kind.accepts
    decays = encoding.decays and causal and settings.get("decay", True)
    if not common or (decays and not kind.supports_decay):
        acts_on = " or ".join(_ACTS_ON[site] for site in _PREFERENCE if site in encoding.sites)
        reason = f"acts on {acts_on}, which attention={name} does not form"
        if common:
            reason = f"has a decay, which attention={name} does not apply"
        attentions = _attentions(lambda a: _fit(encoding, a))
        cure = f"attention={attentions}, or " if attentions else ""
        fitting = _names(c for c in _named_subclasses(PositionalEncoding) if _fit(c, kind))
        raise UserError(
            f"position={encoding.name} {reason}. Use {cure}position in: {', '.join(fitting)}"
        )
    preference = _PREFERENCE_OF_ESTIMATES if feature_map.log_features else _PREFERENCE
    sites = [site for site in preference if site in common]
    chosen, normaliser = settings.get("site"), settings.get("normaliser")
    if chosen not in (None, *sites):
        expected = f"expected {' or '.join(sites)} with attention={name}"
        if others := _attentions(lambda a: chosen in a.accepts):
            expected += f", or attention={others}"
        raise ParameterError("position.site", chosen, expected)
    site = sites[0] if chosen is None else Site(chosen)
    if normaliser is not None and site != Site.FEATURE:
        linear = _attentions(lambda a: Site.FEATURE in a.accepts)
        expected = f"expected null; it is for position.site=feature with attention={linear}"
        raise ParameterError("position.normaliser", normaliser, expected)
    return site


def _fit(encoding: Any, attention: Any) -> bool:
    """Return whether a class of attention supports a class of encodings."""
    decays = attention.supports_decay or not encoding.decays
    return bool(encoding.sites & attention.accepts) and decays


def _attentions(accepts: Callable[[Any], bool]) -> str:
    """Return the names of all accepted kinds of attention, with feature maps for linear ones."""
    return " or ".join(
        _names(
            c
            for attention in _named_subclasses(Attention)
            if accepts(attention)
            for c in _named_subclasses(FeatureMap if attention is LinearAttention else attention)
        )
    )


def _names(classes: Iterable[Any]) -> list[str]:
    return sorted({c.name for c in classes})


def _unwrap(build: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the class of a partial and its arguments, or a class itself and no arguments."""
    return (build.func, build.keywords) if isinstance(build, partial) else (build, {})


def _name_of(build: Any) -> str:
    """Return the name on the command line; for linear attention, that is its feature map."""
    named, options = _unwrap(build)
    return str(_unwrap(options.get("feature_map", named))[0].name)


def _named_subclasses(base: Any) -> Iterator[Any]:
    """Yield the concrete classes with a name at and below a base."""
    if hasattr(base, "name") and not inspect.isabstract(base):
        yield base
    for cls in base.__subclasses__():
        yield from _named_subclasses(cls)
