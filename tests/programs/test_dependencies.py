"""common/dependencies.cmake: uses an installed library, or fetches it by its hash.
common/machine.cmake: refuses a tree that cannot be built. The includes between folders."""

import hashlib
import os
import re
import shutil
import tarfile
import time
import unittest
from pathlib import Path

from copies import ROOT, Folder, main, said

NOWHERE = "http://127.0.0.1:1/small.tar.gz"  # no server listens


class Dependencies(Folder):
    def setUp(self):
        super().setUp()
        self.write("small-1.0/headers/fa_small/small.h", "// small\n")
        self.archive = self.folder / "small.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(self.folder / "small-1.0", "small-1.0")
        self.hash = "SHA256 " + hashlib.sha256(self.archive.read_bytes()).hexdigest()

    def configure(self, *options, url=None, sha256=None, names=("small",)):
        """(exit status, the folder of the header or None, all that CMake said)"""
        calls = "".join(
            f"fa_library({name.upper()} NAME {name} APT lib{name}-dev HEADERS fa_{name}/{name}.h\n"
            f"  INCLUDE headers URL {url or self.archive.as_uri()} {sha256 or self.hash})\n"
            for name in names
        )
        path = self.write(
            "project/CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.25)\nproject(small NONE)\n"
            f"include({ROOT}/common/dependencies.cmake)\n{calls}fa_require_libraries()\n"
            'message(STATUS "found in ${SMALL}")\n',
        )
        done = said(
            ["cmake", "-G", "Ninja", "-S", path.parent, "-B", self.folder / "build", *options]
        )
        text = done.stdout + done.stderr
        found = re.search(r"-- found in (.*)", text)
        return done.returncode, found and Path(found[1]), text

    def test_one_that_is_here_is_taken(self):
        here = self.folder / "here"
        self.write("here/include/fa_small/small.h", "")
        status, found, text = self.configure(f"-DCMAKE_PREFIX_PATH={here}", url=NOWHERE)
        self.assertEqual((status, found), (0, here / "include"), text)

    def test_one_that_is_not_is_fetched_once(self):
        status, found, text = self.configure()
        self.assertEqual(status, 0, text)
        self.assertTrue((found / "fa_small" / "small.h").is_file(), found)
        self.archive.unlink()
        again = self.configure()
        self.assertEqual(again[:2], (0, found), again[2])

    def fails(self, *words, **how):
        """It ends with a sentence with these words. Returns CMake's output."""
        status, _, text = self.configure(**how)
        self.assertNotEqual(status, 0, text)
        (sentence,) = re.findall(r"^ *flash-steps: (.*)$", text, re.MULTILINE)
        for word in ("not here and could not be fetched", "libsmall-dev", *words):
            self.assertIn(word, sentence)
        return text

    def test_another_archive_than_the_fixed_one_is_refused(self):
        self.fails(": small; ", "HASH mismatch", sha256="SHA256 " + "0" * 64)

    def test_one_without_a_hash_is_refused_also_where_it_is_here(self):
        self.write("here/include/fa_small/small.h", "")
        here = f"-DCMAKE_PREFIX_PATH={self.folder / 'here'}"
        status, _, text = self.configure(here, sha256="BUILD")
        self.assertNotEqual(status, 0)
        self.assertIn("small has no SHA256", text)

    def test_without_a_network_the_sentence_says_what_to_do(self):
        self.fails(": small; ", "-DFETCHCONTENT_SOURCE_DIR_SMALL=", url=NOWHERE)

    def test_all_that_are_missing_are_named_at_once(self):
        both = ("small, other; install libsmall-dev libother-dev", "_SOURCE_DIR_OTHER=")
        text = self.fails(*both, url=NOWHERE, names=("small", "other"))
        self.assertEqual(text.count("fetching "), 1, text)  # one attempt is enough

    def test_a_copy_serves_without_a_network(self):
        copy = self.folder / "small-1.0"
        status, found, text = self.configure(f"-DFETCHCONTENT_SOURCE_DIR_SMALL={copy}", url=NOWHERE)
        self.assertEqual((status, found), (0, copy / "headers"), text)


class Machine(Folder):
    """common/machine.cmake: a folder, or a clock, with which ninja would rebuild everything."""

    def configured(self, folder="project"):
        """None, or the words that CMake ends with."""
        text = "cmake_minimum_required(VERSION 3.25)\n"
        text += f"include({ROOT}/common/machine.cmake)\nproject(small NONE)\n"
        path = self.folder / folder / "CMakeLists.txt"
        if not path.exists():
            self.write(path, text)
        done = said(["cmake", "-G", "Ninja", "-S", path.parent, "-B", path.parent / "build"])
        found = re.findall(r"^ *flash-steps: (.*)$", done.stderr, re.MULTILINE)
        self.assertEqual(len(found), bool(done.returncode), done.stderr)
        return found[0] if found else None

    def test_a_folder_whose_name_ninja_cannot_read(self):
        ninja = tuple(map(int, said(["ninja", "--version"]).stdout.split(".")[:2]))
        for character in "'&*;":
            folder = f"o{character}brien"
            words = f"the folder {self.folder / folder} has the character {character} in its name"
            reads = ninja >= (1, 13) and character in "'&"
            self.assertEqual(words in (self.configured(folder) or ""), not reads, folder)

    def test_a_file_of_the_future(self):
        self.assertIsNone(self.configured())
        project, log = self.folder / "project", self.folder / "project/build/.ninja_log"
        header = self.write(project / "common/sim/a.h", "")
        day, soon = time.time() + 86400, time.time() + 4
        date = time.strftime("%Y-%m-%d", time.localtime(day))
        for paths, words in (
            (
                [project / "CMakeLists.txt"],
                ("CMakeLists.txt is dated in", "set the clock, or touch it"),
            ),
            ([header], ("common/sim/a.h is dated in the future",)),
            (
                [project / "CMakeLists.txt", header],
                ("2 files, of which one is ", "-exec touch {} +"),
            ),
            ([self.write(log, "")], ("project/build was built in the future", "or remove it")),
        ):
            for path in paths:
                os.utime(path, (day, day))
            said_of = self.configured() or ""
            for word in (*words, f"({date} "):
                self.assertIn(word, said_of)
            for path in paths:
                os.utime(path, (soon, soon))
            self.assertIsNone(self.configured())


