"""Dynamic scaling of workers on Fashion-MNIST: one worker, many workers, and one that becomes many."""
