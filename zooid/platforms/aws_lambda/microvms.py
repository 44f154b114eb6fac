"""Members in MicroVMs of AWS Lambda, one in each: up to 8 hours, 16 vCPUs and 32 GiB.

A MicroVM resumes from the snapshot of an image, in which a small program waits (`zooid/entry/microvm_hooks.py`). The
service hands it at most 4096 characters, which say where in the store the first program of the member lies. AWS does
not say whether a MicroVM ends when its program does. So that program says in the store when the member has ended, and
then the MicroVM is terminated.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError, StoreError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit
from zooid.platforms.aws_lambda.function_requests import Refused
from zooid.platforms.aws_lambda.microvm_images import ImageFamily, check_image
from zooid.platforms.aws_lambda.microvm_records import (
    MicrovmRecord,
    find_record,
    has_ended,
    keep_record,
    remove_records,
)
from zooid.platforms.aws_lambda.microvm_requests import microvm_client, translated
from zooid.platforms.provider import MemberOrder
from zooid.platforms.provider_platform import ProviderPlatform
from zooid.platforms.run_stores import PlatformWithStores, RunStores
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

NAME = "aws_microvm"
_MAX_PAYLOAD = 4096
_UNCERTAIN = ("InternalServerException", "ServiceException", "InternalFailure", "ServiceUnavailable")
"""Errors after which a MicroVM may run nevertheless."""
_MAX_LIFETIME_S = 28_800
_LIFETIME_MARGIN_S = 60
"""A member ends itself when its time is over. The service ends it this much later, if it does not."""
_END_S = 10.0
"""How long to wait for the moment until which a MicroVM is billed."""
_POLL_S = 0.25


def microvm_platform(account: Account, offer_of: Callable[[str], Offer], look_s: float = 2.0) -> ProviderPlatform:
    """Return the platform on the user's account."""

    def open_microvms(where: str, stores: RunStores) -> "Microvms":
        images = ImageFamily.of(account)
        if where != images.where:
            raise InputError(f"members run in {where}, but {account.file} names an image in {images.where}")
        return Microvms(microvm_client(images.region, account.options.get("endpoint")), images, account, stores)

    return PlatformWithStores(NAME, open_microvms, lambda offer: ImageFamily.of(account).where, offer_of, look_s)


@dataclass
class _Vm:
    """A MicroVM that was asked for."""

    record: MicrovmRecord
    is_ending: bool = False
    """True once this process has asked AWS to terminate the MicroVM."""
    exit: Exit | None = None

    @property
    def id(self) -> str:
        return self.record.microvm_id