class Build(Folder):
    """The whole build, configured on a machine where something is missing."""

    def configure(self, *options):
        for header in ("CLI/CLI.hpp", "nlohmann/json.hpp", "fmt/format.h"):
            self.write(self.folder / "here/include" / header, "")
        command = ["cmake", "--preset", "sim", "-B", self.folder / "build", *options]
        done = said(command, cwd=ROOT, env={**os.environ, "https_proxy": "http://127.0.0.1:1"})
        return done.returncode, done.stdout + done.stderr

    def test_another_compiler_than_gpp_is_refused_in_one_sentence(self):
        status, text = self.configure(
            *("-DCMAKE_CXX_COMPILER_FORCED=1", "-DCMAKE_CXX_COMPILER_ID_RUN=1"),
            "-DCMAKE_CXX_COMPILER_ID=Clang",
        )
        self.assertNotEqual(status, 0)
        (sentence,) = re.findall(r"^ *flash-steps: (.*)$", text, re.MULTILINE)
        self.assertRegex(sentence, r"needs g\+\+, .* \(Clang\): run, once, CXX=g\+\+ cmake --fresh")

    def test_without_catch2_and_with_an_assembler_that_is_the_compilers_own(self):
        own = self.folder / "own"
        words = f'#!/bin/sh\nexec {shutil.which("g++")} -B{own}/ "$@"\n'
        script = self.program("own/g++", words)
        (own / "as").symlink_to(shutil.which("as"))
        status, text = self.configure(
            *(f"-DCMAKE_CXX_COMPILER={script}", "-DCMAKE_CXX_FLAGS=-O1 -pipe -g0"),
            f"-DCMAKE_PREFIX_PATH={self.folder / 'here'}",
            *(
                "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
                "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=OFF",
            ),
        )
        self.assertEqual(status, 0, text)
        build = ["cmake", "--build", self.folder / "build", "--target"]
        targets = said([*build, "help"]).stdout
        for target in ("any_program", "14_ring", "exercises", "test_counts"):
            found = re.search(rf"\b{target}\b", targets)
            self.assertEqual(bool(found), target != "test_counts", target)
        done = said([*build, "tests_need_catch2"])
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"(?m)^flash-steps: not here .*: Catch2; install catch2, or ")

        # A shared array keeps its gap.
        how = (self.folder / "build/common/sim/any/how_to_build.txt").read_text()
        (flags,) = re.findall("^cuda (.*)$", how, re.MULTILINE)
        kernel = self.write("k.cpp", "int f() { static thread_local int a[4]; return ++a[0]; }\n")
        made = self.folder / "k.o"
        self.ended(said([script, *flags.split(";"), "-c", kernel, "-o", made]))
        self.assertRegex(said(["size", "-A", made]).stdout, rf"(?m)^\.tbss +{16 + 4096} ")
        ninja = (self.folder / "build/build.ninja").read_text()
        self.assertIn("FLAGS = -O1 -g0 ", ninja)  # with -pipe the assembler gets no file


class Layers(unittest.TestCase):
    """A folder of common/ includes itself and these; steps, which are above, include any."""

    KNOWS = {
        "dialect": (),
        "counts": ("dialect",),
        "sim": ("dialect", "counts"),
        "gpu": ("dialect", "counts"),
        "harness": ("dialect", "counts"),
        "program": ("dialect", "counts", "harness"),
        "ranks": ("dialect", "counts", "harness", "program"),
    }

    def test_arrows_go_down(self):
        known = {path.name for path in (ROOT / "common").iterdir() if path.is_dir()}
        self.assertEqual(known - {"data"}, set(self.KNOWS))
        start, seen = '#include "common/', set()
        for folder, below in self.KNOWS.items():
            for path in (ROOT / "common" / folder).rglob("*.*"):
                if path.suffix not in (".h", ".cuh", ".cpp", ".cu", ".inc"):
                    continue
                for line in path.read_text(encoding="utf-8").splitlines():
                    if line.startswith("#include") and '"steps/' in line:
                        self.fail(f"{path}: {line}")
                    if not line.startswith(start):
                        continue
                    other = line.removeprefix(start).partition("/")[0]
                    self.assertIn(other, (folder, *below), f"{path}: {line}")
                    seen.add((folder, other))
        self.assertGreaterEqual(seen, {("sim", "counts"), ("harness", "counts")})


if __name__ == "__main__":
    main()
