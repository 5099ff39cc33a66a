"""Random overrides: each command runs, or ends in one clear line."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.end_to_end.command_line import TINY, call_here

VALUES = (
    *("abc", "maybe", "nan", "inf", "-inf", "-1", "0", "0.5", "1.5", "3", "7", "1e-30"),
    *("null", "true", "false", '""', "[]", "[1,2]", "{a:1}", "[a]", "no/such"),
)
# Settings that start long work, write elsewhere, or belong to Hydra.
LEFT_OUT = ("hydra", "resume", "_target_", "_partial_", "data.cache_dir")
TRAIN = (*TINY, "trainer.max_steps=1", "trainer.val_check_interval=1", "sampling.choose=false")
FIXED = {
    "train": (*TRAIN, "task_name=fuzz"),
    "prepare": TINY[4:5],
    "generate": ("bars=1", "num_samples=1", "originality=false"),
    "evaluate": ("metrics=[position_loss]", "max_factor=1", "max_pieces=1"),
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
        return "traceback"
    if done.returncode == 0:
        return "an error, and status 0" if lines else None
    if done.returncode != 2 or len(lines) != 1:
        return f"status {done.returncode}: {lines}"
    if len(lines[0]) > 500:
        return f"a long line: {lines[0]}"
    return None


def overrides(config, seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Commands with an override each, the same for a seed."""
    rng = random.Random(seed)
    names = {command: list(keys(config(command))) for command in FIXED}
    weights = [len(names[command]) for command in FIXED]
    for _ in range(count):
        (command,) = rng.choices(list(FIXED), weights)
        yield command, f"{rng.choice(names[command])}={rng.choice(VALUES)}"


SCRIPTS = {"prepare": "tests/end_to_end/prepare_script.py"}


def check(folder, chosen, monkeypatch, capsys) -> None:
    found = []
    for number, (command, override) in enumerate(chosen):
        arguments = [*FIXED[command], f"out=fuzz/{number}"]
        if command in ("train", "prepare"):
            arguments[-1] = f"hydra.run.dir=fuzz/{number}"
        key = override.partition("=")[0]
        arguments = [a for a in arguments if a.partition("=")[0] != key]
        script = SCRIPTS.get(command, f"{command}.py")
        done = call_here(folder, script, [*arguments, override], monkeypatch, capsys)
        if wrong := problem(done):
            found.append(f"{command} {override}: {wrong}")
    assert not found, "\n".join(found)


def test_some_random_overrides(workplace, config, monkeypatch, capsys):
    check(workplace, overrides(config, 1, 12), monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif("FUZZ" not in os.environ, reason="takes half an hour; set FUZZ=1")
def test_many_random_overrides(workplace, config, monkeypatch, capsys):
    check(workplace, overrides(config, 2, 500), monkeypatch, capsys)
