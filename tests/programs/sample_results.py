"""Hand-made JSON as from the step programs, for the tests of scripts that read it."""

import copy
import json
from pathlib import Path

import copies  # noqa: F401 -- finds the package
from flash_steps import commits, results

HERE = commits.here()


def moved(read, write):
    return {"read": read, "write": write, "atomic": 0}


def kernel(name, ms, blocks, sms, **parts):
    """An estimate; `parts`: the shares of the time."""
    about = {"name": name, "ms": ms, "blocks": blocks, "sms": sms, "arithmetic": True}
    return {**about, "parts": {part.replace("_", " "): share for part, share in parts.items()}}


SIM = {
    "schema": 1,
    "step": "01_naive",
    "variant": "naive",
    "device": {"kind": "sim", "name": "simulator", "arch": "sim"},
    "model_gpu": "H200",
    "problem": {
        **{"b": 1, "h": 4, "hkv": 4, "n": 1024, "nk": 1024, "d": 64},
        **{"causal": True, "dtype": "fp32", "input": "real", "seed": 1},
        **{"smem": None, "lengths": None, "page": None, "cache8": False},
    },
    "check": [{"tensor": "O", "max_abs_err": 1e-6, "bound": 1e-5, "ok": True}],
    "traffic": {
        "requested": {
            "predicted": moved(2000000000, 40000000),
            "counted": moved(2000000000, 40000000),
            "buffers": {
                "Q": {"predicted": None, "counted": moved(1500000000, 0)},
                "S": {"predicted": None, "counted": moved(500000000, 40000000)},
            },
        },
        "requests": {"load": 4000000, "store": 1000000, "atomic": 0},
        "sectors": {"load": 36000000, "store": 4000000, "atomic": 0},
        "hbm": {
            "predicted": {"read": 30000000, "write": 30000000},
            "model": {"read": 31000000, "write": 29000000},
            "measured": None,
        },
    },
    "time": None,
    "estimate": {
        "gpu": "H200",
        "verified": True,
        "ms": 0.4,
        "limit": "L1 lines",
        "kernels": [
            kernel("softmax_kernel", 0.1, 4, 4, waiting=0.6, L2=0.3),
            kernel("scores_kernel", 0.3, 1000, 132, L1_lines=0.9, waiting=0.1),
        ],
    },
    "bound_ms": 0.25,
    "host_ms": 900.0,
    "flops": 536870912,
    "flops_executed": 1073741824,
    "backward": None,
    "workspace_bytes": 33554432,
    "ok": True,
}


def sim(**changes):
    """A simulator's run of this tree's sources; changes are keys of the run or of its problem."""
    data = copy.deepcopy(SIM)
    for key, value in changes.items():
        (data["problem"] if key in data["problem"] else data)[key] = value
    data.setdefault("commit", HERE)
    data.setdefault("estimate_heads", data["problem"]["b"] * data["problem"]["h"])
    return data


def few_blocks(data):
    """The run with four blocks in the kernel that takes longest."""
    first, last = data["estimate"]["kernels"]
    data["estimate"]["limit"] = "waiting"
    first["ms"], last["ms"] = last["ms"], first["ms"]
    return data


def gpu(name="NVIDIA H200", median_ms=0.5, **changes):
    """The same run on a GPU: measured, not counted."""
    data = sim(**changes)
    data["device"] = {"kind": "gpu", "name": name, "arch": "sm_90"}
    data["model_gpu"] = None
    data["traffic"]["requested"]["counted"] = None
    data["traffic"]["hbm"].update(model=None, measured={"read": 32000000, "write": 30000000})
    spread = {"p10_ms": median_ms * 0.98, "p90_ms": median_ms * 1.05}
    data["time"] = {"median_ms": median_ms, **spread, "iters": 50}
    data["estimate"] = data["estimate_heads"] = None
    data["bound_ms"] = 0.2
    data["host_ms"] = None
    data["roofs"] = {
        "copy_bytes_per_s": 4.2e12,
        "fp32_flops": 6.5e13,
        "bf16_flops": 7.6e14,
        "fp32_matmul_flops": 5.1e13,
    }
    return data


def with_backward(data, atomic=0):
    """The run with a backward that adds with atomics."""
    keys = ("traffic", "time", "estimate", "host_ms", "flops", "flops_executed")
    backward = copy.deepcopy({key: data[key] for key in keys})
    for group in ("requests", "sectors"):
        backward["traffic"][group]["atomic"] = atomic
    backward["flops"] = 2.5 * data["flops"]
    data["backward"] = backward
    return data


def with_prepare(data):
    """The run with a prepare, which has a time and no FLOPs."""
    prepare = copy.deepcopy({key: data[key] for key in ("traffic", "time", "estimate", "host_ms")})
    if prepare["time"]:
        prepare["time"]["median_ms"] = 0.02
    if prepare["estimate"]:
        prepare["estimate"]["ms"] = 0.03
    data["prepare"] = {**prepare, "flops": 0, "flops_executed": 0}
    return data


def rows_of(folder, documents):
    """The table rows of these runs, from files in a folder."""
    paths = [write(Path(folder, f"{i}.json"), data) for i, data in enumerate(documents)]
    return results.join_for_reading([run for path in paths for run in results.load(path)])


def write(path, data):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return str(path)
