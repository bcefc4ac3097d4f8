#!/usr/bin/env python3
"""Starts flash_steps/fit_m.py; --help says what it does."""

import sys

from flash_steps.command import run

sys.exit(run("flash_steps.fit_m", "fit_m.py"))
