"""The recipes of the models that come with the package."""

from __future__ import annotations

import pytest
from hydra.utils import instantiate

from benchmarks.pretrained import MAX_MEGABYTES, MODELS
from musicgen.models import parameter_count


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_are_small_and_compose_their_data(config, name):
    cfg = config("train", f"experiment=pretrained/{name.replace('-', '_')}")
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    assert 2 * parameter_count(model) / 1e6 < MAX_MEGABYTES  # two bytes a weight
    assert cfg.data._target_.endswith("ComposedCorpus")
    assert cfg.data.kind == MODELS[name]
    assert tokenizer.name == {"pop": "remi", "groove": "groove2groove"}[cfg.data.kind]
