"""The models that contracts are tested on: every encoding of conf/ with every attention of conf/.

All follows from the files and from what their classes declare: a new encoding needs no entry here.
"""

import copy
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from musicgen.errors import UserError
from musicgen.models import ModelState, Transformer, check_compatible
from musicgen.models.layer import ShortConvolution
from musicgen.random import NoiseKey

CONF = Path(__file__).parents[2] / "conf"
POSITIONS, ATTENTIONS, SPANS = (
    sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in ("position", "attention", "span")
)
ATTENTIONS.remove("favor_decay")  # is favor with decay=head, which is tested with favor
SPANS.remove("none")
TRAINING_LENGTH, VOCAB, NOISE = 40, 30, NoiseKey((7, 1))
# Small, but with several chunks, blocks and filters of positions within reach.
SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "ff_dim": 32, "init_std": 0.3}
SIZES_OF_ENCODINGS = {"training_length": 40, "filter_length": 9, "num_realizations": 12}
# More forms of an encoding, between them with every word that it takes.
MORE = {
    "sine_spe": {"num_realizations": None},
    "lrpe_unitary": {"angles": "linear", "basis": "fourier"},
    "lrpe_orthogonal": {"angles": "harmonic", "mixed": True, "learned_basis": True},
    "lrpe_permutation": {"basis": "odd_even"},
}
# Encodings of each site and way of computing, for settings that do their work elsewhere.
OF_EACH_KIND = ("none", "sinusoidal", "rope", "alibi", "siren", "sine_spe", "conv_spe")
OPTIONS = {"short_conv": 4, "qk_norm": True, "tie_embeddings": True}
COPY = {"heads": 2, "width": 4, "window": 17, "max_lag": 5, "coordinate": "index"}
COPY = {f"copy.{key}": value for key, value in COPY.items()}
MORE_HEADS = OPTIONS | COPY | {"lags": (3, 9)}
HEAD, TOKEN = ({"attention.decay": decay} for decay in ("head", "token"))
# A window of 13 of the 40 tokens seen in training.
SPAN = {"span": "gaussian", "span.sigma": 0.15, "span.training_length": TRAINING_LENGTH}


class Pair(NamedTuple):
    """An encoding, an attention, and settings of the model as (key, value)."""

    position: str
    attention: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return ",".join((*self[:2], *(f"{key}={value}" for key, value in self.settings)))

    @property
    def decays(self) -> bool:
        """Whether the attention has a decay of its own, which is causal."""
        return any(key == "attention.decay" for key, _ in self.settings)


