"""Places of input and output, and the settings of the CPU."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile

from omegaconf import DictConfig

from musicgen.data.prompt_files import HELD_OUT, prompt_files
from musicgen.errors import UserError
from musicgen.files import remove_if_empty
from musicgen.run_folders import MANIFEST, claimed, find_checkpoint

# Decoding steps with fewer multiplications gain little from a second thread.
WORK_FOR_THREADS = 2**25


def check_places(cfg: DictConfig) -> None:
    """Find the checkpoint of generate.py, and check its other files, without importing torch.

    Raises:
        UserError: a file is missing, or `out` holds results.
    """
    if cfg.checkpoint is not None:
        cfg.checkpoint = str(find_checkpoint(str(cfg.checkpoint)))
    if cfg.prompt is not None and cfg.prompt not in HELD_OUT:
        prompt_files(cfg.prompt)
    for setting in ("soundfont", "beats"):
        path = Path(str(cfg[setting])).expanduser()
        if cfg[setting] not in (None, "auto", "file") and not path.exists():
            raise UserError(f"{path}: no such file; give another with {setting}=FILE")
    manifest = Path(cfg.out or ".").expanduser() / MANIFEST
    if cfg.out is not None and manifest.exists():
        raise UserError(f"{manifest} exists already; give another folder with out=DIR")


def make_folder(name: str | None, default: str) -> Path:
    """Create and return the folder `out=name`; None: a new one in `default`, named by the time."""
    folder = Path(name or f"{default}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=name is not None)
            break
        except FileExistsError:
            if name is not None:
                raise
            folder = folder.with_name(f"{folder.name}_2")  # after a command in the same second
    TemporaryFile(dir=folder).close()  # it can be written to
    return folder


@contextmanager
def output_folder(name: str | None, default: str) -> Iterator[Path]:
    """Yield the folder of `make_folder`, which no other command writes to until the block ends.

    A folder that is empty at the end is removed, and so is `default` if it is its parent.

    Raises:
        UserError: another command is writing to the folder.
    """
    folder = make_folder(name, default)
    parent = remove_if_empty(folder.parent) if name is None else nullcontext()
    other = "another command is writing to this folder; wait for its end, or give another out=DIR"
    with parent, remove_if_empty(folder), claimed(folder, other):
        yield folder


def set_up_cpu(decoded: int | None = None) -> None:
    """Set denormal numbers to 0, which are slow, and use one thread for small decoding steps.

    A number of threads in the environment stays as it is.

    Args:
        decoded: multiplications in a decoding step, sequences × parameters; None if tokens are not
            decoded one by one.
    """
    import torch

    torch.set_flush_denormal(True)
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if decoded is not None and decoded < WORK_FOR_THREADS and not chosen:
        torch.set_num_threads(1)
