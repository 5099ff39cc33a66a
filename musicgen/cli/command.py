"""The decorator that makes a command: Hydra around a function, a user's errors in one line."""

from __future__ import annotations

import functools
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.arguments import named_values, quoted_paths
from musicgen.cli.errors import INTERRUPTED, USER_ERROR, one_line_errors
from musicgen.cli.resume import resumed_arguments
from musicgen.cli.sweeps import in_sweep, isolated_job, log_how_to_continue, run_job
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
                    return run_job(main, cfg)
            except SystemExit as stop:
                if in_sweep() and stop.code == INTERRUPTED:
                    log_how_to_continue()
                elif in_sweep() and stop.code == USER_ERROR:
                    failed.append(folder)
                    return math.inf  # a score that a search avoids
                raise

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