@cache
def load(group: str, name: str) -> DictConfig:
    """Return a file of conf/."""
    config = OmegaConf.load(CONF / group / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config


@cache
def site(position: str, attention: str) -> str | None:
    """Return where an encoding acts under an attention; None: they do not go together."""
    try:
        encoding = get_class(load("position", position)._target_)
        return check_compatible(encoding, instantiate(load("attention", attention)))
    except UserError:
        return None


def forms(position: str) -> list[dict[str, Any]]:
    """Return small settings of an encoding: as in its file, shared or not, gated or not, more."""
    config = load("position", position)
    small = {key: value for key, value in SIZES_OF_ENCODINGS.items() if key in config}
    flags = [flag for flag in ("gated", "shared") if flag in config]
    found = [
        small | dict(zip(flags, values, strict=True))
        for values in product((True, False), repeat=len(flags))
    ]
    if position in MORE:
        found += [form | MORE[position] for form in (found[0], found[-1])]
    return [{f"position.{key}": value for key, value in form.items()} for form in found]


def pair(position: str, attention: str, *settings: dict[str, Any]) -> Pair:
    """Return a pair with an encoding's first form and more settings."""
    merged = forms(position)[0]
    for more in settings:
        merged = merged | more
    return Pair(position, attention, tuple(merged.items()))


def find_pairs() -> list[Pair]:
    """Return all pairs that go together, with the forms and options that concern them."""
    fitting = [(p, a) for p in POSITIONS for a in ATTENTIONS if site(p, a)]
    found = [pair(p, a) for p, a in fitting]
    # Other forms under one attention that encodes queries and keys, and one that projects them.
    found += [pair(p, a, f) for p, a in fitting if a in ("elu", "favor") for f in forms(p)[1:]]
    # Decay is a matter of the causal product alone, and that of a head a case of a token's.
    found += [pair(p, "favor", TOKEN) for p, a in fitting if a == "favor"]
    found += [pair(p, "favor", HEAD) for p in OF_EACH_KIND if site(p, "favor")]
    found += [pair(p, "elu", TOKEN) for p in ("permute", "sine_spe", "rope")]
    spans = [SPAN | {"span": name} for name in SPANS]
    modes = [{"span.mode": mode} for mode in ("multiply", "log")]
    found += [
        pair(p, a, span, mode)
        for p, a in fitting
        for span, mode in product(spans, modes)
        if a == "softmax" and (p in OF_EACH_KIND or mode == modes[0])
    ]
    # The other site than the default. Features that mix can meet where the unencoded ones, which
    # make the normaliser, do not: under FAVOR+ fp32's rounding grows with their ratio.
    for p, a in fitting:
        accepted = get_class(load("attention", a)._target_).accepts
        for other in accepted & get_class(load("position", p)._target_).sites - {site(p, a)}:
            if "site" in load("position", p):
                std = 0.2 if (a, other) == ("favor", "feature") else SIZES["init_std"]
                found.append(pair(p, a, {"position.site": str(other), "init_std": std}))
    found += [pair("lrpe_unitary", "elu", {"position.normaliser": "encoded"})]
    # Options of the model: alone, and all together.
    for option in (OPTIONS | {"cycles": (4, 7), "lags": (3, 9)}).items():
        found += [pair("sinusoidal", a, dict([option])) for a in ("favor", "softmax")]
    found += [pair("none", "favor", {"short_conv": 2})]
    found += [pair("rope", a, COPY) for a in ATTENTIONS] + [pair("none", "favor", MORE_HEADS)]
    for p in ("none", "rope", "sine_spe"):
        for a, *more in (("softmax",), ("favor", TOKEN), ("elu", TOKEN), ("softmax", SPAN)):
            found.append(pair(p, a, OPTIONS, *more))
    return found


PAIRS = find_pairs()


def first_of_each(*settings: str) -> list[Pair]:
    """Return the first pair of each position, attention and value of some settings."""
    found = {(*p[:2], *map(dict(p.settings).get, settings)): p for p in reversed(PAIRS)}
    return [*found.values()]


# For what other settings hardly change, and for what depends on the parts of a state.
_SITES = ("position.site", "attention.decay", "span")
DISTINCT = first_of_each(*_SITES)
WITH_STATES = first_of_each(*_SITES, "short_conv", "copy.heads", "lags", "cycles")


def new(pair: Pair) -> Transformer:
    """Build a small model in evaluation mode."""
    settings = dict(pair.settings)
    parts = {"position": pair.position, "attention": pair.attention}
    if "span" in settings:
        parts["span"] = settings.pop("span")
    files = {group: load(group, name) for group, name in parts.items()}
    config = OmegaConf.create({"_target_": "musicgen.models.Transformer", **SIZES, **files})
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    torch.manual_seed(1)
    model: Transformer = instantiate(config, vocab_size=VOCAB, dropout=0.0, norm_first=True).eval()
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            nn.init.normal_(module.weight, std=0.3)  # not 0, as at first
    return model


@cache
def _built(pair: Pair, device: torch.device) -> Transformer:
    return new(pair)


def build(pair: Pair) -> Transformer:
    """Return a copy of what `new` builds, once on each device."""
    return copy.deepcopy(shared(pair))


def shared(pair: Pair) -> Transformer:
    """Return what `new` builds, once on each device, for tests that leave it as it is."""
    return _built(pair, torch.get_default_device())


def draw(high: int, *shape: int, generator: torch.Generator) -> Tensor:
    """Draw integers below `high`, the same on every device."""
    return torch.randint(high, shape, generator=generator, device="cpu").to(
        torch.get_default_device()
    )


def tokens(length: int, batch: int = 2) -> Tensor:
    return draw(VOCAB, batch, length, generator=torch.Generator().manual_seed(3))


def changed(ids: Tensor, start: int = 25) -> Tensor:
    """Return tokens that differ from a place on."""
    return torch.cat((ids[:, :start], (ids[:, start:] + 1) % VOCAB), dim=1)


def padded(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens with padding behind them, and the mask of what is not padding."""
    longer = torch.cat((ids, torch.zeros(2, 7, dtype=torch.long)), dim=1)
    return longer, torch.arange(longer.shape[1]).expand(2, -1) < ids.shape[1]


def decode(
    model: Transformer, ids: Tensor, state: ModelState | None, positions: Tensor | None = None
) -> Tensor:
    """Return logits, one token at a time."""
    out = []
    for n in range(ids.shape[1]):
        at = None if positions is None else positions[:, n : n + 1]
        options = {"positions": at, "noise": NOISE, "state": state}
        logits, state = model.forward_with_state(ids[:, n : n + 1], **options)
        out.append(logits)
    return torch.cat(out, dim=1)


def assert_all_learn(model: Transformer, ids: Tensor, positions: Tensor | None = None) -> None:
    """Assert that finite gradients reach every parameter."""
    model.train()
    model(ids, positions=positions, noise=NOISE).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
