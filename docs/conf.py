"""Sphinx: `make docs` builds these pages into docs/_build/html."""

import re
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
    "description": "Train Transformers on symbolic music",
    "page_width": "1100px",
    "sidebar_collapse": True,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
INCLUDED = {  # files outside of docs/, and the pages that include them
    file: page.stem
    for page in Path(__file__).parent.glob("*.md")
    for file in re.findall(r"^```{include} \.\./(\S+)", page.read_text("utf-8"), re.MULTILINE)
}
# Links to files that only the repository has; tests/docs follows all links.
suppress_warnings = ["myst.xref_missing", "myst.header"]


def write_settings(app: Sphinx) -> None:
    """Write the reference of all settings before the pages are read."""
    from docs.settings import reference

    Path(app.srcdir, "settings.md").write_text(reference(), encoding="utf-8")


def link_pages(_: Sphinx, __: str, source: list[str]) -> None:
    """Replace links to included files by links to the pages that include them."""
    for file, page in INCLUDED.items():
        source[0] = source[0].replace(f"](../{file}", f"]({page}.md")


def name_files(_: Sphinx, page: nodes.document, __: str) -> None:
    """Show links to other files of the repository as text."""
    for link in list(page.findall(nodes.reference)):
        if "/" in link.get("refid", ""):
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_settings)
    app.connect("source-read", link_pages)
    app.connect("doctree-resolved", name_files)
