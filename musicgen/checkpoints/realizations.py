"""Change the number of realizations of a trained model with a stochastic positional encoding."""

from __future__ import annotations

from dataclasses import replace

from musicgen.attention import FeatureMap
from musicgen.checkpoints.building import build
from musicgen.checkpoints.content import CheckpointContent
from musicgen.errors import ParameterError
from musicgen.models import Transformer
from musicgen.position import SPE
from musicgen.random import NoiseKey, RandomStream
from musicgen.validation import check_int


def with_realizations(
    model: Transformer, content: CheckpointContent, num_realizations: int | None, *, seed: int = 0
) -> tuple[Transformer, CheckpointContent]:
    """Return the model, in evaluation mode, with another number R of realizations, and its content.

    No trained weight depends on R. Random features do, as R is the width of encoded queries and
    keys: they are drawn anew, as many as in training, unless R is the trained one.

    Args:
        content: of the model's checkpoint.
        num_realizations: None is the exact limit, which only sine_spe has.
        seed: of the random features.

    Raises:
        UserError: the encoding has no realizations, or no exact limit.
    """
    check_int("num_realizations", num_realizations, none_means="the exact limit")
    if not isinstance(model.position, SPE):
        expected = "the model's positional encoding has no realizations; only SPE has"
        raise ParameterError("num_realizations", num_realizations, expected)
    if num_realizations == model.position.num_realizations:
        return model, content
    config = dict(content.model)
    config["position"] = {**config["position"], "num_realizations": num_realizations}
    attention = config["attention"]
    feature_map = attention.get("feature_map") or {}
    if "num_features" in feature_map:
        num_features = next(m.feature_dim for m in model.modules() if isinstance(m, FeatureMap))
        feature_map = {**feature_map, "num_features": num_features}
        config["attention"] = {**attention, "feature_map": feature_map}
    changed: Transformer = build(
        config,
        Transformer,
        vocab_size=model.head.out_features,
        match_classes=model.match_classes,
    )
    weights = model.state_dict()
    key = NoiseKey((seed, RandomStream.FEATURE_REDRAW))
    maps = (m for m in changed.named_modules() if isinstance(m[1], FeatureMap))
    for i, (name, module) in enumerate(maps):
        module.redraw(key.fold(i))
        weights |= {f"{name}.{each}": tensor for each, tensor in module.named_buffers()}
    changed.load_state_dict(weights)
    return changed.to(model.head.weight.device).eval(), replace(content, model=config)
