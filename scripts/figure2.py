#!/usr/bin/env python3
"""Starts lab/figure2.py; --help says what it does."""

import sys

from flash_steps.command import run

sys.exit(run("lab.figure2", "figure2.py"))
