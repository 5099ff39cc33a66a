"""Copy the configuration files and the vocabularies, which lie outside the package, into it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithResources(build_py):
    """Add `musicgen/conf` and `musicgen/vocabularies`, which musicgen/package_data.py reads."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # musicgen/package_data.py finds the checkout's folders
            return
        package = Path(self.build_lib, "musicgen")
        for source, target in (("conf", "conf"), ("tokenizers", "vocabularies")):
            shutil.rmtree(package / target, ignore_errors=True)
            shutil.copytree(source, package / target)


setup(cmdclass={"build_py": BuildWithResources})
