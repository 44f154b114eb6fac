"""`python -m zooid.entry TICKET`: run one member, given its ticket as JSON."""

import logging
import sys

from zooid.core.records import decode_record
from zooid.core.runs.ticket import Ticket
from zooid.entry.attendant import attend
from zooid.entry.member_process import NewProcess
from zooid.store.member_program import EXIT_USAGE, end_process


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m zooid.entry TICKET, where TICKET is a ticket as JSON\n")
        return EXIT_USAGE
    return attend(decode_record(sys.argv[1].encode(), Ticket, "the ticket"), NewProcess())


if __name__ == "__main__":
    end_process(main())
