"""GPUs: the rows of common/data/gpus.json, and what is here."""

import datetime
import os
import re
import subprocess

from .command import BadInput, NotHere
from .files import read_json
from .nvcc import find_nvcc, version_of
from .steps import ROOT


def gpu_table():
    return read_json(os.path.join(ROOT, "common", "data", "gpus.json"))["gpus"]


def model_of(device):
    """The row whose words are all in the device's name: A100-80GB in NVIDIA A100-SXM4-80GB."""

    def words(name):
        return set(re.split(r"[ -]", name))

    fitting = [row["name"] for row in gpu_table() if words(row["name"]) <= words(device)]
    return max(fitting, key=lambda name: len(words(name)), default=None)


def peak_of(device):
    """FMA FLOP/s of all lanes at the highest clock, from the data sheet; None of an unknown GPU."""
    name = model_of(device or "")
    return next((row["fp32_flops"] for row in gpu_table() if row["name"] == name), None)


def find_model(name):
    for row in gpu_table():
        if row["name"] == name:
            return row
    raise BadInput(f"--model-gpu {name}: common/data/gpus.json has no such row")


def ask_gpu(fields):
    """What nvidia-smi says of the first GPU: values with commas between."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is None or answer.returncode != 0 or not answer.stdout.strip():
        raise NotHere(
            "no GPU found (nvidia-smi does not answer); --sim-only makes the simulator's "
            "side on any machine"
        )
    return answer.stdout.splitlines()[0]


def count_gpus():
    """How many there are, by nvidia-smi; 0 where it does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def machine():
    """What results.json says of this machine."""
    device, driver = (part.strip() for part in ask_gpu("name,driver_version").rsplit(",", 1))
    nvcc = find_nvcc()
    if not nvcc:
        raise NotHere("nvcc was not found: install the CUDA toolkit, 12.4 or newer")
    return {
        "device": device,
        "driver": driver,
        "toolkit": version_of(nvcc),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