class Microvms:
    """An account with AWS Lambda in one region."""

    def __init__(self, client: Any, images: ImageFamily, account: Account, stores: RunStores) -> None:
        self._client = client
        self._images = images
        self._account = account
        self._checked: set[str] = set()
        self._stores = stores
        self._vms: dict[tuple[str, str], _Vm] = {}
        """The MicroVMs of members, each under the run and the title of its member."""

    def check(self, orders: Collection[MemberOrder]) -> None:
        self._account.needed("role", "arn:aws:iam::123456789012:role/zooid-member")
        for order in orders:
            image = self._images.image_for(order.offer)
            if image not in self._checked:
                with translated(f"the image {image} cannot be read"):
                    check_image(self._client, image, order.offer)
                self._checked.add(image)
            self._request(order, b"")

    def start(self, order: MemberOrder) -> None:
        store = self._stores.add(order.run, order.order["store"])
        record = find_record(store, order.title)
        if record is None:
            program = order.program.encode()
            store.put(keys.microvm_program(order.title), program)
            record = MicrovmRecord(request=self._request(order, program))
            keep_record(store, order.title, record)
        try:
            self._vms[order.run, order.title] = self._run(store, order.title, record)
        except Refused as error:
            if error.code not in _UNCERTAIN:
                remove_records(store, order.title)  # nobody requests it again
            raise

    def _request(self, order: MemberOrder, program: bytes) -> dict[str, Any]:
        """Return the parameters of the request that runs the MicroVM of a member."""
        payload = json.dumps(
            {
                "store": order.order["store"],
                "program": keys.microvm_program(order.title),
                "digest": hashlib.sha256(program).hexdigest(),
                "end": keys.microvm_end(order.title),
                "environment": order.order["environment"],
            }
        )
        if len(payload.encode()) > _MAX_PAYLOAD:
            raise InputError(
                f"the settings of a member have {len(payload.encode())} bytes, and a MicroVM takes {_MAX_PAYLOAD}; "
                "give a store with a shorter URL"
            )
        lifetime_s = _MAX_LIFETIME_S if order.lifetime_s is None else math.ceil(order.lifetime_s) + _LIFETIME_MARGIN_S
        return {
            "imageIdentifier": self._images.image_for(order.offer),
            "executionRoleArn": self._account.needed("role", "arn:aws:iam::123456789012:role/zooid-member"),
            "maximumDurationInSeconds": min(lifetime_s, _MAX_LIFETIME_S),
            "runHookPayload": payload,
            "clientToken": order.resource,
        }

    def _run(self, store: ObjectStore, title: str, record: MicrovmRecord) -> _Vm:
        """Run the MicroVM of a record, if it has not been run, and record its id.

        Without an idle policy it is never suspended, since a member gets no requests through which it would count as
        busy. No ingress connector is attached: nobody needs to reach it.
        """
        if not record.microvm_id:
            with translated(f"{title} could not be run in a MicroVM"):
                answer = self._client.run_microvm(**record.request)
            record = structs.replace(record, microvm_id=answer["microvmId"])
            keep_record(store, title, record)
        return _Vm(record)

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        vms = {title: vm for title in titles if (vm := self._find(run, title)) is not None}
        living = self._living({vm.record.image for vm in vms.values() if vm.exit is None})
        found: dict[str, Exit | None] = {}
        for title, vm in vms.items():
            if vm.exit is None and vm.id not in living:
                try:
                    vm.exit = self._ended(vm)
                except _Gone:  # it is not listed yet, or not any more
                    continue
            elif vm.exit is None and not vm.is_ending and self._has_ended(run, title):
                self._terminate(vm)
            found[title] = vm.exit
        return found

    def _find(self, run: str, title: str) -> _Vm | None:
        """Return the MicroVM of a member that this or another process has started; None if there is none."""
        store = self._stores.find(run)
        if (run, title) not in self._vms and store is not None:
            record = find_record(store, title)
            if record is not None:
                self._vms[run, title] = self._run(store, title, record)
        return self._vms.get((run, title))

    def _living(self, images: Collection[str]) -> set[str]:
        """Return the ids of all MicroVMs from these images that have not ended: one request for 50 of them."""
        found = set()
        with translated("MicroVMs cannot be listed"):
            for image in images:
                for page in self._client.get_paginator("list_microvms").paginate(imageIdentifier=image):
                    found |= {item["microvmId"] for item in page["items"] if item["state"] != "TERMINATED"}
        return found

    def _ended(self, vm: _Vm) -> Exit | None:
        """Return how a MicroVM ended, and for how long it is billed; None if it has not. Raises _Gone if forgotten."""
        with translated(f"the MicroVM {vm.id} cannot be described"):
            try:
                described = self._client.get_microvm(microvmIdentifier=vm.id)
            except self._client.exceptions.ResourceNotFoundException as error:
                raise _Gone from error
        if described["state"] != "TERMINATED":
            return None
        billed_s = None
        if "terminatedAt" in described:
            billed_s = max(0.0, (described["terminatedAt"] - described["startedAt"]).total_seconds())
        told = described.get("stateReason", "")
        reason = "" if vm.is_ending else f"its MicroVM is lost{f': {told}' if told else ''}"
        return Exit(None, billed_s=billed_s, reason=reason)

    def _has_ended(self, run: str, title: str) -> bool:
        store = self._stores.find(run)
        return store is not None and has_ended(store, title)

    def _terminate(self, vm: _Vm) -> None:
        with (
            translated(f"the MicroVM {vm.id} cannot be terminated"),
            suppress(self._client.exceptions.ResourceNotFoundException),
        ):
            self._client.terminate_microvm(microvmIdentifier=vm.id)
        vm.is_ending = True

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        vms, left = {}, set()
        for title in titles:
            try:
                vm = self._find(run, title)
                if vm is not None:
                    vms[title] = vm
                    if vm.exit is None:
                        self._terminate(vm)
            except ZooidError as error:
                logger.warning("%s", error)
                left.add(title)
        self._await_ends([vm for title, vm in vms.items() if title not in left and vm.exit is None])
        store = self._stores.find(run)
        if store is not None:
            for title in vms.keys() - left:
                with suppress(StoreError):  # the run's folder may be gone
                    remove_records(store, title)
        return left

    def _await_ends(self, vms: Collection[_Vm]) -> None:
        """Wait until MicroVMs have ended; those that take longer are ending nevertheless."""
        deadline_s = time.monotonic() + _END_S
        while vms and time.monotonic() < deadline_s:
            for vm in vms:
                try:
                    vm.exit = self._ended(vm)
                except _Gone:
                    vm.exit = Exit(None)
            vms = [vm for vm in vms if vm.exit is None]
            if vms:
                time.sleep(_POLL_S)

    def num_free(self, offer: Offer) -> int | None:
        return None

    def close(self) -> None:
        self._client.close()


class _Gone(Exception):
    """The service has forgotten a MicroVM."""
