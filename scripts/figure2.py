#!/usr/bin/env python3
"""Starts flash_steps/figure2.py; --help says what it does."""

import sys

from flash_steps.command import run

sys.exit(run("figure2", "figure2.py"))
