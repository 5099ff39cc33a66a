"""Adapters with the commands: a prefix state and LoRA trained from a run, and used without it."""

from __future__ import annotations

import pytest

from tests.end_to_end.command_line import SHORT, TINY, assert_one_line, call_here, succeed

DATA = [setting for setting in TINY if setting.startswith("data.")]


@pytest.fixture
def call(workplace, monkeypatch, capsys):
    return lambda script, *arguments: call_here(
        workplace, script, list(arguments), monkeypatch, capsys
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "prefix_state", "copy"])
def test_an_adapter_is_trained_and_used(call, workplace, kind):
    (base,) = (workplace / "outputs/tiny").iterdir()
    begun = (f"init={base}", f"adapter={kind}", *DATA, *SHORT, f"run_name={kind}")
    done = succeed(call("train.py", *begun))
    assert f"adapter={kind}: trains " in done.stderr
    (run,) = (workplace / f"outputs/{kind}").iterdir()
    file = run / f"{kind}.safetensors"
    assert f"kB, for python generate.py checkpoint={base / 'checkpoints/best.ckpt'}" in done.stderr
    used = (f"checkpoint={base}", f"{kind}={file}", "bars=1", "report=false")
    succeed(call("generate.py", *used, f"out={kind}-file", "seed=3"))
    succeed(call("generate.py", f"checkpoint={run}", "bars=1", f"out={kind}-run", "seed=3"))
    pieces = [sorted((workplace / f"{kind}-{x}").glob("*.mid")) for x in ("file", "run")]
    assert [p.read_bytes() for p in pieces[0]] == [p.read_bytes() for p in pieces[1]]
    wrong = "prefix_state" if kind == "lora" else "lora"
    done = call("generate.py", f"checkpoint={base}", f"{wrong}={file}", "out=wrong")
    assert_one_line(done, f"{kind}.safetensors: it holds an adapter of the kind {kind}")
    done = succeed(call("train.py", f"resume={run}", "trainer.max_steps=6"))
    assert "6 steps in" in done.stderr
    # A run from its weights: a prefix state is not merged.
    done = call("train.py", f"init={run}", *DATA, *SHORT)
    if kind != "prefix_state":
        assert done.returncode == 0, done.stderr
    else:
        assert_one_line(done, "a new run cannot begin from an adapter", str(base))


def test_an_adapter_needs_a_trained_model_of_its_kind(call, workplace):
    assert_one_line(
        call("train.py", "adapter=prefix_state", *TINY),
        "adapter=prefix_state: it adapts",
        "init=RUN",
    )
    softmax = (*TINY, *SHORT, "attention=softmax", "position=none", "run_name=softmax")
    assert call("train.py", *softmax).returncode == 0
    (run,) = (workplace / "outputs/softmax").iterdir()
    done = call("train.py", f"init={run}", "adapter=prefix_state", *DATA)
    assert_one_line(
        done, "adapter=prefix_state: expected a model with linear attention", "use lora"
    )


def test_an_experiment_with_an_adapter_takes_the_model_of_the_run(call, workplace):
    (base,) = (workplace / "outputs/tiny").iterdir()
    begun = ("experiment=pretrained/copy_head", f"init={base}", "train=false", *DATA)
    assert "adapter=copy: trains " in succeed(call("train.py", *begun)).stderr
