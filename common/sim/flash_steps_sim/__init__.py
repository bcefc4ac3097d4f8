"""scripts/sim as it is installed: CMake puts it beside this file."""

import os
import runpy


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    runpy.run_path(os.path.join(here, "scripts", "sim"), run_name="__main__")
