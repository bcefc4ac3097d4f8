"""For the tests of scripts/lab: the helpers of tests/programs, which this makes importable."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs"))

from copies import *  # noqa: E402, F403
from sample_results import *  # noqa: E402, F403
