"""pip install .: flash_steps.attention(), with the steps' libraries, which cmake and nvcc build for
the GPUs of this machine; with STEPS="10 11" in the environment only these.
"""

import os
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from flash_steps.building import commands  # noqa: E402
from flash_steps.files import version  # noqa: E402
from flash_steps.steps import find_steps, library_path, numbered_steps  # noqa: E402


class WithLibraries(build_py):
    def run(self):
        super().run()
        wanted = os.environ.get("STEPS")
        steps = find_steps(wanted) if wanted else numbered_steps()[:13]  # 14 is for several GPUs
        for command in commands("gpu", [f"{step}_library" for step in steps]):
            subprocess.run(command, cwd=ROOT, check=True)
        folder = os.path.join(self.build_lib, "flash_steps", "lib", "steps")
        os.makedirs(folder, exist_ok=True)
        for step in steps:
            shutil.copy(library_path(os.path.join(ROOT, "build", "gpu"), step), folder)


setup(version=version(), cmdclass={"build_py": WithLibraries})
