"""A run with classes outside the package is resumed, generated with and evaluated by `trust=`."""

import re
import sys

import pytest

from musicgen.checkpoints import building
from tests.end_to_end.command_line import SHORT, TINY, assert_one_line, succeed

OWN = """
import os

from musicgen.data.corpora import ComposedCorpus
from musicgen.position import RoPE
from musicgen.tokenization import REMI


class Encoding(RoPE): ...


class Tokens(REMI):
    name = "own_tokens"


class Corpus(ComposedCorpus): ...
"""
CLASSES = (
    "model.position._target_=own_music.Encoding",
    "tokenizer._target_=own_music.Tokens",
    "data._target_=own_music.Corpus",
)
TRUST = "trust=own_music"


@pytest.fixture(autouse=True)
def _own_module(tmp_path, monkeypatch):
    (tmp_path / "own_music.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_music", raising=False)
    monkeypatch.setattr(building, "_trusted", {"musicgen"})


def test_a_run_with_classes_of_ones_own_is_resumed_generated_with_and_evaluated(
    here, tmp_path, monkeypatch
):
    arguments = [*TINY, *SHORT, *CLASSES, "run_name=own", "loader.prepare_workers=1"]
    done = succeed(here(tmp_path, "train.py", *arguments))
    (run,) = (tmp_path / "outputs/own").iterdir()
    assert f"classes of your own: give {TRUST} to resume, generate and evaluate" in done.stderr
    assert f"to evaluate it: python evaluate.py {run} {TRUST}\n" in done.stderr
    assert re.search(rf"to train it longer: .* trainer.max_steps=8 {TRUST}$", done.stderr, re.M)
    refused = "names own_music."
    generated = [f"checkpoint={run}", "bars=1", "report=false", "out=new", "seed=1"]
    evaluated = [str(run), "metrics=position_loss", "max_pieces=1", "out=measured"]
    resumed = [f"resume={run}", "trainer.max_steps=5"]
    for script, given in (
        ("generate.py", generated),
        ("evaluate.py", evaluated),
        ("train.py", resumed),
    ):
        assert_one_line(here(tmp_path, script, *given), refused, f"allow its classes: {TRUST}")
        succeed(here(tmp_path, script, *given, TRUST))
        monkeypatch.setattr(building, "_trusted", {"musicgen"})


def test_what_a_trusted_module_imports_is_not_trusted(here, tmp_path):
    building.trust("own_music")
    for target in ("own_music.os.getpid", "own_music.os", "os.getpid"):
        with pytest.raises(ValueError, match="which is not a class of musicgen"):
            building.check_targets({"_target_": target}, (object,))
    assert_one_line(
        here(tmp_path, "generate.py", "trust=own_muzic"),
        "trust=own_muzic: there is no module own_muzic; add the folder that has it to PYTHONPATH",
    )


def test_a_run_does_not_say_what_to_trust(here, tmp_path):
    succeed(here(tmp_path, "train.py", *TINY, *SHORT, *CLASSES[:1], TRUST, "run_name=own"))
    building._trusted.discard("own_music")
    done = here(tmp_path, "train.py", "resume=auto", "trainer.max_steps=5")
    assert_one_line(done, "names own_music.Encoding", TRUST)
    assert "not taken from outputs/own/" in done.stderr
