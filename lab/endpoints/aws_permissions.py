"""What an identity may do in the AWS of the laboratory: what its policy allows, and nothing else."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from lab.endpoints.aws_shapes import Refused

_ANY = "*"
_KNOWN = {"Sid", "Effect", "Action", "Resource", "Condition"}


class Need(NamedTuple):
    """A permission that a request needs."""

    action: str
    resource: str = _ANY
    passed_to: str = ""
    """The service that gets a role, if one is passed."""


@dataclass(frozen=True)
class _Statement:
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    passed_to: str | None
    """The only service to which a role may be passed; None if there is no such condition."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "_Statement":
        assert given["Effect"] == "Allow", f"{given} is no permission"
        assert given.keys() <= _KNOWN, f"{given} has what the laboratory does not know"
        condition = given.get("Condition")
        passed_to = None if condition is None else condition["StringEquals"]["iam:PassedToService"]
        return cls(_texts(given["Action"]), _texts(given["Resource"]), passed_to)

    def allows(self, need: Need) -> bool:
        return (
            need.action in self.actions
            and any(fnmatchcase(need.resource, pattern) for pattern in self.resources)
            and self.passed_to in (None, need.passed_to)
        )


@dataclass(frozen=True)
class Permissions:
    """The permissions of whoever signs requests."""

    statements: tuple[_Statement, ...]
    user: str

    @classmethod
    def of(cls, policy: Path, user: str) -> "Permissions":
        """Read a policy as one would give it to IAM."""
        document = json.loads(policy.read_text())
        assert document["Version"] == "2012-10-17"
        return cls(tuple(map(_Statement.read, document["Statement"])), user)

    @property
    def actions(self) -> set[str]:
        return {action for statement in self.statements for action in statement.actions}

    def without(self, action: str) -> "Permissions":
        """Return the permissions without one of them."""
        assert action in self.actions
        left = (
            replace(statement, actions=tuple(each for each in statement.actions if each != action))
            for statement in self.statements
        )
        return replace(self, statements=tuple(left))

    def check(self, need: Need) -> None:
        if not any(statement.allows(need) for statement in self.statements):
            raise Refused(
                "AccessDeniedException",
                403,
                f"User: {self.user} is not authorized to perform: {need.action} on resource: {need.resource} because "
                f"no identity-based policy allows the {need.action} action",
            )


def needs_of_functions(operation: str, given: Mapping[str, Any], arn: str) -> Iterator[Need]:
    """Yield what a request to Lambda needs; `arn` is how the names of functions begin."""
    if operation == "GetAccountSettings":
        yield Need("lambda:GetAccountSettings")
        return
    function = f"{arn}{given['FunctionName']}"
    yield Need("lambda:InvokeFunction" if operation == "Invoke" else f"lambda:{operation}", function)
    if given.get("Tags"):
        yield Need("lambda:TagResource", function)
    if "Role" in given:
        yield Need("iam:PassRole", given["Role"], "lambda.amazonaws.com")


def needs_of_logs(operation: str, given: Mapping[str, Any], arn: str) -> Iterator[Need]:
    """Yield what a request to CloudWatch Logs needs; `arn` is how the names of groups begin."""
    if operation == "DescribeLogGroups":
        yield Need("logs:DescribeLogGroups", f"{arn}*")
        return
    group = f"{arn}{given['logGroupName']}"
    yield Need(f"logs:{operation}", group)
    if given.get("tags"):
        yield Need("logs:TagResource", group)


def _texts(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
