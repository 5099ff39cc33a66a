"""Sphinx: `make docs` builds these pages into docs/_build/html."""

import sys
from pathlib import Path

from docutils import nodes
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
# Links to files that only the repository has; tests/docs follows all links.
suppress_warnings = ["myst.xref_missing", "myst.header"]


def write_settings(app: Sphinx) -> None:
    """Write the reference of all settings before the pages are read."""
    from docs.settings import reference

    Path(app.srcdir, "settings.md").write_text(reference(), encoding="utf-8")


def name_files(_: Sphinx, page: nodes.document, __: str) -> None:
    """Show links to files outside of these pages as text."""
    for link in list(page.findall(nodes.reference)):
        if "/" in link.get("refid", ""):
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_settings)
    app.connect("doctree-resolved", name_files)
