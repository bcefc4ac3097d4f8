#!/usr/bin/env python3
"""Starts lab/peers.py; --help says what it does."""

import sys

from flash_steps.command import run

sys.exit(run("lab.peers", "peers.py"))
