"""Machines that share nothing but a network, and the clusters that run on them: ssh, Slurm and Ray."""
