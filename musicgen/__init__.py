"""Train Transformers on symbolic music, and continue MIDI files with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from musicgen.generation.model import MusicModel

__version__ = "0.1.0"


def list_models() -> list[str]:
    """Return the names of the models that come with the package, the default first."""
    from musicgen.run_folders import shipped_models

    return shipped_models()


def load(checkpoint: str | Path | None = None) -> MusicModel:
    """Load a trained model, with its `.tokenizer` and `.generate(prompts, …)`.

    Args:
        checkpoint: a .ckpt, a run's folder (its best), `latest`, the newest below `outputs/`, a
            folder of `save_pretrained`, or one of `list_models()`. None: the first of these.

    If other programs are busy, torch's threads slow each other down by waiting. Then call
    `torch.set_num_threads(1)`, or set OMP_WAIT_POLICY=passive before Python starts.

    Raises:
        UserError: the file is missing, or not a checkpoint of musicgen.
    """
    # Imported here, so that `import musicgen`, and an error about the path, need no torch.
    from musicgen.run_folders import find_checkpoint

    path = find_checkpoint(str(checkpoint or list_models()[0]))
    from musicgen.generation.model import load as load_model

    return load_model(path)


def train(*settings: str) -> MusicModel:
    """Train as train.py does, in a separate process; return the model with the best weights.

    Args:
        settings: arguments of train.py, such as `experiment=my_music` and `data.root=/my/midi`.

    Raises:
        CalledProcessError: training failed; standard error says why.
    """
    import subprocess
    import sys
    import time
    from uuid import uuid4

    given = {key: value.strip("'\"") for key, _, value in (s.partition("=") for s in settings)}
    folders = "resume", "paths.output_dir", "hydra.run.dir"
    folder = next((given[name] for name in folders if name in given), None)
    name = time.strftime(f"%Y-%m-%d_%H-%M-%S-{uuid4().hex[:6]}")
    if folder is None:
        settings = (*settings, f"hydra.run.dir=outputs/${{run_name}}/{name}")
    run = "from musicgen.cli.commands import train; train()"
    subprocess.run([sys.executable, "-c", run, *settings], check=True)
    if folder is None:
        (found,) = Path("outputs").glob(f"**/{name}")
        return load(found)
    return load("latest" if folder == "auto" else folder)
