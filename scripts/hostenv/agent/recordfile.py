"""The rows of a RECORD, of an installation or a wheel: whatever the file holds, only rows come out.

Format: the recording-installed-projects specification of packaging.python.org.
"""

from __future__ import annotations

import binascii
import csv
import io
import zipfile
import zlib
from typing import List, Optional, Tuple

from hostenv.agent.wire import AgentError

DIGITS = 43
"""Characters of a sha256 in base64 without padding."""
_BYTES = 32

Fields = Tuple[List[List[str]], List[str]]
"""The fields of each row, empty lines aside, and what of the file is no row: ``line N is not CSV: why``."""


def fields(text: str) -> Fields:
    """Split a RECORD into fields; what the ``csv`` module refuses is told, and the other rows are returned.

    It refuses a field of more than 131072 characters within a row with quotes, and with Python 3.8 a NUL.
    """
    if '"' not in text:
        lines = (line[:-1] if line.endswith("\r") else line for line in text.split("\n"))
        return [line.split(",") for line in lines if line], []
    rows: List[List[str]] = []
    problems: List[str] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return rows, problems
        except csv.Error as error:
            problems.append(f"line {number} is not CSV: {error}")
            continue
        if row:
            rows.append(row)


def sha256(stated: str) -> Optional[bytes]:
    """Return the digest that the second field of a row states; ``None`` where it is no sha256."""
    if stated[:7] != "sha256=" or len(stated) != 7 + DIGITS:
        return None
    try:
        digest = binascii.a2b_base64(stated[7:].replace("-", "+").replace("_", "/") + "=")
    except ValueError:
        return None
    # Characters outside the alphabet are skipped by the decoder, and then bytes are short.
    return digest if len(digest) == _BYTES else None


def of_wheel(wheel: str) -> Fields:
    """Return the rows of a wheel's RECORD, if it has one; raises :class:`AgentError` for no wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _is_record(name)]
            text = archive.read(names[0]).decode("utf-8", "surrogateescape") if names else ""
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError) as error:
        message = f"{wheel}: not a readable wheel: {error}"
        raise AgentError(message, hint="remove it; it is fetched again") from error
    return fields(text)


def _is_record(name: str) -> bool:
    return name.endswith(".dist-info/RECORD") and name.count("/") == 1
