"""Processes that torchrun or srun start: all take the arguments of the first one."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from omegaconf import OmegaConf

from musicgen.package_data import CONF

_NOW = re.compile(r"\$\{now:([^}]*)\}")
_PATIENCE = timedelta(minutes=10)  # processes may start late


def agree_on_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the first process's arguments, with its run folder, in each process of a launch.

    Otherwise each would name a folder by its own clock, or take another run for the last one.
    """
    found = _launch(os.environ)
    if found is None:
        return list(arguments)
    rank, name, place = found
    from torch.distributed import TCPStore  # late, as it takes seconds to import

    store = TCPStore(**place, timeout=_PATIENCE)
    if rank == 0:
        store.set(name, json.dumps(_with_folder(arguments)))
    agreed: list[str] = json.loads(store.get(name))
    if place["is_master"]:  # the store ends with this process
        store.set(f"{name}/0", "")
        store.wait([f"{name}/{other}" for other in range(place["world_size"])])
    else:
        store.set(f"{name}/{rank}", "")
    return agreed


def _launch(environment: Mapping[str, str]) -> tuple[int, str, dict[str, Any]] | None:
    """Return this process's rank, a name of the launch and the place of its store, if any."""
    if "TORCHELASTIC_RUN_ID" in environment:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        own = environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun has one
        name = f"musicgen/{environment.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    elif int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:  # of srun, not of the whole job
        from lightning_fabric.plugins.environments import SLURMEnvironment

        if not SLURMEnvironment.detect():  # an interactive job
            return None
        slurm = SLURMEnvironment()
        rank, world_size = slurm.global_rank(), int(environment["SLURM_STEP_NUM_TASKS"])
        host, port, own, name = slurm.main_address, slurm.main_port, True, "musicgen"
    else:
        return None
    place: dict[str, Any] = {"host_name": host, "port": port + own, "world_size": world_size}
    return rank, name, {**place, "is_master": own and rank == 0, "wait_for_workers": False}


def _with_folder(arguments: Sequence[str]) -> list[str]:
    """Add the folder that Hydra would make now, unless one is given or there are several."""
    keys = {argument.partition("=")[0].lstrip("+") for argument in arguments}
    if keys & {"hydra.run.dir", "hydra.mode", "-m", "--multirun"}:
        return list(arguments)
    folder = OmegaConf.to_container(OmegaConf.load(CONF / "hydra" / "default.yaml"), resolve=False)
    assert isinstance(folder, dict)
    named = _NOW.sub(lambda match: time.strftime(match[1]), folder["run"]["dir"])
    return [*arguments, f"hydra.run.dir={named}"]
