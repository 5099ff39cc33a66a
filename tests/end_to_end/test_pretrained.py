"""Published models with the commands."""

from __future__ import annotations

from musicgen import load
from musicgen.midi import read
from tests.end_to_end.command_line import SHORT, TINY, call_here, succeed


def test_a_published_model_continues_and_begins_runs(workplace, monkeypatch, capsys):
    def call(script, *arguments):
        return call_here(workplace, script, list(arguments), monkeypatch, capsys)

    (run,) = (workplace / "outputs/tiny").iterdir()
    load(run).save_pretrained(workplace / "mine", dtype="float16")
    succeed(call("generate.py", "checkpoint=mine", "bars=1", "out=new", "report=false"))
    assert any(read(path) for path in (workplace / "new").glob("*.mid"))
    succeed(call("generate.py", "checkpoint=mine", "prompt=test", "bars=1", "out=held_out"))
    data = [setting for setting in TINY if setting.startswith("data.")]
    done = succeed(call("train.py", "init=mine", *data, *SHORT, "run_name=tuned"))
    assert "begins with the weights of mine: 4 steps on ComposedCorpus" in done.stderr
