"""Random overrides: a command runs, or ends in one line."""

import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.end_to_end.command_line import TINY, call, call_here

VALUES = (
    *("abc", "maybe", "nan", "inf", "-inf", "-1", "0", "0.5", "1.5", "3", "7", "1e-30"),
    *("null", "true", "false", '""', "[]", "[1,2]", "{a:1}", "[a]", "no/such"),
)
# Settings that start long work, write elsewhere, or belong to Hydra.
LEFT_OUT = ("hydra", "resume", "_target_", "_partial_", "loader.cache_dir")
TRAIN = (*TINY, "trainer.max_steps=1", "trainer.val_check_interval=1")
FIXED = {
    "train": (*TRAIN, "run_name=fuzz"),
    "prepare": TINY[4:5],
    "generate": ("bars=1", "num_samples=1", "originality=false"),
    "evaluate": ("metrics=[position_loss]", "metric.position_loss.max_factor=1", "max_pieces=1"),
}
# Choices beside the defaults, each with settings of its own.
CHOICES = {
    "train": (
        (),
        ("optimizer=adamw", "callbacks=averaged"),
        ("optimizer=muon",),
        ("logger=tensorboard", "callbacks.samples.every=1", "callbacks.samples.bars=1"),
        ("logger=wandb", "callbacks.samples.every=null"),
        ("model.attention.decay=token", "model.short_conv=4"),
        ("attention=softmax", "position=alibi", "span=gaussian"),
        ("position=lrpe_orthogonal", "model.position.coordinates=[index,beat]"),
        ("position=conv_spe", "model.position.gated=false"),
        ("task=groove", "tokenizer=groove2groove_band"),
        ("debug=limit",),
        ("debug=overfit",),
        ("debug=profile",),
        ("init=latest", "model.copy={}", "optimizer=adamw", "optimizer.train=copy_head.*"),
        ("hparams_search=optuna", "hydra.sweeper.n_trials=1"),
    ),
    "prepare": ((), ("tokenizer=remi_metres",)),
    "generate": (
        (),
        ("prompt=test", "num_prompts=1", "prompt_bars=1", "ending=close"),
        ("sampling.min_p=0.1", "sampling.typical_p=0.9"),
    ),
    "evaluate": ((), ("metrics=[position_properties]",), ("metrics=[attention_properties]",)),
}


def keys(config: Any, prefix: str = "") -> Iterator[str]:
    for key in config:
        name = f"{prefix}{key}"
        if name.startswith(LEFT_OUT) or name.endswith(LEFT_OUT):
            continue
        value = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none():
            yield from keys(value, f"{name}.")
        else:
            yield name


def problem(done) -> str | None:
    """What is wrong with the end of a command; None if nothing is."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if "Traceback" in done.stderr:
        return f"a traceback, {done.stderr.splitlines()[-1]}"
    if done.returncode == 0:
        return "an error, and status 0" if lines else None
    if done.returncode != 2 or len(lines) != 1:
        return f"status {done.returncode}: {lines}"
    if len(lines[0]) > 500:
        return f"a long line: {lines[0]}"
    return None


def overrides(config, seed: int, count: int) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Commands with choices and an override each, the same for a seed."""
    rng = random.Random(seed)
    weights = [len(list(keys(config(command)))) for command in FIXED]
    for _ in range(count):
        (command,) = rng.choices(list(FIXED), weights)
        choice = rng.choice(CHOICES[command])
        composed = [c for c in choice if not c.startswith(("hparams_search", "hydra"))]
        names = list(keys(config(command, *composed)))
        yield command, choice, f"{rng.choice(names)}={rng.choice(VALUES)}"


SCRIPTS = {"prepare": "tests/end_to_end/prepare_script.py"}


def check(folder, chosen, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = []
    for number, (command, choice, override) in enumerate(chosen):
        arguments = [*FIXED[command], *choice, f"out=fuzz/{number}"]
        if command in ("train", "prepare"):
            arguments[-1] = f"hydra.run.dir=fuzz/{number}"
        if "hparams_search=optuna" in choice:
            arguments[-1] = f"hydra.sweep.dir=fuzz/{number}"
        key = override.partition("=")[0]
        arguments = [a for a in arguments if a.partition("=")[0] != key]
        script = SCRIPTS.get(command, f"{command}.py")
        if key == "trainer.devices":  # starts processes, and leaves its mark on this one
            done = call(folder, script, *arguments, override)
        else:
            done = call_here(folder, script, [*arguments, override], monkeypatch, capsys)
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()
        if wrong := problem(done):
            found.append(f"{command} {' '.join((*choice, override))}: {wrong}")
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.skipif("FUZZ" not in os.environ, reason="takes half an hour; set FUZZ=1")
def test_many_random_overrides(seed, workplace, config, monkeypatch, capsys):
    check(workplace, overrides(config, seed, 50), monkeypatch, capsys)
