"""PyTorch's own suite of a torch.distributed backend, run on Gloo and on zooid: what Gloo passes, zooid passes."""
