"""Two ranks that share one GPU check the backend with its tensors: `python -m tests.integration.gpu_ranks`."""

import tempfile
import time
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import zooid.comm

NUM_RANKS = 2
DEVICE = torch.device("cuda", 0)
_LONG_CYCLES = 400_000_000
"""A kernel of about a fifth of a second."""


def numbers(rank: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(DEVICE)


def collectives_give_the_sums_of_the_processor(rank: int) -> None:
    for size in (5, 100_000, 3_000_000):
        tensor = numbers(rank, size)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, numbers(0, size) + numbers(1, size)), size
    gathered = [torch.empty(7, dtype=torch.float64, device=DEVICE) for _ in range(NUM_RANKS)]
    dist.all_gather(gathered, numbers(rank, 7))
    assert all(torch.equal(part, numbers(source, 7)) for source, part in enumerate(gathered))
    halves = numbers(rank, 8)[::2]  # not contiguous
    dist.broadcast(halves, 1)
    assert torch.equal(halves, numbers(1, 8)[::2])
    if rank == 0:
        dist.send(numbers(0, 200_000), 1)
    else:
        received = torch.empty(200_000, dtype=torch.float64, device=DEVICE)
        dist.recv(received, 0)
        assert torch.equal(received, numbers(0, 200_000))


def a_call_does_not_wait_for_the_kernels_before_it(rank: int) -> None:
    tensor = numbers(rank, 1000).mul_(1)  # a kernel that is loaded for the first time waits for the GPU
    torch.cuda.synchronize()
    torch.cuda._sleep(_LONG_CYCLES)  # type: ignore[no-untyped-call]
    tensor.mul_(2)  # queued behind the long kernel
    began_s = time.perf_counter()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    called_s = time.perf_counter() - began_s
    work.wait()
    waited_s = time.perf_counter() - began_s
    assert torch.equal(tensor, 2 * numbers(0, 1000) + 2 * numbers(1, 1000))
    assert called_s < waited_s / 3, (called_s, waited_s)


def futures_carry_their_device(rank: int) -> None:
    tensor = numbers(rank, 100_000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    assert torch.equal(doubled, 2 * (numbers(0, 100_000) + numbers(1, 100_000)))


def calls_on_both_memories_keep_their_order(rank: int) -> None:
    works = []
    tensors = [torch.full((1000,), float(rank + n), device=DEVICE if n % 2 else "cpu") for n in range(20)]
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, async_op=True))
    for n, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work is not None
        work.wait()
        assert bool((tensor == 2 * n + 1).all()), n


def ddp_gives_the_gradients_of_one_process(rank: int) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)]
    model = torch.nn.Sequential(*layers).double().to(DEVICE)
    alone = torch.nn.Sequential(*layers)
    inputs = numbers(7, 32 * 64).view(32, 64)
    alone(inputs).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in alone.parameters() if parameter.grad is not None]
    alone.zero_grad()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.05)
    parallel(inputs.chunk(NUM_RANKS)[rank]).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def int8_keeps_what_it_loses(rank: int) -> None:
    group = dist.new_group(pg_options=zooid.comm.Options(transport="tcp", codec="int8"))
    value, total = numbers(rank, 5000).float(), torch.zeros(5000, device=DEVICE)
    buffer = torch.empty(5000, device=DEVICE)
    for _ in range(50):
        buffer.copy_(value)
        dist.all_reduce(buffer, group=group)
        total += buffer
    exact = numbers(0, 5000).float() + numbers(1, 5000).float()
    error = (total / 50 - exact).abs().max().item()
    assert error < 0.002, error


def what_is_sent_counts_as_unchanged(rank: int) -> None:
    """Autograd refuses to use saved activations that something has written since."""
    tensor = numbers(rank, 1000)
    version = tensor._version
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(torch.empty_like(tensor), 0)
    dist.broadcast(tensor if rank == 0 else torch.empty_like(tensor), 0)
    torch.cuda.synchronize()
    assert tensor._version == version
    dist.all_reduce(tensor)
    assert torch.equal(tensor, numbers(0, 1000) + numbers(1, 1000))


CHECKS: list[Callable[[int], None]] = [
    collectives_give_the_sums_of_the_processor,
    a_call_does_not_wait_for_the_kernels_before_it,
    futures_carry_their_device,
    calls_on_both_memories_keep_their_order,
    ddp_gives_the_gradients_of_one_process,
    int8_keeps_what_it_loses,
    what_is_sent_counts_as_unchanged,
]


def play(rank: int, url: str) -> None:
    dist.init_process_group("zooid", init_method=url, rank=rank, world_size=NUM_RANKS)
    for check in CHECKS:
        check(rank)
        if rank == 0:
            print("ok", check.__name__, flush=True)
    dist.destroy_process_group()


def main() -> None:
    for options in ("", "?transport=tcp"):
        with tempfile.TemporaryDirectory() as folder:
            print(f"two ranks on {torch.cuda.get_device_name(DEVICE)}, file://{options}", flush=True)
            url = f"file://{folder}/meeting{options}"
            start_processes(play, (url,), NUM_RANKS, start_method="spawn")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
