"""Names of runs: of their folders, by the launch that all processes share, and in W&B."""

import re

import pytest

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.run_folders import job_id, run_id


def test_a_run_is_named_by_its_folder_and_keeps_its_name(tmp_path):
    folders = [tmp_path / each / "hour/0" for each in "ab"]  # of equal names
    ids = [run_id(str(folder)) for folder in folders]
    assert all(re.fullmatch(r"hour-0-[0-9a-f]{8}", each) for each in ids)
    assert ids[0] == run_id(str(folders[0])) != ids[1]
    write_bytes(folders[0] / f"wandb/offline-run-20260102_030405-{ids[0]}/run-{ids[0]}.wandb", b"")
    run_id.cache_clear()  # another process, which resumes one of them
    assert run_id(str(folders[0])) == ids[0]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "now"),
        ({"TORCHELASTIC_RUN_ID": "big"}, "big"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "7.0"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "now"),  # without srun
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "now"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "now"),  # started by Lightning
    ],
)
def test_processes_of_a_launch_share_a_name(monkeypatch, environment, name):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert job_id("now") == name


def test_torchrun_must_name_its_job(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # its default
    with pytest.raises(UserError, match="--rdzv-id=NAME or --standalone"):
        job_id("now")
