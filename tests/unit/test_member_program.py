"""A member runs the spec that was launched, and no other."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lab.members import Members
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import ProbeMember, ProbeSpec
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore, open_store
from zooid.store.member_program import EXIT_FAILED, EXIT_USAGE, run_member

FORGE = """
import os, pathlib, sys
spec = pathlib.Path(sys.argv[1])
spec.write_bytes(spec.read_bytes().replace(b"job.py", b"own.py"))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Changes the spec after its digest was checked, and before the member reads it."""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "run").as_uri())


def written(store: ObjectStore) -> tuple[str, str]:
    """Write a spec, and return its URL and its digest."""
    spec = ProbeSpec(
        run="run",
        member="m0",
        store=store.url,
        num_threads=1,
        members=(ProbeMember(name="m0", site="here"),),
        num_repeats=1,
        timeout_s=1.0,
        ends=("store",),
        num_streams=(1,),
        seconds=1.0,
    )
    data = encode_record(spec)
    store.put(keys.spec("m0"), data)
    return f"{store.url}/{keys.spec('m0')}", hashlib.sha256(data).hexdigest()


def ran(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit status of a member, and the names of the members whose work was done."""
    done: list[str] = []
    status = run_member(arguments, {ProbeSpec: lambda spec, store: done.append(spec.member)})
    return status, done


def test_a_spec_with_its_digest_and_one_that_is_given_by_hand_are_run(store: ObjectStore) -> None:
    url, digest = written(store)
    assert ran(url, digest) == (0, ["m0"])
    assert ran(url) == (0, ["m0"])
    assert ran() == (EXIT_USAGE, [])


@pytest.mark.parametrize("other", ["0" * 64, ""])
def test_a_spec_with_another_digest_is_not_run(
    store: ObjectStore, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, digest = written(store)
    assert ran(url, other) == (EXIT_FAILED, [])
    assert capsys.readouterr().err == (
        f"{url} has changed since m0 was launched: its SHA-256 is {digest}, and was {other}; it is not run\n"
    )
    assert store.list(keys.FAILURES) == []


def test_a_spec_that_changes_between_the_two_reads_is_not_run(tmp_path: Path) -> None:
    members = Members(LocalPlatform(forks=False), tmp_path)
    launch = members.launch("m0", "print('the job has run', flush=True)")
    job_folder = tmp_path / f"job-{members.run}-m0"
    (job_folder / "own.py").write_text("print('the forger has run', flush=True)")
    spec = launch.ticket.spec_url.removeprefix("file://")
    ticket = structs.replace(launch.ticket, prefix=(sys.executable, "-c", FORGE, spec))
    try:
        members.create([replace(launch, ticket=ticket)])
        assert members.status_of("m0") == EXIT_FAILED
        log = members.log("m0")
    finally:
        members.end()
    assert "has changed since m0 was launched" in log
    assert "has run" not in log
