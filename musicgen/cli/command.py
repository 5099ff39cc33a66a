"""The decorator that makes a command: Hydra around a function, a user's errors in one line."""

from __future__ import annotations

import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from musicgen.cli.arguments import named_values, quoted_paths
from musicgen.cli.errors import USER_ERROR, one_line_errors
from musicgen.cli.resume import given_overrides, resumed_arguments
from musicgen.files import remove_if_empty
from musicgen.package_data import CONF
from musicgen.run_folders import job_id, run_id

ALONE = {"generate": ("prompt", "prompt"), "evaluate": ("checkpoint", "runs")}
"""The settings of a path that is given alone, and of several."""


def command(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Make a command of a function that takes the configuration `config_name`.

    A `UserError`, or arguments that make no configuration, end the process with one line and status
    2, Ctrl-C and SIGTERM with one line and status 130; other exceptions show their traceback. A
    sweep goes on after a `UserError`, and ends with status 2.
    """

    def decorate(main: Callable[[DictConfig], Any]) -> Callable[[], None]:
        failed: list[Path] = []  # folders of a sweep's jobs

        @functools.wraps(main)
        def job(cfg: DictConfig) -> Any:
            folder = Path(HydraConfig.get().runtime.output_dir)  # Hydra has made it
            ours = nullcontext() if folder == Path.cwd() else remove_if_empty(folder)
            try:
                with ours, one_line_errors(config_name), isolated_job():
                    return main(cfg)
            except SystemExit as stop:
                if stop.code != USER_ERROR or HydraConfig.get().mode != RunMode.MULTIRUN:
                    raise
                failed.append(folder)
                return math.inf  # a score that a search avoids

        run_in_hydra = hydra.main(str(CONF), config_name, version_base="1.3")(job)

        def run() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, and prints none
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            failed.clear()
            OmegaConf.register_new_resolver("run_id", run_id, replace=True)
            OmegaConf.register_new_resolver("job_id", job_id, replace=True)
            with one_line_errors(config_name):
                arguments = quoted_paths(sys.argv[1:])
                if config_name in ALONE:
                    arguments = named_values(arguments, *ALONE[config_name])
                if config_name == "train":
                    arguments = resumed_arguments(arguments)
                sys.argv[1:] = arguments
                run_in_hydra()
            if failed:
                sys.exit(USER_ERROR)

        return run

    return decorate


@contextmanager
def isolated_job() -> Iterator[None]:
    """Keep the jobs of a sweep apart where they start processes, as DDP does.

    Lightning starts them with this process's arguments and `hydra.run.dir`; in a sweep, they would
    start the sweep again in another folder. It also leaves its process group and the environment
    variables that describe it to the next job.
    """
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        yield
        return
    hydra_config: Any = HydraConfig.get()
    sys.argv = [sys.argv[0], *given_overrides()]
    with read_write(hydra_config):
        hydra_config.run.dir = hydra_config.runtime.output_dir
    environment = dict(os.environ)
    try:
        yield
    finally:
        if "torch" in sys.modules:  # else the job failed before it could start processes
            from torch import distributed

            if distributed.is_initialized():
                distributed.destroy_process_group()
        if "wandb" in sys.modules:  # else the next job logs to this one's run
            sys.modules["wandb"].finish()
        os.environ.clear()
        os.environ.update(environment)
