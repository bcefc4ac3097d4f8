"""The explorer's pages draw their first picture at once. It measures, so ctest runs it alone."""

import sys
import unittest

from browser import FOUND, MISSING, Browser
from copies import SCRIPTS  # noqa: F401  (makes flash_steps known)
from flash_steps import explorer
from flash_steps.explorer_pages import PAGES

FIRST_PICTURE_MS = 1000


@unittest.skipUnless(FOUND, MISSING)
class FirstPicture(unittest.TestCase):
    def test_it_comes_at_once(self):
        with Browser() as browser:
            for name in ["compare", *(page.step for page in PAGES)]:
                with self.subTest(page=name):
                    best = min(self.milliseconds(browser, name) for _ in range(3))
                    self.assertLess(best, FIRST_PICTURE_MS)

    def milliseconds(self, browser, name):
        page = browser.open(explorer.path_of(name))
        try:
            return float(page.until("document.documentElement.dataset.ready"))
        finally:
            page.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
