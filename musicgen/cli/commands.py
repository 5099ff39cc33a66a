"""The four commands: each runs the function `main` of a module of this package with Hydra."""

import math
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from musicgen.cli.arguments import (
    given_overrides,
    named_values,
    override_key,
    quoted_paths,
    refuse_dashes,
    resumed_arguments,
    trust_modules,
    with_trainer_arguments,
)
from musicgen.cli.errors import (
    USER_ERROR,
    check_construction,
    check_known,
    check_types,
    one_line_errors,
)
from musicgen.cli.sweeps import record_job
from musicgen.console import recorded
from musicgen.files import remove_if_empty
from musicgen.package_data import CONF


def run(name: str) -> None:
    """Run `main` of musicgen.cli.NAME with conf/NAME.yaml and the arguments of the process.

    A `UserError`, or arguments that make no configuration, end the process with one line and status
    2; Ctrl-C and SIGTERM end it with one line and status 130. Other exceptions show their
    traceback. A sweep continues after a `UserError`, and ends with status 2.
    """

    def task(cfg: DictConfig) -> Any:
        in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        return run_job_of_sweep(name, cfg) if in_sweep else run_job(name, cfg)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with one_line_errors(name):
        refuse_dashes(sys.argv[1:], name)
        arguments = quoted_paths(sys.argv[1:])
        if name == "generate":
            arguments = named_values(arguments, "prompt", "prompt")
        elif name == "evaluate":
            arguments = named_values(arguments, "checkpoint", "runs")
        elif name == "train":
            arguments = with_trainer_arguments(resumed_arguments(arguments))
        if {each for each in arguments if each.startswith("-")} in ({"--help"}, {"-h"}):
            return print_help(name, [each for each in arguments if override_key(each)])
        sys.argv[1:] = arguments
        hydra.main(str(CONF), name, version_base="1.3")(task)()


def print_help(name: str, overrides: list[str]) -> None:
    """Print what Hydra's --help does, which needs more than a second to list the groups."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg: Any = compose(name, overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    template = Template(cfg.hydra.help.template)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted(CONF.glob("*/**/*.yaml")):
        groups[file.parent.relative_to(CONF).as_posix()].append(file.stem)
    del groups["hydra"]
    listed = "".join(f"{each}: {', '.join(groups[each])}\n" for each in sorted(groups))
    with open_dict(cfg):
        del cfg.hydra
    print(template.substitute(CONFIG=OmegaConf.to_yaml(cfg), APP_CONFIG_GROUPS=listed))


def run_job(name: str, cfg: DictConfig) -> Any:
    """Run `main` of musicgen.cli.NAME; return what it returns."""
    folder = Path(HydraConfig.get().runtime.output_dir)  # Hydra has created it
    cleanup = nullcontext() if folder == Path.cwd() else remove_if_empty(folder)
    with cleanup, one_line_errors(name):
        trust_modules(given_overrides())
        check_construction()
        check_known(cfg, name)
        check_types(cfg)
        if name == "generate":
            from musicgen.cli.output import check_places

            check_places(cfg)
        return import_module(f"musicgen.cli.{name}").main(cfg)


def run_job_of_sweep(name: str, cfg: DictConfig) -> float:
    """Run a job of a sweep, record its outcome, and return its score.

    The score of a job that is refused is one that a search avoids.
    """
    messages: list[str] = []
    try:
        with isolated_job(), recorded(messages.append):
            score: float = run_job(name, cfg)
    except SystemExit as stop:
        if stop.code != USER_ERROR:
            raise
        record_job(messages[-1], None)
        mode = OmegaConf.select(cfg, "callbacks.best.mode")
        return -math.inf if mode == "max" else math.inf
    # What `fit` in train.py logs at the end of a training.
    ends = [message for message in messages if message.startswith("ended at")]
    record_job(ends[-1] if ends else "done", score)
    return score


@contextmanager
def isolated_job() -> Iterator[None]:
    """Keep the jobs of a sweep apart if they start processes, as DDP does.

    Lightning starts processes with the arguments and `hydra.run.dir` of this one, which are the
    sweep's. It also leaves its process group and environment variables to the next job.
    """
    hydra_config: Any = HydraConfig.get()
    sys.argv[1:] = given_overrides()
    with read_write(hydra_config):
        hydra_config.run.dir = hydra_config.runtime.output_dir
    environment = dict(os.environ)
    try:
        yield
    finally:
        distributed = sys.modules.get("torch.distributed")  # None: it failed before it started any
        if distributed is not None and distributed.is_initialized():
            distributed.destroy_process_group()
        if "wandb" in sys.modules:  # else the next job logs to this one's run
            sys.modules["wandb"].finish()
        os.environ.clear()
        os.environ.update(environment)


train, generate, evaluate, prepare = (
    partial(run, name) for name in ("train", "generate", "evaluate", "prepare")
)
