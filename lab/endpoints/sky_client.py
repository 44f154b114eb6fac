"""The program that stands for the command `sky`: it hands its arguments to the stand-in, and prints the answer."""

import sys

_PROGRAM = """#!{python} -S
import http.client, json, os, sys
arguments = sys.argv[1:]
files = {{each: open(each, encoding="utf-8").read() for each in arguments if each.endswith(".yaml")}}
connection = http.client.HTTPConnection({host!r}, timeout=600)
body = json.dumps({{"arguments": arguments, "files": files}}).encode()
connection.request("POST", "/", body, {{"Content-Type": "application/json"}})
answer = json.loads(connection.getresponse().read())
sys.stdout.buffer.write(answer["output"].encode())
sys.stderr.buffer.write(answer["errors"].encode())
sys.stdout.flush()
sys.stderr.flush()
os._exit(answer["status"])
"""


def client_program(url: str) -> str:
    """Return the text of the program, for the stand-in at this URL."""
    return _PROGRAM.format(python=sys.executable, host=url.removeprefix("http://").rstrip("/"))
