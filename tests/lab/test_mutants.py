"""The list of mutants fits the source, and the faults in the copy."""

import unittest

from basis import ROOT, main
from flash_steps.command import BadInput
from lab import mutants
from lab.mutants import Fault

CODE = """#pragma once
// A step.
void f() {
  if (r < N) store(r);
  sync();
  sync();  // again
}
"""


def faults(*of):
    return [Fault("step01", "a.cuh", "", *one) for one in of]


class TheList(unittest.TestCase):
    def test_each_fault_has_its_place_in_the_source(self):
        tests, found = mutants.read_list((ROOT / "tests" / "mutants.toml").read_text())
        for file, of_file in mutants.by_file(found).items():
            text = (ROOT / file).read_text()
            self.assertEqual(mutants.mutated(text, of_file).count("\n"), text.count("\n"), file)
        for group in tests:
            self.assertGreaterEqual(sum(f.group == group for f in found), 15, group)

    def test_what_is_wrong_in_it_is_said(self):
        head = '[tests]\na = ["test_a"]\n'
        fault = '[[{}]]\nfile = "x"\nfaults = [[{}]]\n'
        gone = '[[a]]\nfile = "x"\nwithout = ["sync();  // again"]\n'
        self.assertEqual([f.of for f in mutants.read_list(head + gone)[1]], ["sync();"])
        for text, said in (
            (fault.format("b", '"y", "z"'), "does not say what tests b"),
            (fault.format("a", '"y"'), r"x: \['y'\] is not quote, of, to"),
            (fault.format("a", '"y", "z", {off = "y"}'), "is not quote, of, to"),
            ("[[a", "mutants.toml: "),
        ):
            with self.assertRaisesRegex(BadInput, said):
                mutants.read_list(head + text)


class InTheCopy(unittest.TestCase):
    def test_expressions_and_statements_have_switches_on_their_lines(self):
        inner, outer, last = of = faults(
            ("if (r < N) store(r);", "r < N", "r <= N"),
            ("if (r < N) store(r);", "if (r < N) store(r);", ""),
            ("sync();", "sync();", "", "sync();\n"),
        )
        lines = mutants.mutated(CODE, of).splitlines()
        self.assertEqual(lines[:2], ["#pragma once", "bool fa_mutant(unsigned n); // A step."])
        self.assertEqual(
            lines[3],
            f"  if (fa_mutant({outer.number}u)) {{  }} else {{ "
            f"if ((fa_mutant({inner.number}u) ? (r <= N) : (r < N))) store(r); }}",
        )
        self.assertEqual(lines[4], "  sync();")
        self.assertIn(f"fa_mutant({last.number}u)", lines[5])
        self.assertEqual(last.line_number(CODE), 6)

    def test_a_quote_that_does_not_fit_is_refused(self):
        for fault, said in (
            (("r > N", "r > N", ""), "a.cuh has no 'r > N'"),
            (("sync();", "sync();", ""), "'sync\\(\\);' more than once"),
            (("sync();", "sync();", "", "none"), "a.cuh has no 'none'"),
            (("r < N", "r <= N", ""), "has no 'r <= N'"),
        ):
            with self.assertRaisesRegex(BadInput, said):
                mutants.mutated(CODE, faults(fault))
        with self.assertRaisesRegex(BadInput, "overlaps another"):
            mutants.mutated(CODE, faults(("r < N) s", "r < N) s", ""), ("N) st", "N) st", "")))


class WhatFoundIt(unittest.TestCase):
    def test_the_first_failure_of_a_report_that_a_crash_cut(self):
        case = '<Catch><TestCase name="right"><Expression success="true"/></TestCase>'
        words = "race: store of x at a.cuh:4"
        for report, found in (
            (f'{case}<TestCase name="it"><Failure>\n {words}\n</Failure>', ("it", words)),
            (f'{case}<TestCase name="it"><Info>before', ("it", "")),
            (
                f'{case}<TestCase name="it"><Info>t.message := "{words}"</Info>'
                '<Expression success="false"><Expanded>false</Expanded></Expression>',
                ("it", f'"{words}"'),
            ),
        ):
            self.assertEqual(mutants.first_failure(report), found)
        fault = faults(("if (r < N) store(r);", "if (r < N) store(r);", ""))[0]
        self.assertEqual(mutants.names(fault, words, 4), "line")
        self.assertEqual(mutants.names(fault, words, 5), "file")
        for other in ("O is wrong", "a.cuh"):
            self.assertEqual(mutants.names(fault, other, 4), "-")


if __name__ == "__main__":
    main()
