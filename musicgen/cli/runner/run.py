"""Run a command under Hydra, with paths taken literally and errors in one line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from musicgen.cli.runner.arguments import given_overrides, prepare_arguments
from musicgen.cli.runner.error_messages import one_line
from musicgen.cli.runner.help import help_text
from musicgen.cli.runner.launches import agree_on_arguments
from musicgen.cli.runner.newcomers import (
    accept_trainer_arguments,
    as_setting,
    check_folders,
    split_prompts,
)
from musicgen.cli.runner.suggestions import raise_with_suggestions
from musicgen.cli.runner.sweeps import in_sweep, log_how_to_continue, run_job
from musicgen.console import log, warn
from musicgen.errors import UserError
from musicgen.files import remove_if_empty
from musicgen.package_data import CONF
from musicgen.run_folders import run_id

_FULL_ERROR, _INTERRUPTED = "HYDRA_FULL_ERROR", 130


def run(main: Callable[[DictConfig], Any], config_name: str) -> None:
    """Compose the configuration from the command line and call `main` with it.

    A user's error ends the process with one line on standard error and status 2. With
    HYDRA_FULL_ERROR=1 in the environment, exceptions are raised unchanged.
    """
    full_error = os.environ.get(_FULL_ERROR) == "1"
    failed: list[Any] = []
    # Makes Hydra raise its errors, which it would print over several lines.
    os.environ[_FULL_ERROR] = "1"
    OmegaConf.register_new_resolver("run_id", run_id, replace=True)

    def errors(cfg: DictConfig | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if full_error else _one_line_errors(cfg)

    @functools.wraps(main)
    def job(cfg: DictConfig) -> Any:
        if not full_error:  # the processes that a job starts should not inherit it either
            os.environ.pop(_FULL_ERROR, None)
        # Handle errors here: Hydra would announce a failed job first.
        try:
            with errors(cfg), _isolated_job(), _no_empty_folder():
                return run_job(main, cfg)
        except SystemExit as stop:
            if not in_sweep():
                raise
            if stop.code == _INTERRUPTED:
                log_how_to_continue()
                raise
            failed.append(stop.code)  # a sweep may contain impossible combinations: continue it
            return None
        finally:
            os.environ[_FULL_ERROR] = "1"

    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
    try:
        with errors():
            given = sys.argv[1:]
            if {"-h", "--help"} & set(given):
                given = [a for a in given if a not in ("-h", "--help")]
                print(help_text(config_name, prepare_arguments(given)))
                return
            sys.argv = [sys.argv[0], *_arguments(config_name, given)]
            try:
                decorate(job)()
            except ConfigCompositionException as error:
                raise_with_suggestions(error, config_name, sys.argv[1:])
                raise
            except ValueError:
                if failed:  # of Optuna, which needs a score
                    raise UserError("no run of the sweep has ended well, see above") from None
                raise
        if failed:
            sys.exit(failed[0])
    finally:
        if not full_error:
            os.environ.pop(_FULL_ERROR, None)


def _arguments(config_name: str, given: list[str]) -> list[str]:
    """Return the command line's arguments for Hydra."""
    if config_name == "generate":
        given, paths = split_prompts(given)
        return [*prepare_arguments(given), *as_setting(paths)]
    if config_name == "evaluate":
        return prepare_arguments(given)
    check_folders(given)
    return agree_on_arguments(accept_trainer_arguments(prepare_arguments(given)))


def output_folder() -> str | None:
    """Return the folder that Hydra made for a job, if it made one for it alone."""
    folder: str = HydraConfig.get().runtime.output_dir
    return None if Path(folder) == Path.cwd() else folder


def _no_empty_folder() -> contextlib.AbstractContextManager[None]:
    folder = output_folder()
    return contextlib.nullcontext() if folder is None else remove_if_empty(Path(folder))


@contextlib.contextmanager
def _one_line_errors(cfg: DictConfig | None) -> Iterator[None]:
    """End the process with one line on a user's error, and without a traceback on Ctrl-C."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        log(f"error: {one_line(error, cfg)}", "red")
        sys.exit(2)
    except KeyboardInterrupt:
        warn("interrupted")
        sys.exit(_INTERRUPTED)
    except Exception as error:  # for example a value of the wrong type
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        if type(error).__name__ == "MisconfigurationException":  # Lightning's, for its settings
            log(f"error: {text}", "red")
            sys.exit(2)
        log(
            f"error: {type(error).__name__}: {text} (in {Path(where.filename).name}, line "
            f"{where.lineno}; {_FULL_ERROR}=1 shows the traceback)",
            "red",
        )
        sys.exit(1)


@contextlib.contextmanager
def _isolated_job() -> Iterator[None]:
    """Keep the jobs of a multirun apart where they start processes, as DDP does.

    Lightning starts them with this process's arguments and `hydra.run.dir`; in a multirun, they
    would start the sweep again in another folder. It also leaves its process group and the
    environment variables that describe it to the next job.
    """
    hydra_config: Any = HydraConfig.get()
    if not in_sweep():
        yield
        return
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
