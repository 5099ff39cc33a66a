"""The page's scripts in node."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from musicgen.plugins.page.document import WORKER_SCRIPTS, constants_script, script

has_node = bool(shutil.which("node"))
needs_node = pytest.mark.skipif(not has_node, reason="needs node")


def run_worker(folder: Path, data: Any, body: str, names: Sequence[str] = WORKER_SCRIPTS) -> Any:
    """Return what a function of `data`, in the scope of some scripts, returns; by default the worker's."""
    scripts = "\n".join([constants_script(), *map(script, names)])
    (folder / "data.json").write_text(json.dumps(data))
    (folder / "worker.js").write_text(
        "const messages = []; const postMessage = (message) => messages.push(message);\n"
        f"let onmessage;\n{scripts}\n"
        f"const found = ((data) => {{ {body} }})(require('./data.json'));\n"
        "Promise.resolve(found).then((value) => process.stdout.write(JSON.stringify(value)));"
    )
    run = subprocess.run(
        ["node", str(folder / "worker.js")], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)
