"""The check of a machine: right backends pass, wrong ones are found."""

from __future__ import annotations

import json
import sys

import pytest

from musicgen.attention.linear import backends
from musicgen.doctor import __main__ as doctor
from musicgen.doctor import parity


@pytest.fixture
def two_cases(monkeypatch):
    cases = {name: parity.CASES[name] for name in ("favor, decay=head", "softmax, span")}
    monkeypatch.setattr(parity, "CASES", cases)
    monkeypatch.setattr(parity, "LENGTH", 65)
    monkeypatch.setattr(parity, "NUM_STEPS", 5)
    compiled = parity._engines  # compiling takes seconds
    monkeypatch.setattr(
        parity,
        "_engines",
        lambda *args: (pair for pair in compiled(*args) if pair[0] != "compiled"),
    )


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["doctor", "--device", "cpu", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        doctor.main()
    return stopped.value.code


def test_this_machine_is_correct(two_cases, monkeypatch, capsys, tmp_path):
    assert not run(monkeypatch, "--json", tmp_path / "doctor.json")
    out = capsys.readouterr().out
    assert "all that runs on this machine is correct" in out
    assert "fastest correct backend of linear attention: " in out
    rows = json.loads((tmp_path / "doctor.json").read_text())["results"]
    assert {row["name"] for row in rows if row["seconds"]} >= {
        "favor, decay=head, chunked, fp32",
        "softmax, span, fp32",
    }
    assert {"favor, decay=head, packed", "softmax, span, eager"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_wrong_backend_is_found(two_cases, monkeypatch, capsys, factor):
    def wrong(inputs):
        out, state = backends.chunked(inputs)
        return out * factor, state

    monkeypatch.setitem(backends.BACKENDS, "chunked", wrong)
    assert run(monkeypatch) == 1
    out = capsys.readouterr().out
    assert "wrong on this machine, do not use: favor, decay=head, chunked, fp32" in out


def test_wrong_gradients_are_found(two_cases, monkeypatch, capsys):
    def wrong(inputs):
        return backends.chunked(inputs._replace(k=inputs.k.detach()))

    monkeypatch.setitem(backends.BACKENDS, "chunked", wrong)
    assert run(monkeypatch) == 1
    assert "WRONG favor, decay=head, chunked, fp32" in capsys.readouterr().out
