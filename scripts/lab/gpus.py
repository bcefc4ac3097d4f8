"""The GPUs of this machine."""

import datetime
import subprocess

from flash_steps.command import NotHere
from flash_steps.nvcc import find_nvcc, version_of


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
