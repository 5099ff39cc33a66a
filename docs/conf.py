"""Sphinx: `make docs` builds these pages into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "musicgen"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Train and use your own symbolic-music model",
    "page_width": "1100px",
    "sidebar_collapse": True,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
# Pages link to files of the repository, and include READMEs, which link to their neighbours.
suppress_warnings = ["myst.xref_missing", "myst.header"]


def setup(app: Sphinx) -> None:
    """Write the reference of all settings before the pages are read."""
    from docs.settings import reference

    def write(_: Sphinx) -> None:
        Path(app.srcdir, "settings.md").write_text(reference(), encoding="utf-8")

    app.connect("builder-inited", write)
