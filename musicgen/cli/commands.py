"""Entry points of the commands, which import libraries late to respond fast."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from musicgen.cli.runner.interrupts import exit_on_interrupt
from musicgen.cli.runner.threads import spin_briefly

if TYPE_CHECKING:
    from omegaconf import DictConfig


def _run(name: str) -> None:
    spin_briefly()
    with exit_on_interrupt():
        from musicgen.cli.runner.checks import CHECKS
        from musicgen.cli.runner.run import output_folder, run

    def main(cfg: DictConfig) -> Any:
        CHECKS[name](cfg)
        with exit_on_interrupt(output_folder()):
            command = importlib.import_module(f"musicgen.cli.{name}")
        return command.main(cfg)

    run(main, name)


train = partial(_run, "train")
generate = partial(_run, "generate")
evaluate = partial(_run, "evaluate")
prepare = partial(_run, "prepare")
