"""Compares the simulator of arm64 Linux, which qemu runs, with this machine's.

    maintain arm64            steps 01, 06 and 10, and two programs of ./scripts/sim
    maintain arm64 --tests    the tests of the simulator, of PTX and of the harness, too

Results, counts and findings must be equal to the last bit, but for host times and the last digits
of estimated times. Cross-builds in build/arm64. Needs g++-aarch64-linux-gnu and qemu-user.
Exit status: 0 all is equal, 1 something differs, 2 bad use, 3 something is missing.
"""

import math
import os
import shutil
import subprocess
import sys
import tempfile

from flash_steps import building, command, cuda_program, cuda_translator
from flash_steps.command import Failure, NotHere
from flash_steps.files import ROOT, read_json
from flash_steps.steps import program_of

PREFIX = "aarch64-linux-gnu-"
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
TREES = {name: os.path.join(ROOT, "build", name) for name in ("sim", "arm64")}
STEPS = {
    "01_naive": ["--n=33", "--d=32", "--analyse"],
    "06_work_partitioning": ["--n=65", "--d=64", "--causal", "--analyse"],
    "10_warp_specialized": ["--n=257", "--d=64", "--causal", "--analyse"],
}
PROGRAMS = {"programs/faults.cu": ["race"], "any_program/half.cu": []}
TESTS = "test_harness test_ptx test_ptx_sm_80 test_ptx_sm_90a test_simulator".split()
CROSS = {
    "FA_BACKEND": "sim",
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_CXX_COMPILER": PREFIX + "g++",
    "CMAKE_CROSSCOMPILING_EMULATOR": ";".join(EMULATOR),
    "CMAKE_DISABLE_FIND_PACKAGE_MPI": "ON",
}


def check_tools():
    for tool, package in ((PREFIX + "g++", "g++-aarch64-linux-gnu"), (EMULATOR[0], "qemu-user")):
        if not shutil.which(tool):
            raise NotHere(f"there is no {tool} here: apt install {package}")


def build(targets):
    cross = [f"-D{name}={value}" for name, value in CROSS.items()]
    configure = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", TREES["arm64"], *cross]
    for call in (
        configure,
        ["cmake", "--build", TREES["arm64"], "--target", *targets],
        ["cmake", "--preset", "sim", "-S", ROOT],
        ["cmake", "--build", TREES["sim"], "--target", *STEPS, "any_program"],
    ):
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"the build failed: {building.reason(done.stdout + done.stderr)}")


def compiled(tree, source, folder):
    cuda_program.HOW = os.path.join(TREES[tree], "common", "sim", "any", "how_to_build.txt")
    how = cuda_program.how_to_build()
    cuda_translator.COMMENT = "//" if tree == "arm64" else "#"  # by assembler
    options, _ = cuda_program.parse([source], __doc__)
    os.makedirs(folder, exist_ok=True)
    return cuda_program.link(
        [cuda_program.compile_file(source, how, options, folder, 0)], how, options, folder
    )


def with_its_tools(environment, folder):
    """Puts addr2line and objcopy of that machine first."""
    for tool in ("addr2line", "objcopy"):
        os.symlink(shutil.which(PREFIX + tool), os.path.join(folder, tool))
    return {**environment, "PATH": f"{folder}:{environment['PATH']}"}


def outcome(tree, words, folder):
    """(status, what it prints, its JSON), without the machine's name."""
    path = os.path.join(folder, "out.json")
    wishes = f"program it\ngpu H200\nanalyse\njson {path}"  # options of ./scripts/sim
    environment = {**os.environ, "FLASH_STEPS_SIM": wishes}
    if tree == "arm64":
        words, environment = [*EMULATOR, *words], with_its_tools(environment, folder)
    done = subprocess.run(
        [path if word == "JSON" else word for word in words],
        env=environment,
        capture_output=True,
        text=True,
    )
    said = [x for x in (done.stdout + done.stderr).splitlines() if not x.startswith("device ")]
    return done.returncode, said, read_json(path)


def differences(one, other, place=""):
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        keys = [key for key in one if key != "host_ms" and (place[-7:], key) != (".device", "name")]
        return [x for key in keys for x in differences(one[key], other[key], f"{place}.{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) == len(other):
            return [x for i, a in enumerate(one) for x in differences(a, other[i], f"{place}.{i}")]
    estimated = ".estimate." in place and isinstance(one, float) and isinstance(other, float)
    equal = math.isclose(one, other, rel_tol=1e-12) if estimated else one == other
    return [] if equal else [f"{place[1:]}: {one!r}, on arm64 {other!r}"]


def compare(what, calls):
    """`calls`: {tree: words}"""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for tree, words in calls.items():
            own = os.path.join(folder, tree)
            os.mkdir(own)
            found[tree] = outcome(tree, words, own)
    wrong = differences(found["sim"], found["arm64"])
    print(f"{what:24}{'NOT EQUAL' if wrong else 'equal'}", flush=True)
    for line in wrong:
        print(f"  {line}")
    return not wrong


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--tests", action="store_true", help="these tests, too")
    options = parser.parse_args()
    check_tools()
    build([*STEPS, "any_program", *(TESTS if options.tests else [])])
    equal = []
    for step, problem in STEPS.items():
        words = [*problem, "--json", "JSON"]
        equal.append(compare(step, {x: [program_of(TREES[x], step), *words] for x in TREES}))
    with tempfile.TemporaryDirectory() as folder:
        for name, words in PROGRAMS.items():
            source = os.path.join(ROOT, "tests", name)
            calls = {}
            for tree in TREES:
                own = os.path.join(folder, tree, os.path.basename(name))
                calls[tree] = [compiled(tree, source, own), *words]
            equal.append(compare(name, calls))
    if options.tests:
        tests = ["ctest", "--test-dir", TREES["arm64"], "-R", f"^({'|'.join(TESTS)})$"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(tests, env=with_its_tools(os.environ, folder))
        equal.append(done.returncode == 0)
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
