"""Run folders and the checkpoints in them."""

from __future__ import annotations

from pathlib import Path

from musicgen.errors import UserError


def find_run(name: str, root: Path = Path("outputs")) -> Path:
    """Return the run folder that `resume=` names; `auto` is the newest below `root`."""
    unquoted = name.strip("'\"")
    if unquoted == "auto":
        return find_checkpoint("latest", root).parent.parent
    folder = Path(unquoted).expanduser()
    if folder.name == "last.ckpt":
        folder = folder.parent.parent
    elif folder.suffix == ".ckpt":
        raise UserError(
            f"resume={name}: a run resumes from its last.ckpt; give the folder of the run"
        )
    if not (folder / "checkpoints" / "last.ckpt").is_file():
        raise UserError(
            f"resume={name}: {folder} holds no checkpoints/last.ckpt; give the folder of a run, "
            "or resume=auto for the newest"
        )
    return folder


def find_checkpoint(name: str, root: Path = Path("outputs")) -> Path:
    """Return the file that `checkpoint=` names: a file, a run folder (its best), or `latest`."""
    if name == "latest":
        found = list(root.glob("**/checkpoints/last.ckpt"))
        if not found:
            raise UserError(f"no checkpoint below {root}/; train a model first: python train.py")
        return _best(max(found, key=lambda path: path.stat().st_mtime).parent)
    path = Path(name).expanduser()
    if path.is_dir():
        folder = path if path.name == "checkpoints" else path / "checkpoints"
        if not (folder / "last.ckpt").is_file():
            raise UserError(f"checkpoint={name}: that folder holds no checkpoints/last.ckpt")
        return _best(folder)
    if not path.is_file():
        raise UserError(
            f"checkpoint={name}: no such file or folder; give a .ckpt, a run's folder, or latest"
        )
    return path


def _best(folder: Path) -> Path:
    """Return the checkpoint with the best validation loss, else the last one."""
    best = folder / "best.ckpt"
    return best if best.is_file() else folder / "last.ckpt"
