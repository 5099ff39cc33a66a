"""--help explains every setting by the comments of the configuration files."""

from __future__ import annotations

import sys

import pytest
import yaml

from musicgen.cli.help import help_text, read_config_file
from musicgen.package_data import CONF


def leaves(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.parametrize("name", ["generate", "evaluate", "prepare", "train"])
def test_every_setting_of_a_command_is_explained(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    lines = help_text(name, []).splitlines()
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["defaults"]
    values.pop("hydra", None)
    for key in leaves(values):
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"  {key}=")]
        explanation = lines[at][30:] or lines[at + 1][30:]
        assert explanation.strip(), key
    assert "hydra" not in "\n".join(lines).replace("${hydra:", "").lower()


def test_a_setting_of_a_file_that_another_extends_is_explained_once(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert help_text("train", ["attention=favor_decay"]).count("model.attention.decay=") == 1


def test_comments_above_and_behind_keys(tmp_path):
    text = """\
# Two lines
# of header.
# @package model.part
defaults: [base]

a: 1 # the first
# Above,
# in two lines.
b: [1, 2]
c: # of a section
  d: 1 # its own
  e: 2
h: 4
"""
    (tmp_path / "x.yaml").write_text(text)
    file = read_config_file(tmp_path / "x.yaml", "group")
    assert file.header == ["Two lines", "of header."]
    assert (file.package, file.parents) == ("model.part", ["base"])
    assert file.comments == {
        "defaults": "",
        "a": "the first",
        "b": "Above, in two lines.",
        "c": "of a section",
        "c.d": "its own",
        "c.e": "of a section",
        "h": "",
    }


def test_the_help_shows_the_chosen_group(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    text = help_text("train", ["position=alibi", "model.dim=64"])
    assert "position=alibi " in text
    assert "model.position.coordinates=index" in text
    assert "num_sines" not in text
    assert "  model.dim=64 " in text
    assert text.startswith("Train a model")
    assert max(map(len, text.splitlines())) <= 100
    assert "python train.py [data=" in text
