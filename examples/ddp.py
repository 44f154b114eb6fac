"""Handwritten digits with PyTorch's own DistributedDataParallel, between processes that share nothing but a URL.

torchrun --nproc-per-node 2 examples/ddp.py s3://bucket/run-7
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import zooid.comm  # registers the backend


def train(rank: int) -> None:
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
    sampler: DistributedSampler[int] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        dist.all_reduce(total, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch}: loss {total:.3f}")


if __name__ == "__main__":
    dist.init_process_group("zooid", init_method=sys.argv[1])  # rank and world size are torchrun's
    train(dist.get_rank())
    print(f"rank {dist.get_rank()}: {zooid.comm.statistics()}")
    dist.destroy_process_group()
