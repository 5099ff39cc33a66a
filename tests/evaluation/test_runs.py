"""Names and groups of the runs that a measure compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from musicgen.checkpoints import run_identity
from musicgen.evaluation.runs import name_runs


def settings(target: str = "SineSPE", seed: int = 1, lr: float = 0.1, **position: Any):
    return {
        "seed": seed,
        "run_name": f"{target}_{seed}",
        "loader": {"seed": seed, "cache_dir": f"cache{seed}", "length": 64, "num_workers": seed},
        "model": {"dim": 8, "position": {"_target_": f"musicgen.position.{target}", **position}},
        "optimizer": {"lr": lr},
        "callbacks": {"best": {"dirpath": f"runs/{seed}"}, "redraw_features": {"seed": seed}},
        "paths": {"output_dir": f"runs/{seed}"},
    }


def names(*configs: dict[str, Any], paths: list[str] | None = None):
    contents: Any = [
        SimpleNamespace(config=c, model=c["model"], identity=run_identity(c)) for c in configs
    ]
    return name_runs(paths or [f"outputs/{i}" for i in range(len(configs))], contents)


def test_runs_that_differ_in_their_seeds_alone_are_a_group():
    found = names(settings(seed=1), settings("Sinusoidal"), settings(seed=2))
    assert found == [
        ("SineSPE", "SineSPE, seed 1"),
        ("Sinusoidal", "Sinusoidal"),
        ("SineSPE", "SineSPE, seed 2"),
    ]
    assert names(settings(seed=1), settings(seed=2)) == [
        ("model", "model, seed 1"),
        ("model", "model, seed 2"),
    ]
    assert names(settings()) == [("model", "model")]


def test_groups_are_named_by_what_differs():
    gates = names(settings(gated=True), settings(gated=False), settings("ConvSPE", gated=True))
    assert [group for group, _ in gates] == [
        "SineSPE, gated=True",
        "SineSPE, gated=False",
        "ConvSPE",
    ]
    rates = names(settings(lr=0.1), settings(lr=0.2, seed=2))
    assert [group for group, _ in rates] == ["lr=0.1", "lr=0.2"]
    spans: list[Any] = [settings(), settings()]
    spans[1]["model"]["span"] = {"_target_": "musicgen.attention.GaussianSpan", "max": 3}
    assert [group for group, _ in names(*spans)] == ["span=None", "span=GaussianSpan"]


def test_checkpoints_of_one_seed_are_named_by_their_files():
    paths = ["outputs/a/checkpoints/best.ckpt", "outputs/a/checkpoints/last.ckpt"]
    assert names(settings(), settings(), paths=paths) == [
        (f, f) for f in ("best.ckpt", "last.ckpt")
    ]
    mixed = names(settings(), settings(), settings("ConvSPE"), paths=[*paths, "outputs/b"])
    assert mixed == [
        ("SineSPE, a/best.ckpt", "SineSPE, a/best.ckpt"),
        ("SineSPE, a/last.ckpt", "SineSPE, a/last.ckpt"),
        ("ConvSPE", "ConvSPE"),
    ]


def test_seeds_of_the_configuration_are_a_group(config):
    configs = []
    for seed in (1, 2):
        cfg = config("train", f"seed={seed}", "debug=profile")
        OmegaConf.update(cfg, "paths.output_dir", f"outputs/{seed}")
        configs.append(OmegaConf.to_container(cfg, resolve=True))
    assert names(*configs) == [("model", "model, seed 1"), ("model", "model, seed 2")]


def test_published_models_are_named_by_their_own_configuration():
    """Their folders hold neither a configuration of training nor an identity."""
    loader = {"length": 64}
    contents: Any = [
        SimpleNamespace(config={"loader": loader}, model=settings(name)["model"], identity=None)
        for name in ("SineSPE", "ConvSPE")
    ]
    assert name_runs(["a"], contents[:1]) == [("model", "model")]
    assert name_runs(["a", "b"], contents) == [("SineSPE", "SineSPE"), ("ConvSPE", "ConvSPE")]
