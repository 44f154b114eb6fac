"""The frame of every member program: it reads its spec from the store, and writes its failure there."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zooid.core.errors import CommAborted, CommTimeout, InputError, JobError, PeerLost, ZooidError
from zooid.core.records import decode_one_of, encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import Failure, JobSpec, MemberSpec
from zooid.core.runs.ticket import check_spec
from zooid.core.tracebacks import user_frames
from zooid.store.objects import open_store
from zooid.store.store_protocol import ObjectStore

EXIT_FAILED = 1
EXIT_USAGE = 2

Work: TypeAlias = Callable[[Any, ObjectStore], None]


def run_member(arguments: Sequence[str], works: Mapping[type[MemberSpec], Work]) -> int:
    """Run the work for a member's kind of spec and return its exit status.

    `arguments` are the URL of the spec and its SHA-256 digest. A spec with another digest is not run; whoever starts a
    member by hand may leave the digest out. An exception is logged, and stored as a Failure beside the spec.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write(
            "usage: python -m zooid.worker SPEC [DIGEST] (or zooid.profiler), where SPEC is the URL of a spec object, "
            "and DIGEST is its SHA-256\n"
        )
        return EXIT_USAGE
    spec_url, *digests = arguments
    store_url, key = keys.split_spec_url(spec_url)
    store = open_store(store_url)
    data = bytes(store.get(key))
    try:
        for digest in digests:
            check_spec(data, spec_url, digest)
    except ZooidError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    spec = decode_one_of(data, tuple(works), spec_url)
    try:
        _without_exit(works[type(spec)], spec, store)
    except Exception as error:
        logging.getLogger(__name__).exception("member %s failed", spec.member)
        store.put(keys.failure(spec.member, spec.roster), encode_record(_failure(spec, error)))
        return EXIT_FAILED
    return 0


def _without_exit(work: Work, spec: MemberSpec, store: ObjectStore) -> None:
    try:
        work(spec, store)
    except SystemExit as error:
        if not isinstance(spec, JobSpec):
            raise
        raise JobError(
            f"{spec.job_file} calls sys.exit({error.code!r}); a job file must only define its job"
        ) from error


def end_process(status: int) -> None:
    """Exit without the interpreter's teardown, which takes a second after a trace and is not needed."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _failure(spec: MemberSpec, error: Exception) -> Failure:
    return Failure(
        member=spec.member,
        error=type(error).__name__,
        message=str(error) if isinstance(error, ZooidError) else f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        user_frames=user_frames(error),
        is_input_error=isinstance(error, InputError),
        is_consequence=isinstance(error, (CommAborted, CommTimeout, PeerLost)),
    )
