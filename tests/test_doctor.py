"""The check of a machine: right backends pass, wrong ones are found."""

from __future__ import annotations

import json
import sys

import pytest

from musicgen import doctor
from musicgen.attention.linear import backends


@pytest.fixture
def run(monkeypatch):
    """Check this machine with two small models; return the status."""
    cases = {name: doctor.CASES[name] for name in ("favor, decay=head", "softmax, span")}
    monkeypatch.setattr(doctor, "CASES", cases)
    monkeypatch.setattr(doctor, "LENGTH", 65)
    monkeypatch.setattr(doctor, "NUM_STEPS", 5)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)  # making graphs takes seconds

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["doctor", "--device", "cpu", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            doctor.main()
        return stopped.value.code

    return run


def test_this_machine_is_correct(run, capsys, tmp_path):
    assert not run("--json", tmp_path / "doctor.json")
    out = capsys.readouterr().out
    assert "all that runs on this machine is correct" in out
    rows = json.loads((tmp_path / "doctor.json").read_text())["results"]
    assert {row["name"] for row in rows if not row["refusal"]} >= {
        *("favor, decay=head, chunked, fp32", "softmax, span, fp32"),
        *("favor, decay=head, eager", "softmax, span, eager"),
    }


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_wrong_backend_is_found(run, monkeypatch, capsys, factor):
    def wrong(inputs):
        out, state = backends.chunked(inputs)
        return out * factor, state

    monkeypatch.setitem(backends.BACKENDS, "chunked", wrong)
    assert run() == 1
    out = capsys.readouterr().out
    assert "wrong on this machine, do not use: favor, decay=head, chunked, fp32" in out


def test_wrong_gradients_are_found(run, monkeypatch, capsys):
    def wrong(inputs):
        return backends.chunked(inputs._replace(k=inputs.k.detach()))

    monkeypatch.setitem(backends.BACKENDS, "chunked", wrong)
    assert run() == 1
    assert "WRONG favor, decay=head, chunked, fp32" in capsys.readouterr().out
