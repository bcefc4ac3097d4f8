"""For the tests of scripts/lab: the helpers of tests/programs, which this makes importable."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs"))

from copies import (  # noqa: E402, F401
    BUILD,
    HAVE_GIT,
    ROOT,
    Folder,
    commit_all,
    copy_scripts,
    main,
    maintain,
    said,
)
from sample_results import HERE, gpu, sim, with_backward, with_prepare, write  # noqa: E402, F401
