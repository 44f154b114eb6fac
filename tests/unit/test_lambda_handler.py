"""The handler of functions, as its runtime calls it: one event after the other in the same process."""

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zooid.entry import lambda_handler

RUNTIME = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import lambda_handler

class Context:
    aws_request_id = "request"

    def get_remaining_time_in_millis(self):
        return 1000

before = set(sys.modules)
answers = [lambda_handler.handler(event, Context()) for event in json.loads(sys.argv[2])]
own = {"answers": answers, "imported": sorted(set(sys.modules) - before), "LEFT": os.environ.get("LEFT")}
print(json.dumps(own))
"""
TOLD = """
import json, os, sys
print(json.dumps({"has": "colorsys" in sys.modules, "is_main": __name__, "GIVEN": os.environ.get("GIVEN")}), flush=True)
"""
ENDING = "sys.stdout.flush(); os._exit(STATUS)"


def event(title: str, program: str, imports: Sequence[str] = ("colorsys",), **environment: str) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(program.encode())).decode()
    return {"title": title, "imports": imports, "environment": environment, "program": packed}


def handled(*events: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Let one process handle events; return the lines that it has printed, and its errors."""
    folder = Path(lambda_handler.__file__).parent
    command = [sys.executable, "-I", "-c", RUNTIME, str(folder), json.dumps(events)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_members_find_what_they_need_imported_and_each_ends_with_its_own_status() -> None:
    programs = [TOLD + ENDING.replace("STATUS", status) for status in ("0", "3")]
    lines, errors = handled(*(event(f"m{number}", program, GIVEN="yes") for number, program in enumerate(programs)))
    told = {"has": True, "is_main": "__main__", "GIVEN": "yes"}
    assert errors == ""
    assert [line.get("zooid") for line in lines] == ["began", None, "ended", "began", None, "ended", None]
    assert lines[1] == lines[4] == told
    assert [line["title"] for line in lines if "zooid" in line] == ["m0", "m0", "m1", "m1"]
    assert lines[-1] == {"answers": [{"status": 0}, {"status": 3}], "imported": ["colorsys"], "LEFT": None}


def test_nothing_of_a_member_stays_in_the_process() -> None:
    program = "import os, sys, wave\nos.environ['LEFT'] = 'yes'\n" + ENDING.replace("STATUS", "0")
    lines, _ = handled(event("m0", program))
    assert lines[-1] == {"answers": [{"status": 0}], "imported": ["colorsys"], "LEFT": None}


def test_a_program_that_fails_or_ends_ends_its_own_process_alone() -> None:
    lines, errors = handled(
        event("m0", "1 / 0"), event("m1", "pass"), event("m2", "import os; os.kill(os.getpid(), 9)")
    )
    assert lines[-1]["answers"] == [{"status": 1}, {"status": 1}, {"status": -9}]
    assert "ZeroDivisionError" in errors


def test_a_package_that_is_not_there_is_left_to_the_member_to_report() -> None:
    lines, errors = handled(event("m0", TOLD + ENDING.replace("STATUS", "0"), imports=["missing_package", "colorsys"]))
    assert lines[1]["has"]
    assert "No module named 'missing_package'" in errors
