"""List the results that are older than the code that they measure: python -m benchmarks.stale"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import RESULTS, ROOT

_MODEL = ("musicgen/attention", "musicgen/models", "musicgen/position")
_MUSIC = ("musicgen/midi", "musicgen/tokenization")
_CONTINUATIONS = ("musicgen/generation", "musicgen/pretrained", *_MODEL, *_MUSIC)
MEASURED = {
    "accompaniments": _CONTINUATIONS,
    "bach_chorales": _CONTINUATIONS,
    "beats": ("musicgen/plugins/beats",),
    "causal_product": ("musicgen/attention",),
    "copy_head": _MODEL,
    "decoding": (*_MODEL, "musicgen/generation"),
    "decoding_engines": (*_MODEL, "musicgen/generation", "musicgen/export"),
    "endings": _CONTINUATIONS,
    "exact_spe": _MODEL,
    "gaps": _CONTINUATIONS,
    "keys": _CONTINUATIONS,
    "kinds": _CONTINUATIONS,
    "loader": ("musicgen/data", "musicgen/tokenization"),
    "losses": ("musicgen/pretrained", *_MODEL, *_MUSIC),
    "lrpe": _MODEL,
    "muon": ("musicgen/training/optimizers.py",),
    "page": ("musicgen/plugins/page", "musicgen/export", "musicgen/pretrained"),
    "performance": ("musicgen/generation", "musicgen/midi"),
    "performer_pytorch": _MODEL,
    "preparation": (*_MUSIC, "musicgen/data"),
    "pretrained": _CONTINUATIONS,
    "product_forms": ("musicgen/attention",),
    "quartets": _CONTINUATIONS,
    "scale": ("musicgen/data", "musicgen/midi"),
    "songs": _CONTINUATIONS,
    "span": _MODEL,
    "spe_gradients": _MODEL,
    "step_bytes": _MODEL,
    "style": (*_MODEL, "musicgen/pretrained"),
    "ten_endings": _CONTINUATIONS,
    "training_step": _MODEL,
    "tunes": _CONTINUATIONS,
}
"""The files that a result of benchmarks/results/ measures."""
NOT_MEASURED_AGAIN = {
    *("gpu-cuda", "gpu_profile"),  # on a GPU
    *("jsb_best", "leading_part", "race_decay", "race_options"),  # trainings
    *("chorale_split", "quick"),  # a split of data, and what each machine compares itself with
}


def main() -> None:
    for line in findings():
        print(line)


def findings() -> Iterator[str]:
    """Yield a line for each result that is older than its code, or of a commit that is unknown."""
    for name, measured in MEASURED.items():
        try:
            commits = changes(ROOT, RESULTS / f"{name}.json", measured)
        except subprocess.CalledProcessError:
            yield f"{name}: measured by a commit that is not in the history"
            continue
        if commits:
            yield f"{name}: older than {len(commits)} commits of {', '.join(measured)}"


def changes(repository: Path, result: Path, paths: tuple[str, ...]) -> list[str]:
    """Return the commits that changed the measured files after a result.

    A result names the commit of its code; of one that does not, it is the one that added it.
    """
    commit = json.loads(result.read_text(encoding="utf-8")).get("commit")
    commit = commit or git(repository, "log", "-1", "--format=%H", "--", str(result)).strip()
    return git(repository, "log", "--format=%h", f"{commit}..HEAD", "--", *paths).splitlines()


def git(repository: Path, *arguments: str) -> str:
    """Return the output of git; raise `CalledProcessError` outside of a repository."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
