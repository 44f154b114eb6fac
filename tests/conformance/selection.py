"""Which tests are asked of zooid: all that Gloo passes but the exceptions, or a sample of them."""

EXCEPTIONS: dict[str, str] = {}
"""Tests that Gloo passes and zooid need not, each with the reason."""

SAMPLE = (
    # Every collective, on the default group or on another one, and what a failing one does.
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_complex",
    "test_broadcast",
    "test_gather_checks",
    "test_get_future",
    "test_monitored_barrier_gloo",
    "test_reduce_sum_twice",
    "test_scatter_complex",
    "test_sparse_all_reduce_sum",
    # Messages between two ranks, and from any rank.
    "test_batch_isend_irecv_gloo_tags",
    "test_irecv",
    "test_send_recv_any_source",
    # Objects, groups and names.
    "test_all_gather_object_subgroup",
    "test_barrier_timeout_global",
    "test_get_backend",
    "test_scatter_object_list",
    # Data parallelism.
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_grads_same_across_ranks_with_no_sync",
)
"""With two ranks."""

SAMPLE_OF_MORE_RANKS = (
    "test_DistributedDataParallelCPU",
    "test_all_reduce_sum",
    "test_get_backend",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_send_recv_any_source",
)
"""Where a third rank matters: a rank that is not in a group, a choice of senders, more than one partner."""


def select_sample(num_ranks: int) -> tuple[str, ...]:
    """The sample for a number of ranks."""
    return SAMPLE if num_ranks == 2 else SAMPLE_OF_MORE_RANKS
