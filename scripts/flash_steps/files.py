"""Whole files, text and JSON; and the folder of this tree."""

import json
import os

from .command import BadInput

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def replace_text(path, text):
    """As a whole or not at all."""
    part = path + ".part"
    try:
        write_text(part, text)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def read_json(path):
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def write_json(path, tree, **how):
    write_text(path, json.dumps(tree, **how) + "\n")
