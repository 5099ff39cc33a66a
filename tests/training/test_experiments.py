"""The experiments have the published settings, and these reach what they set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks.pretrained import MAX_MEGABYTES, MODELS
from musicgen.cli.build import build_data
from musicgen.models.transformer import parameter_count


def experiments(name):
    paths = sorted((Path(__file__).parents[2] / "conf/experiment" / name).glob("*.yaml"))
    return [p for p in paths if not p.stem.endswith("_base") and not p.stem.startswith("lra_")]


def published(name):
    """Published settings of an experiment (Liutkus et al. 2021, §3 and supplement C; their code)."""
    method = name.partition("/")[2]
    expected = {
        "model.num_layers": 24,
        "model.num_heads": 8,
        "model.dropout": 0.1,
        "trainer.precision": "32-true",
        "trainer.gradient_clip_val": 0.5,
    }
    if method.startswith("groove"):
        expected |= {
            "trainer.max_steps": 24 * math.ceil(5522 / 10),
            "scheduler.max_steps": 43000,
            "scheduler.warmup_steps": 1000,
            "scheduler.min_lr": 2e-5,
            "optimizer.lr": 4e-4,
            "loader.window": "beginning",
            "tokenizer.max_transposition": 5,
            "sampling.temperature": 0.6,
        }
        shape = (512, 10, 794)
    else:
        ape = method == "pop_piano_ape"
        expected |= {
            "trainer.max_steps": (160 if ape else 140) * math.ceil(1572 / 4),
            "scheduler.max_steps": 62880 if ape else 55020,
            "scheduler.warmup_steps": 200,
            "scheduler.min_lr": 5e-6,
            "optimizer.lr": 1e-4 if ape else 2e-4,
            "model.layer_dropout": 0.0 if ape else None,
            "loader.window": "random",
            "tokenizer.max_transposition": 6,
            "sampling.temperature": 1.2,
            "sampling.top_p": 0.9,
        }
        shape = (2048, 4, 360)
    if "spe" in method:
        expected |= {"model.position.num_realizations": 64}
        expected |= {"model.position.gated": "ungated" not in method}
    if "sine_spe" in method:
        expected |= {"model.position.num_sines": 8 if method.startswith("groove") else 5}
    if "conv_spe" in method:
        expected |= {"model.position.filter_length": 512 if "ungated" in method else 128}
    return expected, shape


@pytest.mark.parametrize("path", experiments("spe2021"), ids=lambda path: path.stem)
def test_experiments_have_the_published_settings(config, tmp_path, path):
    name = f"{path.parent.name}/{path.stem}"
    command = path.read_text().splitlines()[1].removeprefix("# python train.py ")
    choices = [f"experiment={name}", *[w for w in command.split() if w.startswith("data=")]]
    assert command.split()[:2] == choices
    cfg = config("train", *choices, "trainer=gpu", f"data.root={tmp_path}")
    expected, (length, batch_size, num_tokens) = published(name)
    assert {key: OmegaConf.select(cfg, key) for key in expected} == expected
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    assert len(tokenizer.vocabulary.tokens) == num_tokens
    data = build_data(cfg, tokenizer)
    assert (data.length, data.batch_size) == (length, batch_size)
    assert data.skip_beginning == (0.25 if "groove" in name else 0)
    assert getattr(data.encoded.corpus, "tracks", None) == ("trio" if "groove" in name else None)
    # In the model, at a width that is quick to build.
    model = instantiate(cfg.model, vocab_size=num_tokens + 1, dim=32, ff_dim=8, num_layers=1)
    (layer,) = model.layers
    assert model.dropout.p == 0.1
    assert layer.dropout.p == (0.0 if name.endswith("pop_piano_ape") else 0.1)
    if "spe" in path.stem:
        assert (model.position.gate is None) == ("ungated" in path.stem)
    for key in ("num_realizations", "num_sines", "filter_length"):
        if (value := expected.get(f"model.position.{key}")) is not None:
            assert getattr(model.position, key) == value, key


@pytest.mark.parametrize("path", experiments("bench"), ids=lambda path: path.stem)
def test_models_of_the_jsb_chorales_are_small_and_read_whole_pieces(config, tmp_path, path):
    command = path.read_text().splitlines()[1].removeprefix("# python train.py ").split()
    assert command[0] == f"experiment=bench/{path.stem}"
    frames = [[60, 60, 55, 48]] * 640  # the longest chorale
    content = {"train": [frames, frames[:50]], "valid": [frames]}
    root = tmp_path / "Jsb16thSeparated.json"
    root.write_text(json.dumps(content))
    cfg = config("train", command[0], f"data.root={root}", f"paths.data_dir={tmp_path}")
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    assert parameter_count(model) <= 4_000_000
    data = build_data(cfg, tokenizer)
    (batch,) = data.val_dataloader()
    assert batch.tokens.shape == (1, 1 + 4 * 640)
    assert batch.targets[0, -1] == tokenizer.vocabulary.id("EOS")
    assert cfg.model.cycles == [4, 16, 64]


def test_the_protocol_of_groove_continuations(config):
    cfg = config("generate", "protocol=spe2021_groove")
    assert (cfg.prompt, cfg.prompt_bars, cfg.bars) == ("test", 2, None)
    assert (
        cfg.length_factor * config("train", "experiment=spe2021/groove_ape").loader.length == 1024
    )


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_are_small_and_compose_their_data(config, name):
    cfg = config("train", f"experiment=pretrained/{name.replace('-', '_')}")
    tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    model = instantiate(cfg.model, vocab_size=len(tokenizer.vocabulary))
    assert 2 * parameter_count(model) / 1e6 < MAX_MEGABYTES  # two bytes a weight
    assert cfg.data._target_.endswith("ComposedCorpus")
    assert cfg.data.kind == MODELS[name]
    assert tokenizer.name == {"pop": "remi", "groove": "groove2groove"}[cfg.data.kind]
