"""Whether the latest run is worth using."""

from pathlib import Path

from musicgen.run_folders import describe_latest


def test_latest_names_a_finished_model_if_the_run_took_few_steps():
    path = Path("outputs/default/run/checkpoints/best.ckpt")
    line = describe_latest(path, 2, begun=False)
    assert line is not None
    assert "took 2 steps only" in line
    assert "checkpoint=pop-piano-small" in line
    assert describe_latest(path, 1000, begun=False) is None
    assert describe_latest(path, 2, begun=True) is None  # those of a trained model
