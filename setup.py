"""Copy the configuration files, which lie outside the package, into it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Add `musicgen/conf`, which musicgen/package_data.py reads."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # which reads the checkout's folder
            target = Path(self.build_lib, "musicgen", "conf")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("conf", target)


setup(cmdclass={"build_py": BuildWithConf})
