"""Arguments as newcomers give them: paths without a name, and names of other programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from musicgen.cli.runner.arguments import is_override, quote
from musicgen.errors import UserError
from musicgen.package_data import CONF

_FOLDER = "data=midi_folder data.root={value}"
# What a user of each command may mean by a name that is no setting.
CURES = {
    **dict.fromkeys(("lr", "learning_rate", "optimizer.learning_rate"), "optimizer.lr={value}"),
    **dict.fromkeys(("data.path", "data.folder", "data.dir", "path", "root"), _FOLDER),
    **dict.fromkeys(("steps", "num_steps", "max_steps"), "trainer.max_steps={value}"),
    **dict.fromkeys(
        ("epochs", "num_epochs", "max_epochs"),
        "trainer.max_steps=STEPS, or trainer.max_epochs={value} trainer.max_steps=-1",
    ),
    **dict.fromkeys(("device", "accelerator"), "trainer=cpu, gpu, mps or ddp"),
    **dict.fromkeys(("name", "task_name"), "run_name={value}"),
}
GENERATE_CURES = {
    **dict.fromkeys(("model", "ckpt", "run"), "checkpoint={value}"),
    **dict.fromkeys(("input", "midi", "file", "song", "prompts"), "prompt={value}"),
    **dict.fromkeys(("output", "output_dir", "out_dir"), "out={value}"),
    **dict.fromkeys(("samples", "n"), "num_samples={value}"),
    **dict.fromkeys(("length", "num_bars"), "bars={value}"),
    **dict.fromkeys(("max_tokens", "num_tokens", "max_length"), "max_new_tokens={value}"),
}
COMMAND_CURES = {"train": CURES, "prepare": CURES, "generate": GENERATE_CURES}


def split_prompts(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for Hydra, and the paths among them: `song.mid` of `generate song.mid`.

    Flags keep their values. A file whose name contains `=` is a path if it exists.
    """
    parsed, extras = get_args_parser().parse_known_args(list(arguments))
    if any(extra.startswith("-") for extra in extras):  # unknown flags are refused later
        return list(arguments), []
    # The parser takes positional arguments in one row only.
    positional = [*parsed.overrides, *extras]
    paths = [a for a in positional if not is_override(a) or Path(a).is_file()]
    if paths and any(argument.startswith("prompt=") for argument in arguments):
        raise UserError(f"{paths[0]}: give prompts either as paths or with prompt=, not both")
    return [argument for argument in arguments if argument not in paths], paths


def as_setting(paths: Sequence[str]) -> list[str]:
    """Return the argument `prompt=…` of one path or several."""
    if not paths:
        return []
    quoted = [quote(path) for path in paths]
    return [f"prompt={quoted[0]}" if len(paths) == 1 else f"prompt=[{','.join(quoted)}]"]


def check_folders(arguments: Sequence[str]) -> None:
    """Refuse a folder where a name is expected, in the commands that read a corpus."""
    for argument in arguments:
        key, equals, value = argument.partition("=")
        path = value if key == "data" and equals else argument if not equals else ""
        named = (CONF / "data" / f"{path}.yaml").is_file()
        if path and path[0] not in "-~" and not named and ("/" in path or Path(path).is_dir()):
            raise UserError(
                f"{argument}: a folder is not a corpus; give data=midi_folder data.root={path}"
            )


def cure(config_name: str, name: str, arguments: Sequence[str]) -> str | None:
    """Return what the user may have meant by an unknown name, with the value given."""
    found = COMMAND_CURES.get(config_name, {}).get(name)
    values = [a.partition("=")[2] for a in arguments if a.partition("=")[0] == name]
    return found.format(value=values[-1] if values else "VALUE") if found else None


def accept_trainer_arguments(arguments: Sequence[str]) -> list[str]:
    """Let Hydra accept every argument of Lightning's Trainer, also those that no file lists."""
    listed = {key for path in (CONF / "trainer").glob("*.yaml") for key in OmegaConf.load(path)}
    return [
        f"++{argument}"
        if (found := re.match(r"trainer\.(\w+)=", argument))
        and found[1] not in listed
        and found[1] in _trainer_parameters()
        else argument
        for argument in arguments
    ]


def _trainer_parameters() -> set[str]:
    import inspect

    from pytorch_lightning import Trainer  # slow to import

    return set(inspect.signature(Trainer.__init__).parameters)
