"""common/dependencies.cmake: a library that is here is taken, another is fetched by its hash."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:1/small.tar.gz"  # nobody listens


class Dependencies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        header = self.folder / "small-1.0" / "headers" / "fa_small" / "small.h"
        header.parent.mkdir(parents=True)
        header.write_text("// small\n")
        self.archive = self.folder / "small.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(self.folder / "small-1.0", "small-1.0")
        self.hash = hashlib.sha256(self.archive.read_bytes()).hexdigest()

    def configure(self, *options, url=None, sha256=None):
        """(exit status, the folder of the header or None, all that CMake said)"""
        source = self.folder / "project"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(small NONE)\n"
            f"include({ROOT}/common/dependencies.cmake)\n"
            "fa_library(FOUND NAME small APT libsmall-dev HEADERS fa_small/small.h\n"
            f"  INCLUDE headers URL {url or self.archive.as_uri()} SHA256 {sha256 or self.hash})\n"
            'message(STATUS "found in ${FOUND}")\n'
        )
        done = subprocess.run(
            ["cmake", "-S", source, "-B", self.folder / "build", *options],
            capture_output=True,
            text=True,
        )
        text = done.stdout + done.stderr
        found = re.search(r"-- found in (.*)", text)
        return done.returncode, found and Path(found[1]), text

    def test_one_that_is_here_is_taken(self):
        here = self.folder / "here"
        (here / "include" / "fa_small").mkdir(parents=True)
        (here / "include" / "fa_small" / "small.h").touch()
        status, found, text = self.configure(f"-DCMAKE_PREFIX_PATH={here}", url=NOWHERE)
        self.assertEqual((status, found), (0, here / "include"), text)

    def test_one_that_is_not_is_fetched_once(self):
        status, found, text = self.configure()
        self.assertEqual(status, 0, text)
        self.assertTrue((found / "fa_small" / "small.h").is_file(), found)
        self.archive.unlink()
        again = self.configure()
        self.assertEqual(again[:2], (0, found), again[2])

    def refused(self, *words, **how):
        status, _, text = self.configure(**how)
        self.assertNotEqual(status, 0, text)
        (sentence,) = re.findall(r"^ *flash-steps: (.*)$", text, re.MULTILINE)
        for word in ("small is not here and could not be fetched", "libsmall-dev", *words):
            self.assertIn(word, sentence)

    def test_another_archive_than_the_fixed_one_is_refused(self):
        self.refused("HASH mismatch", sha256="0" * 64)

    def test_without_a_network_the_sentence_says_what_to_do(self):
        self.refused("-DFETCHCONTENT_SOURCE_DIR_SMALL=", url=NOWHERE)

    def test_a_copy_serves_without_a_network(self):
        copy = self.folder / "small-1.0"
        status, found, text = self.configure(f"-DFETCHCONTENT_SOURCE_DIR_SMALL={copy}", url=NOWHERE)
        self.assertEqual((status, found), (0, copy / "headers"), text)


class Pins(unittest.TestCase):
    def test_every_library_of_the_build_is_fixed_by_its_hash(self):
        names = []
        for path in ("common/CMakeLists.txt", "tests/CMakeLists.txt"):
            for call in re.findall(r"^fa_library\((.*?)\)", (ROOT / path).read_text(), re.S | re.M):
                names.append(re.search(r"NAME (\S+)", call)[1])
                self.assertRegex(call, r"URL https://github\.com/\S+/v?[\d.]+\.tar\.gz\s")
                self.assertRegex(call, r"SHA256 [0-9a-f]{64}$")
        self.assertEqual(names, ["CLI11", "json", "fmt", "Catch2"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
