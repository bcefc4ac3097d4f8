"""The GPUs that the simulator models: the rows of common/data/gpus.json."""

import functools
import os
import re

from .command import BadInput
from .files import ROOT, read_json


@functools.cache
def gpu_table():
    return read_json(os.path.join(ROOT, "common", "data", "gpus.json"))["gpus"]


def model_of(device):
    """The row whose words all occur in the device's name: A100-80GB in NVIDIA A100-SXM4-80GB."""

    def words(name):
        return set(re.split(r"[ -]", name))

    fitting = [row["name"] for row in gpu_table() if words(row["name"]) <= words(device)]
    return max(fitting, key=lambda name: len(words(name)), default=None)


def peak_of(device):
    """FMA FLOP/s of all lanes at the highest clock, by the data sheet; None for an unknown GPU."""
    name = model_of(device or "")
    return next((row["fp32_flops"] for row in gpu_table() if row["name"] == name), None)


def sms_of(name):
    """The number of SMs in the row of this name; None without such a row."""
    return next((row["sms"] for row in gpu_table() if row["name"] == name), None)


def find_model(name):
    for row in gpu_table():
        if row["name"] == name:
            return row
    raise BadInput(f"--gpu {name}: common/data/gpus.json has no such row")
