"""The page that composes in a browser: the plugin that writes it."""

from musicgen.plugins.page.document import save_page

__all__ = ["save_page"]
