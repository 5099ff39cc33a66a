"""Check that positional encoding, attention and span go together, before anything is built."""

import inspect
from collections.abc import Callable, Iterable, Iterator
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
# An encoding that may act at several sites acts at the one nearest to the attention weights. Random
# features that estimate the softmax are not encoded: they are of encoded queries and keys.
_PREFERENCE = (Site.LOGIT, Site.FEATURE, Site.QUERY_KEY, Site.EMBEDDING)
_PREFERENCE_OF_ESTIMATES = (Site.LOGIT, Site.QUERY_KEY, Site.FEATURE, Site.EMBEDDING)


def check_compatible(
    position: Callable[..., PositionalEncoding],
    attention: Callable[..., Attention],
    span: Callable[..., GaussianSpan] | None = None,
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
    name = _name_of(attention)
    if span is not None and not attention_class.supports_span:
        names = _names(c for c in _named_subclasses(Attention) if c.supports_span)
        raise UserError(
            f"span={_name_of(span)} limits which keys a query sees, but attention={name} sums over "
            f"all keys first. Use attention={' or '.join(names)}, or span=none"
        )
    if _fit(encoding, attention_class):
        return _chosen_site(position, attention, encoding.sites & attention_class.accepts)
    if encoding.sites & attention_class.accepts:
        reason = f"has a decay, which attention={name} does not apply"
    else:
        acts_on = " or ".join(_ACTS_ON[site] for site in _PREFERENCE if site in encoding.sites)
        reason = f"acts on {acts_on}, which attention={name} does not form"
    attentions = _attentions(lambda accepting: _fit(encoding, accepting))
    cure = f"attention={' or '.join(attentions)}, or " if attentions else ""
    fitting = (c for c in _named_subclasses(PositionalEncoding) if _fit(c, attention_class))
    raise UserError(
        f"position={encoding.name} {reason}. Use {cure}position in: {', '.join(_names(fitting))}"
    )


def _fit(encoding: Any, attention: Any) -> bool:
    """Return whether a class of attention accepts what a class of encodings does."""
    decays = attention.supports_decay or not encoding.decays
    return bool(encoding.sites & attention.accepts) and decays


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
        if others := _attentions(lambda a: chosen in a.accepts):
            expected += f", or attention={' or '.join(others)}"
        raise ParameterError("position.site", chosen, expected)
    site = next(s for s in preference if s in common and chosen in (None, s))
    normaliser = settings.get("normaliser")
    if normaliser is not None and site != Site.FEATURE:
        linear = " or ".join(_attentions(lambda a: Site.FEATURE in a.accepts))
        expected = f"expected null; it is for position.site=feature with attention={linear}"
        raise ParameterError("position.normaliser", normaliser, expected)
    return site


def _attentions(accepts: Callable[[Any], bool]) -> list[str]:
    """Return the names of the attentions whose class is accepted; linear ones' feature maps'."""
    return _names(
        c
        for attention in _named_subclasses(Attention)
        if accepts(attention)
        for c in _named_subclasses(FeatureMap if attention is LinearAttention else attention)
    )


def _names(classes: Iterable[Any]) -> list[str]:
    return sorted({c.name for c in classes})


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
